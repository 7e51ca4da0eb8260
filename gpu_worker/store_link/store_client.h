// One connection to one store process: the RPCs and the descriptor socket.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/kv/named_segment.h"
#include "common/shm/fd_channel.h"
#include "common/shm/sealed_memory.h"
#include "common/shm/worker_mark.h"
#include "gpu_worker/store_link/extent_ledger.h"
#include "retroinfer/kvstore/v1/kv_store.grpc.pb.h"

namespace retroinfer {

// Arena and data planes, as descriptors and mappings.
struct SharedMemory {
  common::SealedMemory arena;
  std::vector<common::SealedMemory> data_planes;  // by rank
  std::optional<common::WorkerMark> mark;         // tells later stores that somebody holds them
};

// Threads: one at a time.
// Owns:    the channel and, once attached, the lease (the descriptor connection).
//
// While a call waits, `tick` runs at least every 20 ms; when it returns false the call is
// cancelled. Calls return absl::Status with the store's code; CANCELLED if `tick` ended them.
class StoreClient {
 public:
  using Tick = std::function<bool()>;

  StoreClient(const std::string& target, Tick tick);
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  // Returns how many pages the store's arena has, without attaching. UNAVAILABLE until it has one.
  absl::StatusOr<uint32_t> ArenaPages(absl::Duration timeout);
  // Attaches and receives the memory. Returns DATA_LOSS if it is not what was announced, or the
  // planes are not as many as were asked for.
  absl::StatusOr<SharedMemory> Attach(const kvstore::v1::AttachWorkerRequest& request,
                                      absl::Duration timeout);
  // Attaches, hands `memory` back and tells the store everything in `ledger`, in parts of
  // `part_bytes`: each step and each part may take `step_timeout`, all of them as long as they
  // need.
  absl::Status HandBack(kvstore::v1::AttachWorkerRequest request, SharedMemory& memory,
                        const ExtentLedger& ledger, absl::Duration step_timeout,
                        size_t part_bytes = kPartBytes);
  static constexpr size_t kPartBytes = 1 << 20;
  // Ends the lease in good order. Does not ask `tick`.
  void Detach(absl::Duration timeout);

  // Proves that a call is this worker's. Empty before an attachment.
  const std::string& token() const { return token_; }

  // Asks by names, and once more with the token ids that the store wants to compare.
  // `compute_anyway`: does not mind that another sequence computes the same segments.
  absl::StatusOr<std::vector<Extent>> Reserve(const ReserveRequest& request, bool compute_anyway,
                                              absl::Duration timeout);
  // Returns the extents after the cut, in the order of `segments`; Extent::cached of those that are
  // found by their name now.
  absl::StatusOr<std::vector<Extent>> Commit(uint64_t sequence_id,
                                             const std::vector<kvstore::v1::Segment>& segments,
                                             absl::Duration timeout);
  absl::Status Release(uint64_t sequence_id, absl::Duration timeout);

  // Whether the store reads segments back into the arena by itself; known once attached.
  bool store_writes_arena() const { return store_writes_arena_; }
  // Whether the store still holds the lease. Does not block.
  bool LeaseIsAlive();
  // For poll(); -1 without a lease.
  int lease_fd() const { return lease_.has_value() ? lease_->fd() : -1; }

 private:
  template <typename Request, typename Response>
  using Method = std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (
      kvstore::v1::KvStoreService::Stub::*)(grpc::ClientContext*, const Request&,
                                            grpc::CompletionQueue*);

  template <typename Request, typename Response>
  absl::Status Call(Method<Request, Response> method, const Request& request, Response* response,
                    absl::Duration timeout);
  absl::StatusOr<kvstore::v1::AttachWorkerResponse> AttachWorker(
      const kvstore::v1::AttachWorkerRequest& request, absl::Duration timeout);
  // Sends the first message on the descriptor socket and returns the store's answer.
  absl::StatusOr<common::FdMessage> Greet(const std::string& path, uint32_t type,
                                          std::span<const int> fds, absl::Duration timeout);
  absl::Status Declare(const ExtentLedger& ledger, absl::Duration part_timeout, size_t part_bytes);

  const Tick tick_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<kvstore::v1::KvStoreService::Stub> stub_;
  grpc::CompletionQueue queue_;
  std::string token_;
  uint64_t call_number_ = 0;
  bool detaching_ = false;
  bool store_writes_arena_ = false;
  std::optional<common::FdChannel> lease_;
};

}  // namespace retroinfer
