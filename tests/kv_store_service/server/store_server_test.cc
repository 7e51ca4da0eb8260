#include "kv_store_service/server/store_server.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/message_codec.h"
#include "common/shm/worker_mark.h"
#include "common/status/error_reason.h"
#include "retroinfer/kvstore/v1/contexts.grpc.pb.h"
#include "tests/common/rpc/raw_call.h"
#include "tests/kv_store_service/temporary_folder.h"

namespace retroinfer::kvstore {
namespace {

using testing::HasSubstr;

class StoreServerTest : public testing::Test {
 protected:
  StoreServerTest() {
    options_.arena_bytes = 1 << 20;
    options_.socket_dir = folder_.path() + "/store";
  }
  absl::Status Start() { return StoreServer::Start(options_).status(); }

  TemporaryFolder folder_;
  StoreServerOptions options_;
};

TEST_F(StoreServerTest, MakesItsFolderPrivateAndServes) {
  options_.listen = "127.0.0.1:0";
  options_.metrics_address = "127.0.0.1:0";
  auto server = StoreServer::Start(options_);
  ASSERT_TRUE(server.ok()) << server.status();
  struct stat info {};
  ASSERT_EQ(::stat(options_.socket_dir.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_GT((*server)->metrics_port(), 0);
  ASSERT_TRUE((*server)->ObtainArena([] { return false; }).ok());
  auto stub = v1::KvStoreService::NewStub(grpc::CreateChannel(
      "unix:" + options_.socket_dir + "/kv_store.sock", grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::GetStatsResponse stats;
  ASSERT_TRUE(stub->GetStats(&context, {}, &stats).ok());
  EXPECT_EQ(stats.arena_pages(), 512u);
}

// Two bytes can be a message that takes a hundred, so they are counted before they are parsed.
TEST_F(StoreServerTest, EveryMethodIsThereAndBoundsItsRequests) {
  auto server = StoreServer::Start(options_);
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE((*server)->ObtainArena([] { return false; }).ok());
  const auto channel = grpc::CreateChannel("unix:" + options_.socket_dir + "/kv_store.sock",
                                           grpc::InsecureChannelCredentials());
  std::string many;
  for (size_t i = 0; i <= common::kMaxRecords; ++i) many += std::string("\x0a\0", 2);  // field 1
  const auto* const pool = google::protobuf::DescriptorPool::generated_pool();
  int methods = 0;
  for (const char* name :
       {"retroinfer.kvstore.v1.KvStoreService", "retroinfer.kvstore.v1.ContextStoreService"}) {
    const auto* const service = pool->FindServiceByName(name);
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i, ++methods) {
      const std::string path = absl::StrCat("/", name, "/", service->method(i)->name());
      const absl::Status empty = test_support::RawCall(channel, path, "");
      EXPECT_FALSE(absl::IsUnimplemented(empty)) << path;
      if (service->method(i)->client_streaming()) continue;
      const absl::Status status = test_support::RawCall(channel, path, many);
      EXPECT_EQ(common::ReasonOf(status).reason, "REQUEST_TOO_LARGE") << path << status;
    }
  }
  EXPECT_GT(methods, 15);
}

TEST_F(StoreServerTest, RefusesBadOptionsWithTheirNames) {
  StoreServerOptions good = options_;
  const auto refused = [&](auto change, absl::StatusCode code, const std::string& text) {
    options_ = good;
    change(options_);
    const absl::Status status = Start();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  refused(
      [](auto& o) {
        o.arena_bytes = 4097 << 10;
        --o.arena_bytes;
      },
      kInvalid, "--arena-bytes");
  refused([](auto& o) { o.arena_bytes = 0; }, kInvalid, "--arena-bytes");
  refused([](auto& o) { o.arena_bytes = uint64_t{1} << 50; }, kInvalid, "--arena-bytes");
  refused([](auto& o) { o.arena_bytes = uint64_t{1} << 42; }, absl::StatusCode::kResourceExhausted,
          "needs 4398046511104 bytes");
  refused([](auto& o) { o.watermarks = {0.5, 0.4}; }, kInvalid, "watermarks");
  refused([](auto& o) { o.watermarks = {0.5, 1.1}; }, kInvalid, "watermarks");
  refused([](auto& o) { o.durable.limits.low_watermark = 0; }, kInvalid, "--cache-low-watermark");
  refused([](auto& o) { o.durable.limits.high_watermark = 0.5; }, kInvalid, "needs 0 < low");
  refused([](auto& o) { o.durable.limits.idle_ttl = absl::ZeroDuration(); }, kInvalid,
          "--cache-ttl");
  refused([](auto& o) { o.socket_dir = "relative"; }, kInvalid, "--socket-dir");
  refused([](auto& o) { o.socket_dir = "/" + std::string(100, 'x'); }, kInvalid, "--socket-dir");
  refused([](auto& o) { o.metrics_address = "nowhere:x"; }, kInvalid, "metrics");
  refused([](auto& o) { o.listen = "256.0.0.1:1"; }, absl::StatusCode::kUnavailable, "256.0.0.1");
}

TEST_F(StoreServerTest, MakesAPrivateFolderInOneThatOthersMayEnter) {
  ASSERT_EQ(::mkdir(options_.socket_dir.c_str(), 0700), 0);
  for (const mode_t mode : {0777, 02777, 01777}) {
    ASSERT_EQ(::chmod(options_.socket_dir.c_str(), mode), 0);
    const auto server = StoreServer::Start(options_);
    ASSERT_TRUE(server.ok()) << server.status();
    EXPECT_EQ((*server)->socket_dir(),
              absl::StrCat(options_.socket_dir, "/retroinfer-", ::geteuid()));
    struct stat info {};
    ASSERT_EQ(::stat(((*server)->socket_dir() + "/kv_store.sock").c_str(), &info), 0);
    ASSERT_EQ(::stat((*server)->socket_dir().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
  }
}

TEST_F(StoreServerTest, RefusesAPrivateFolderThatIsNot) {
  ASSERT_EQ(::mkdir(options_.socket_dir.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(options_.socket_dir.c_str(), 0777), 0);
  const std::string inside = absl::StrCat(options_.socket_dir, "/retroinfer-", ::geteuid());
  const auto refused = [&](const std::string& text) {
    const absl::Status status = Start();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(inside + " is " + text));
    std::filesystem::remove(inside);
  };
  ASSERT_EQ(::mkdir(inside.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(inside.c_str(), 0750), 0);
  refused("a folder of user");
  std::filesystem::create_directory_symlink("/tmp", inside);
  refused("a symbolic link of user");
  std::ofstream(inside) << "x";
  refused("a regular file of user");
  if (::geteuid() != 0) return;
  ASSERT_EQ(::mkdir(inside.c_str(), 0700), 0);
  ASSERT_EQ(::chown(inside.c_str(), 65534, 65534), 0);
  refused("a folder of user 65534 with mode 0700, must be a folder of user 0");
}

TEST_F(StoreServerTest, SaysWhatAFolderAroundItNeeds) {
  options_.socket_dir = folder_.path() + "/no/such";
  EXPECT_THAT(std::string(Start().message()),
              AllOf(HasSubstr("--socket-dir: making the folder"), HasSubstr("must exist")));
}

TEST_F(StoreServerTest, RefusesAFolderThatAnotherStoreUses) {
  auto first = StoreServer::Start(options_);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(Start().code(), absl::StatusCode::kAlreadyExists);
  first->reset();
  EXPECT_TRUE(Start().ok());
}

TEST_F(StoreServerTest, CanBeStoppedWhileItWaitsForAWorker) {
  { ASSERT_TRUE(Start().ok()); }
  ASSERT_TRUE(StateFile(options_.socket_dir + "/kv_store.state")
                  .Write({::getpid(), 1 << 20, {1, 1, 64, kF32Kv}, "model"})
                  .ok());
  const auto mark = common::WorkerMark::Hold(options_.socket_dir);
  ASSERT_TRUE(mark.ok()) << mark.status();
  auto server = StoreServer::Start(options_);
  ASSERT_TRUE(server.ok()) << server.status();
  int calls = 0;
  EXPECT_TRUE(absl::IsCancelled((*server)->ObtainArena([&] { return ++calls == 3; })));

  options_.adopt_wait = absl::ZeroDuration();
  server->reset();
  auto second = StoreServer::Start(options_);
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE((*second)->ObtainArena([] { return false; }).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
