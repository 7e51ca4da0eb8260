#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/command/commands.h"
#include "client/command/exit_code.h"
#include "retroinfer/kvstore/v1/kv_store.grpc.pb.h"
#include "tests/client/command_runner.h"
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
