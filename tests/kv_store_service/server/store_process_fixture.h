// A running kv_store_service program and calls to it, for tests.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "build_paths.h"
#include "common/rpc/grpc_status.h"
#include "gpu_worker/store_link/store_link.h"
#include "retroinfer/kvstore/v1/kv_store.grpc.pb.h"
#include "tests/kv_store_service/segment_writer.h"
#include "tests/kv_store_service/server/child_process.h"

namespace retroinfer::kvstore {

class StoreProcessTest : public testing::Test {
 protected:
  StoreProcessTest()
      : folder_(absl::StrCat("/tmp/rt_store_test.", ::getpid())),
        log_path_(absl::StrCat(testing::TempDir(), "store_process_test.", ::getpid(), ".log")) {
    std::filesystem::remove_all(folder_);
    std::filesystem::remove(log_path_);
  }
  ~StoreProcessTest() override {
    if (HasFailure()) std::fprintf(stderr, "log of the processes:\n%s\n", store_->Log().c_str());
    store_.reset();
    std::filesystem::remove_all(folder_);
    std::filesystem::remove(log_path_);
  }

  void StartStore(std::vector<std::string> extra = {}) {
    std::vector<std::string> arguments = {
        absl::StrCat(RETROINFER_BINARY_DIR, "/bin/kv_store_service"),
        "--socket-dir",
        folder_,
        "--arena-bytes",
        arena_bytes_,
        "--metrics-address",
        ""};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    store_ = std::make_unique<ChildProcess>(arguments, log_path_);
    channel_ = grpc::CreateCustomChannel(target(), grpc::InsecureChannelCredentials(), Arguments());
    stub_ = v1::KvStoreService::NewStub(channel_);
  }

  static grpc::ChannelArguments Arguments() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 50);
    return arguments;
  }

  std::string target() const { return "unix:" + folder_ + "/kv_store.sock"; }

  StoreLinkOptions LinkOptions() const {
    StoreLinkOptions options;
    options.target = target();
    options.geometry = kTinyGeometry;
    options.model_fingerprint = "model";
    options.num_slots = 100;
    options.log_capacity = 256;
    options.request_capacity = 64;
    options.attach_timeout = absl::Seconds(20);
    return options;
  }

  v1::GetStatsResponse Stats() {
    v1::GetStatsResponse response;
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
    context.set_wait_for_ready(true);
    const grpc::Status status = stub_->GetStats(&context, {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  static absl::StatusOr<std::vector<Extent>> Reserve(StoreLink& link, ReserveRequest request) {
    absl::Notification done;
    absl::StatusOr<std::vector<Extent>> result;
    link.Reserve(std::move(request), [&](absl::StatusOr<std::vector<Extent>> extents) {
      result = std::move(extents);
      done.Notify();
    });
    done.WaitForNotification();
    return result;
  }
  static absl::StatusOr<std::vector<Extent>> Reserve(StoreLink& link, uint64_t sequence,
                                                     std::vector<uint32_t> tokens) {
    return Reserve(link, ReserveRequest::Unnamed(sequence, tokens));
  }

  static absl::Status Commit(StoreLink& link, uint64_t sequence,
                             std::vector<CommittedSegment> segments) {
    absl::Notification done;
    absl::Status result;
    link.Commit(sequence, std::move(segments), [&](absl::Status status) {
      result = std::move(status);
      done.Notify();
    });
    done.WaitForNotification();
    return result;
  }

  static std::span<std::byte> BytesOf(StoreLink& link, const Extent& extent) {
    return link.arena().subspan(size_t{extent.first_page} * kPageBytes,
                                size_t{extent.num_pages} * kPageBytes);
  }

  std::string arena_bytes_ = "16MiB";
  std::string folder_;
  std::string log_path_;
  std::unique_ptr<ChildProcess> store_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::KvStoreService::Stub> stub_;
};

}  // namespace retroinfer::kvstore
