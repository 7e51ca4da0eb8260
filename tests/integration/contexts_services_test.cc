// `retroinfer cache` against both services: what is saved outlives them, can be moved, and is not
// taken for something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/command/commands.h"
#include "client/command/connection.h"
#include "client/command/exit_code.h"
#include "tests/client/command_runner.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

using client::CommandResult;
using client::kExitFailed;
using client::kExitOk;
using ::testing::HasSubstr;

class ContextsServicesTest : public testing::Test {
 protected:
  ContextsServicesTest() {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    std::ofstream file(PathOf("doc.txt"));
    for (int i = 0; i < 450; ++i) file << "line " << i * 7919 % 450 << " of the document\n";
  }
  ~ContextsServicesTest() override {
    services_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string PathOf(const std::string& name) const { return folder_ + "/" + name; }
  // Kills both services and starts them over a cache folder; empty: without one.
  void Start(const std::string& cache, const std::string& wave_index = "tuned") {
    services_.reset();
    ServiceOptions options;
    options.arena_bytes = "128MiB";
    if (!cache.empty()) {
      options.store_arguments = {"--cache-dir", PathOf(cache), "--persist", "on-demand"};
    }
    options.worker_arguments = {"--dense-below", "1024", "--wave-index", wave_index};
    services_ = std::make_unique<ServiceProcesses>(options);
    services_->StartBoth();
  }
  CommandResult Run(client::Command command, std::vector<std::string> arguments) {
    arguments.insert(arguments.end(),
                     {"--address", "unix:" + (services_->folder() / "worker.sock").string()});
    return client::RunCommand(command, arguments);
  }
  CommandResult Cache(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "cache");
    return Run(client::CacheCommand, arguments);
  }
  nlohmann::json Listed() { return nlohmann::json::parse(Cache({"ls", "--json"}).out)["contexts"]; }
  struct Answer {
    int64_t cached_tokens = 0;
    std::vector<int32_t> tokens;
  };
  Answer Ask(const std::string& salt = "") {
    const CommandResult result =
        Run(client::GenerateCommand,
            {"generate", "--raw", "--file", PathOf("doc.txt"), "And then?", "--max-tokens", "8",
             "--temperature", "0", "--ignore-eos", "--json", "--quiet", "--cache-salt", salt});
    EXPECT_EQ(result.exit_code, kExitOk) << result.err;
    const auto json = nlohmann::json::parse(result.out);
    return {json["cached_tokens"], json["token_ids"]};
  }

  std::string folder_ = (std::filesystem::temp_directory_path() / "contexts-XXXXXX").string();
  std::unique_ptr<ServiceProcesses> services_;
};

TEST_F(ContextsServicesTest, AContextOutlivesItsServicesAndMoves) {
  Start("cache");
  const Answer cold = Ask("another tenant");
  EXPECT_EQ(cold.cached_tokens, 0);
  CommandResult result = Cache({"save", "doc", "--file", PathOf("doc.txt"), "--quiet"});
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  auto listed = Listed();
  ASSERT_EQ(listed.size(), 1u);
  const int64_t reusable = listed[0]["reusable_tokens"];
  EXPECT_GE(reusable, 4096);
  EXPECT_EQ(listed[0]["tier"], "memory+disk");
  // Nothing but what was saved is on the disk.
  EXPECT_EQ(services_->StoreStats().durable_segments(), listed[0]["segments"].get<uint64_t>());

  Start("cache");
  listed = Listed();
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0]["tier"], "disk");
  const Answer hit = Ask();
  EXPECT_EQ(hit.cached_tokens, reusable);
  EXPECT_EQ(hit.tokens, cold.tokens);
  result = Cache({"verify", "doc"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  result = Cache({"export", "doc", PathOf("doc.ctx")});
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  struct stat info {};
  ASSERT_EQ(::stat(PathOf("doc.ctx").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  result = Cache({"rm", "doc"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(Listed().size(), 0u);
  EXPECT_EQ(Ask().cached_tokens, 0);

  Start("fresh");
  result = Cache({"import", PathOf("doc.ctx"), "--name", "copy", "--pin"});
  ASSERT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(Listed()[0]["name"], "copy");
  const Answer imported = Ask();
  EXPECT_EQ(imported.cached_tokens, reusable);
  EXPECT_EQ(imported.tokens, cold.tokens);
  EXPECT_EQ(Cache({"verify", "copy"}).exit_code, kExitOk);
}

TEST_F(ContextsServicesTest, FilesThatAreNotRightAreRefused) {
  Start("cache");
  ASSERT_EQ(Cache({"save", "doc", "--file", PathOf("doc.txt"), "--quiet"}).exit_code, kExitOk);
  ASSERT_EQ(Cache({"export", "doc", PathOf("doc.ctx")}).exit_code, kExitOk);
  ASSERT_EQ(Cache({"rm", "doc"}).exit_code, kExitOk);
  const std::string file = *client::ReadWholeFile(PathOf("doc.ctx"));
  std::string flipped = file;
  flipped[file.size() / 2] ^= 1;
  for (const std::string& bad : {file.substr(0, file.size() - 1000), flipped}) {
    std::ofstream(PathOf("bad.ctx"), std::ios::binary) << bad;
    const CommandResult result = Cache({"import", PathOf("bad.ctx")});
    EXPECT_EQ(result.exit_code, kExitFailed);
    EXPECT_THAT(result.err, HasSubstr("BAD_FILE"));
  }
  EXPECT_EQ(services_->StoreStats().durable_segments(), 0u);

  Start("cache", "paper");  // other clusters: other bytes
  const CommandResult result = Cache({"import", PathOf("doc.ctx")});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("WRONG_MODEL"));
  EXPECT_THAT(result.err, HasSubstr("another model"));
}

TEST_F(ContextsServicesTest, AStoreWithoutADiskSaysSo) {
  Start("");
  const CommandResult result = Cache({"ls"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("NO_DURABLE_TIER"));
  EXPECT_THAT(result.err, HasSubstr("--cache-dir"));
}

}  // namespace
}  // namespace retroinfer::test_support
