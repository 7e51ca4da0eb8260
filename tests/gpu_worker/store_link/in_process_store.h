// The real store inside the test process.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kv_store_service/server/store_server.h"
#include "tests/kv_store_service/segment_writer.h"
#include "tests/kv_store_service/temporary_folder.h"

namespace retroinfer {

// Threads: one. Owns: the store and its folder.
class InProcessStore {
 public:
  static constexpr uint64_t kArenaBytes = 8 << 20;

  // With a folder: segments are kept there, too.
  explicit InProcessStore(std::string disk_folder = "", uint64_t arena_bytes = kArenaBytes)
      : disk_folder_(std::move(disk_folder)), arena_bytes_(arena_bytes) {
    Start();
  }

  // `adopt_wait`: for a worker that an earlier store had. Its process, this one, lives even if the
  // worker is gone.
  void Start(absl::Duration adopt_wait = absl::Seconds(30)) {
    kvstore::StoreServerOptions options;
    options.arena_bytes = arena_bytes_;
    options.socket_dir = folder_.path();
    options.durable.folder = disk_folder_;
    options.adopt_wait = adopt_wait;
    auto server = kvstore::StoreServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const absl::Status status = server_->ObtainArena([] { return false; });
    ASSERT_TRUE(status.ok()) << status;
  }
  // Without the worker's leave: it sees the connection end.
  void Stop() { server_.reset(); }

  const std::string& folder() const { return folder_.path(); }
  std::string target() const { return "unix:" + folder_.path() + "/kv_store.sock"; }

  kvstore::v1::GetStatsResponse Stats() const {
    auto stub = kvstore::v1::KvStoreService::NewStub(
        grpc::CreateChannel(target(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    kvstore::v1::GetStatsResponse stats;
    EXPECT_TRUE(stub->GetStats(&context, {}, &stats).ok());
    return stats;
  }

 private:
  const std::string disk_folder_;
  const uint64_t arena_bytes_;
  kvstore::TemporaryFolder folder_;
  std::unique_ptr<kvstore::StoreServer> server_;
};

}  // namespace retroinfer
