// Over stand-ins for the services (fake_service.cc).
#include "client/serve/own_services.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "build_paths.h"
#include "client/command/exit_code.h"

namespace retroinfer::client {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const char kModel[] = "--model=" RETROINFER_SOURCE_DIR "/models/needle";

std::string ReadText(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class OwnServicesTest : public ::testing::Test {
 protected:
  OwnServicesTest() {
    std::string pattern = (fs::temp_directory_path() / "retroinfer-XXXXXX").string();
    bin_dir_ = ::mkdtemp(pattern.data());
    for (const char* name : {"kv_store_service", "gpu_worker"}) {
      fs::create_symlink(RETROINFER_FAKE_SERVICE, bin_dir_ / name);
    }
  }
  ~OwnServicesTest() override { fs::remove_all(bin_dir_); }

  void ReplaceWorker(const std::string& script) {
    fs::remove(bin_dir_ / "gpu_worker");
    // Its settings are right.
    std::ofstream(bin_dir_ / "gpu_worker")
        << "#!/bin/sh\ncase \"$*\" in *--check-settings*) exit 0;; esac\n"
        << script << "\n";
    fs::permissions(bin_dir_ / "gpu_worker", fs::perms::owner_all);
  }
  // Parses; what it says goes to said_.
  std::optional<int> Parse(std::vector<std::string> arguments) {
    arguments.push_back("--bin-dir=" + bin_dir_.string());
    char* text = nullptr;
    size_t size = 0;
    Streams streams;
    streams.err = ::open_memstream(&text, &size);
    const std::optional<int> done = ParseOwnServices("bench --", arguments, &options_, streams);
    std::fclose(streams.err);
    said_.assign(text, size);
    std::free(text);
    return done;
  }
  absl::StatusOr<OwnServices> Create(const std::vector<std::string>& arguments = {kModel}) {
    EXPECT_EQ(Parse(arguments), std::nullopt) << said_;
    return OwnServices::Create(options_, /*show_log=*/false);
  }
  absl::Status Start(OwnServices& services) {
    return services.Start(
        "bench", [this] { return signals_; }, Streams());
  }

  fs::path bin_dir_;
  ServeOptions options_;
  std::string said_;
  int signals_ = 0;
};

TEST_F(OwnServicesTest, ServeInAFolderOfTheirOwn) {
  std::string folder;
  {
    auto services = Create({kModel, "--api-key-file=/key"});
    ASSERT_TRUE(services.ok()) << services.status();
    folder = services->folder();
    ASSERT_TRUE(Start(*services).ok());
    EXPECT_TRUE(services->Check().ok());
    EXPECT_EQ(services->connection().address, "unix:" + folder + "/generation.sock");
    EXPECT_EQ(services->connection().api_key_file, "/key");
    EXPECT_THAT(ReadText(folder + "/gpu_worker.args"),
                HasSubstr("--listen=unix:" + folder + "/generation.sock\n"));
    EXPECT_THAT(ReadText(folder + "/gpu_worker.args"), HasSubstr("--metrics-address=none\n"));
    EXPECT_THAT(ReadText(folder + "/kv_store_service.args"), HasSubstr("--metrics-address=none\n"));
    services->Stop();
    services->Stop();  // once more is allowed
  }
  EXPECT_FALSE(fs::exists(folder));
}

TEST_F(OwnServicesTest, TellTheEndOfOne) {
  auto services = Create();
  ASSERT_TRUE(services.ok()) << services.status();
  ASSERT_TRUE(Start(*services).ok());
  const pid_t store = std::stoi(ReadText(services->folder() + "/kv_store_service.pid"));
  ::kill(store, SIGKILL);
  for (int i = 0; i < 1000 && services->Check().ok(); ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(services->Check().message(), "kv_store_service ended: signal 9 (Killed)");
}

TEST_F(OwnServicesTest, TheLogOfOneThatCannotStartIsInTheError) {
  ReplaceWorker(
      "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do echo line $i; done\n"
      "echo 'it is broken' >&2; exit 3");
  auto services = Create();
  ASSERT_TRUE(services.ok()) << services.status();
  const absl::Status status = Start(*services);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("gpu_worker ended before it served anything: exit code 3; its log ends "
                        "with\nline 2\nline 3\n"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("line 15\nit is broken"));
}

TEST_F(OwnServicesTest, TheEndOfTheStoreIsSeenWhileTheWorkerLoads) {
  ReplaceWorker("kill -9 $(cat ${1#--socket-dir=}/kv_store_service.pid); exec sleep 100");
  auto services = Create();
  ASSERT_TRUE(services.ok()) << services.status();
  EXPECT_EQ(Start(*services).message(), "kv_store_service ended: signal 9 (Killed)");
}

TEST_F(OwnServicesTest, ASignalEndsTheWait) {
  ReplaceWorker("exec sleep 100");
  auto services = Create();
  ASSERT_TRUE(services.ok()) << services.status();
  signals_ = 1;
  EXPECT_EQ(Start(*services).code(), absl::StatusCode::kCancelled);
  services->Stop();
}

TEST_F(OwnServicesTest, AddressesAreRefusedOnTheCommandLineAndLeftOutElsewhere) {
  EXPECT_EQ(Parse({kModel, "--listen=127.0.0.1:1"}), kExitUsage);
  EXPECT_THAT(said_, HasSubstr("retroinfer bench --: --listen has no place here"));
  EXPECT_EQ(Parse({kModel, "--socket-dir", "/x"}), kExitUsage);
  EXPECT_THAT(said_, HasSubstr("--socket-dir has no place here"));
  EXPECT_EQ(Parse({}), kExitUsage);
  EXPECT_THAT(said_, HasSubstr("--model is missing"));

  ::setenv("RETROINFER_LISTEN", "127.0.0.1:1", 1);
  ::setenv("RETROINFER_METRICS_ADDRESS", "127.0.0.1:2", 1);
  ::setenv("RETROINFER_STORE_METRICS_ADDRESS", "127.0.0.1:3", 1);
  EXPECT_EQ(Parse({kModel, "--store-metrics-address=127.0.0.1:4"}), std::nullopt) << said_;
  ::unsetenv("RETROINFER_LISTEN");
  ::unsetenv("RETROINFER_METRICS_ADDRESS");
  ::unsetenv("RETROINFER_STORE_METRICS_ADDRESS");
  const std::vector<ServiceSpec> specs = ServiceSpecs(options_);
  EXPECT_THAT(specs[0].arguments, ::testing::Contains("--metrics-address=127.0.0.1:4"));
  EXPECT_THAT(specs[1].arguments, Not(::testing::Contains(HasSubstr("127.0.0.1"))));
}

}  // namespace
}  // namespace retroinfer::client
