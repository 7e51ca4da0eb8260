// Asks the store for parts of segments that it reads from the disk: on a connection of its own,
// because an answer takes as long as the disk, and StoreLink's calls must not wait for it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/kv/extent.h"
#include "retroinfer/kvstore/v1/kv_store.grpc.pb.h"

namespace retroinfer {

// Threads: all methods on any thread; callbacks on threads of gRPC.
// Owns:    the channel, and the calls that are under way.
class PartFetcher {
 public:
  using Callback = std::function<void(absl::StatusOr<std::vector<uint32_t>>)>;

  // `target`: gRPC target of the store. Does not connect yet.
  explicit PartFetcher(const std::string& target);
  // Cancels what is under way, and waits for the callbacks.
  ~PartFetcher();
  PartFetcher(const PartFetcher&) = delete;
  PartFetcher& operator=(const PartFetcher&) = delete;

  // As SegmentStore::FetchParts(), for the attachment of `token`. UNAVAILABLE without a store, or
  // without an answer within `timeout`.
  void Fetch(const std::string& token, const std::vector<PartsOfExtent>& wanted,
             absl::Duration timeout, Callback callback) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Call {
    grpc::ClientContext context;
    kvstore::v1::FetchPartsRequest request;
    kvstore::v1::FetchPartsResponse response;
    Callback callback;
  };
  void Finish(std::list<Call>::iterator call, const grpc::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsQuiet() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_under_way_ == 0; }

  const std::unique_ptr<kvstore::v1::KvStoreService::Stub> stub_;

  absl::Mutex mutex_;
  std::list<Call> calls_ ABSL_GUARDED_BY(mutex_);
  size_t num_under_way_ ABSL_GUARDED_BY(mutex_) = 0;  // callbacks that have not returned
};

}  // namespace retroinfer
