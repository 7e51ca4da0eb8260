#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/command/commands.h"
#include "client/command/exit_code.h"
#include "client/command/server_registry.h"
#include "common/shm/folder_lock.h"
#include "retroinfer/kvstore/v1/kv_store.grpc.pb.h"
#include "tests/client/command_runner.h"
#include "tests/support/temp_folder.h"
#include "tests/support/worker_harness.h"

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;

// A store that only tells statistics.
class FakeStore final : public kvstore::v1::KvStoreService::Service {
 public:
  explicit FakeStore(const std::string& folder) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("unix:", folder, "/kv_store.sock"),
                             grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  grpc::Status GetStats(grpc::ServerContext*, const kvstore::v1::GetStatsRequest*,
                        kvstore::v1::GetStatsResponse* stats) override {
    stats->set_arena_pages(1 << 19);
    stats->set_free_pages(1 << 17);
    stats->set_committed_segments(12);
    stats->set_worker_attached(true);
    stats->set_uptime_seconds(3661);
    return grpc::Status::OK;
  }

 private:
  std::unique_ptr<grpc::Server> server_;
};

class PsCommandTest : public ::testing::Test {
 protected:
  PsCommandTest() {
    EngineStats stats;
    stats.page_hits = 97;
    stats.page_misses = 2;
    stats.page_transients = 1;
    stats.slots_used = 500;
    stats.slots_total = 1000;
    worker_.engine().SetStats(stats);
  }
  CommandResult Run(std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), {"ps", "--address", worker_.address(), "--socket-dir",
                                         worker_.folder().string()});
    return RunCommand(PsCommand, arguments);
  }

  WorkerHarness worker_;
};

TEST_F(PsCommandTest, ShowsBothServices) {
  FakeStore store(worker_.folder().string());
  const CommandResult result = Run();
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr("fake-model"));
  EXPECT_THAT(result.out, HasSubstr("0 running, 0 waiting"));
  EXPECT_THAT(result.out, HasSubstr("500 of 1,000 (50%) slots, hit ratio 97.0%"));
  EXPECT_THAT(result.out, HasSubstr("768.00 MiB of 1.00 GiB (75%)"));
  EXPECT_THAT(result.out, HasSubstr("12 committed"));
  EXPECT_THAT(result.out, HasSubstr("up 1h1m1s"));
}

TEST_F(PsCommandTest, JsonIsForPrograms) {
  FakeStore store(worker_.folder().string());
  const auto json = nlohmann::json::parse(Run({"--json"}).out);
  EXPECT_DOUBLE_EQ(json["gpu_worker"]["page_hit_ratio"], 0.97);
  EXPECT_EQ(json["kv_store_service"]["arena_bytes"], 1 << 30);
}

TEST_F(PsCommandTest, FindsTheServersThatRunHere) {
  const test_support::TempFolder session;
  ::setenv("XDG_RUNTIME_DIR", session.path().c_str(), 1);
  const std::string folder = worker_.folder().string();
  FakeStore store(folder);
  std::filesystem::create_symlink(worker_.folder() / "worker.sock",
                                  worker_.folder() / "generation.sock");
  const auto lock = common::FolderLock::Take(folder, "serve", "retroinfer serve");
  ASSERT_TRUE(lock.ok() && ServerRegistry().Add(folder).ok());
  CommandResult result = RunCommand(PsCommand, {"ps"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_THAT(result.out, HasSubstr("unix:" + folder + "/generation.sock"));
  EXPECT_THAT(result.out, HasSubstr("12 committed"));
  result = RunCommand(PsCommand, {"ps", "--json"});
  EXPECT_EQ(nlohmann::json::parse(result.out)["socket_dir"], folder);

  // A second one, whose services do not answer.
  const std::string usual = session.File("retroinfer");
  std::filesystem::create_directory(usual);
  std::filesystem::permissions(usual, std::filesystem::perms::owner_all);
  const auto other = common::FolderLock::Take(usual, "kv_store", "kv_store_service");
  ASSERT_TRUE(other.ok());
  result = RunCommand(PsCommand, {"ps", "--json"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  const auto servers = nlohmann::json::parse(result.out)["servers"];
  ASSERT_EQ(servers.size(), 2u);
  const size_t first = servers[0]["socket_dir"] == folder ? 0 : 1;
  EXPECT_EQ(servers[first]["gpu_worker"]["model"], "fake-model");
  EXPECT_TRUE(servers[1 - first]["kv_store_service"].contains("problem"));
  ::unsetenv("XDG_RUNTIME_DIR");
}

TEST_F(PsCommandTest, AMissingServiceIsAFailureButTheOtherIsShown) {
  CommandResult result = Run();
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.out, HasSubstr("fake-model"));
  EXPECT_THAT(result.err, HasSubstr("no store answers"));
  result = Run({"--json"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_TRUE(nlohmann::json::parse(result.out)["kv_store_service"].contains("problem"));

  FakeStore store(worker_.folder().string());
  result = RunCommand(PsCommand, {"ps", "--address", "unix:/no/such/socket", "--socket-dir",
                                  worker_.folder().string()});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.out, HasSubstr("kv_store_service"));
  EXPECT_THAT(result.err, HasSubstr("no worker answers"));
}

}  // namespace
}  // namespace retroinfer::client
