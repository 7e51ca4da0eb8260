// The data plane of one attachment: its memory, and the thread that serves it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/shm/sealed_memory.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/data_plane/data_plane_server.h"

namespace retroinfer::kvstore {

// What a worker asks for.
struct PlaneSizes {
  uint32_t num_slots = 0;
  uint32_t log_capacity = 0;
  uint32_t request_capacity = 0;
};

// To make a plane touches all its memory, up to 1.2 GiB, and builds tables of the size of the
// arena; to end one gives all of that back. Neither belongs under a lock that calls take.
//
// Threads: Start() and Stop() one at a time; the rest on any thread.
// Owns:    the memory and the thread.
class WorkerPlane {
 public:
  using MakeMemory = std::function<absl::StatusOr<common::SealedMemory>(uint64_t bytes)>;

  // Makes new memory with `make_memory`; empty: as SealedMemory::Create().
  //
  // REQUIRES: DataPlane::ValidateSizes() is OK.
  // Returns: RESOURCE_EXHAUSTED if there is not that much.
  static absl::StatusOr<std::unique_ptr<WorkerPlane>> Make(const PlaneSizes& sizes,
                                                           uint64_t arena_pages,
                                                           const Watermarks& watermarks,
                                                           const MakeMemory& make_memory);
  // Takes over the memory of an earlier store process's plane. The beginning of its log is not
  // known: entries are ignored until a kReset.
  //
  // Returns: INVALID_ARGUMENT if it is not sealed memory with a data plane of these sizes;
  //          FAILED_PRECONDITION if it says that the arena was given to another worker.
  static absl::StatusOr<std::unique_ptr<WorkerPlane>> Adopt(common::UniqueFd fd,
                                                            const PlaneSizes& sizes,
                                                            uint64_t arena_pages,
                                                            const Watermarks& watermarks);
  ~WorkerPlane() { Stop(); }

  // Returns: RESOURCE_EXHAUSTED if the system gives no thread for it.
  absl::Status Start() { return server_.Start(); }
  // Waits for the thread: at most one round and one sleep.
  void Stop() { server_.Stop(); }

  // Tells the worker of this plane, for ever, that another worker has the arena.
  void NotifyArenaTaken() { plane_.arena_taken().store(1, std::memory_order_seq_cst); }

  uint64_t num_bytes() const { return plane_.header().total_bytes; }
  int fd() const { return memory_.fd(); }
  DataPlaneStats stats() const { return server_.stats(); }
  uint64_t num_rounds() const { return server_.num_rounds(); }

 private:
  WorkerPlane(common::SealedMemory memory, const DataPlane& plane,
              const DataPlaneServer::Options& options)
      : memory_(std::move(memory)), plane_(plane), server_(plane, options) {}

  const common::SealedMemory memory_;
  DataPlane plane_;  // of memory_
  DataPlaneServer server_;
};

}  // namespace retroinfer::kvstore
