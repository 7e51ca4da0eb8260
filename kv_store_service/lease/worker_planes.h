// The data planes of one attachment, one for each rank of the worker: their memory, and the threads
// that serve them. A rank has slots, access log, eviction requests and stamps of its own, and knows
// the other ranks' no more than the store mixes them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/shm/sealed_memory.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/data_plane/data_plane_server.h"

namespace retroinfer::kvstore {

// What a worker asks for: planes that are alike.
struct PlaneSizes {
  uint32_t num_slots = 0;
  uint32_t log_capacity = 0;
  uint32_t request_capacity = 0;
  uint32_t num_planes = 1;
};

// To make a plane touches all its memory, up to 1.5 GiB, and builds tables of the size of the
// arena; to end one gives all of that back. Neither belongs under a lock that calls take. All
// planes together are bounded by DataPlane::ValidatePlanes().
//
// Threads: Start() and Stop() one at a time; the rest on any thread.
// Owns:    the memory and the threads.
class WorkerPlanes {
 public:
  using MakeMemory = std::function<absl::StatusOr<common::SealedMemory>(uint64_t bytes)>;

  // Makes new memory with `make_memory`, once for each plane; empty: as SealedMemory::Create().
  //
  // REQUIRES: DataPlane::ValidatePlanes() is OK.
  // Returns: RESOURCE_EXHAUSTED if there is not that much.
  static absl::StatusOr<std::unique_ptr<WorkerPlanes>> Make(const PlaneSizes& sizes,
                                                            uint64_t arena_pages,
                                                            const Watermarks& watermarks,
                                                            const MakeMemory& make_memory);
  // Takes over the memory of an earlier store process's planes, by rank. The beginnings of their
  // logs are not known: entries are ignored until a kReset.
  //
  // Returns: INVALID_ARGUMENT if there is another number of planes, or one is not sealed memory
  //          with a data plane of these sizes; FAILED_PRECONDITION if one says that the arena was
  //          given to another worker.
  static absl::StatusOr<std::unique_ptr<WorkerPlanes>> Adopt(std::vector<common::UniqueFd> fds,
                                                             const PlaneSizes& sizes,
                                                             uint64_t arena_pages,
                                                             const Watermarks& watermarks);
  ~WorkerPlanes() { Stop(); }

  // Returns: RESOURCE_EXHAUSTED if the system gives no thread for one of them; none runs then.
  absl::Status Start();
  // Waits for the threads: at most one round and one sleep of each.
  void Stop();

  // Tells the worker of these planes, for ever, that another worker has the arena.
  void NotifyArenaTaken();

  size_t size() const { return planes_.size(); }
  uint64_t num_bytes() const;  // of each
  int fd(size_t rank) const { return planes_[rank]->memory.fd(); }
  // By rank.
  std::vector<DataPlaneStats> stats() const;
  std::vector<uint64_t> num_rounds() const;

 private:
  struct Plane {
    Plane(common::SealedMemory plane_memory, const DataPlane& data_plane,
          const DataPlaneServer::Options& options)
        : memory(std::move(plane_memory)), view(data_plane), server(data_plane, options) {}

    const common::SealedMemory memory;
    DataPlane view;  // of the memory
    DataPlaneServer server;
  };

  WorkerPlanes() = default;

  std::vector<std::unique_ptr<Plane>> planes_;  // by rank; constant after construction
};

}  // namespace retroinfer::kvstore
