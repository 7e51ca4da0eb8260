// The memory that a worker hands to a restarted store.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/arena/arena.h"
#include "kv_store_service/lease/worker_lease.h"
#include "kv_store_service/lease/worker_planes.h"

namespace retroinfer::kvstore {

struct HandedBackMemory {
  ArenaRef arena;
  std::shared_ptr<WorkerPlanes> planes;
};

// Maps the arena and the data planes that a worker hands back, and checks them.
//
// Returns: INVALID_ARGUMENT if one of them is not sealed memory, the arena has more than
//          `arena_bytes_max` bytes, or the planes do not fit what the worker declared;
//          FAILED_PRECONDITION if another worker had the arena since.
absl::StatusOr<HandedBackMemory> AdoptHandedBackMemory(common::UniqueFd arena_fd,
                                                       std::vector<common::UniqueFd> plane_fds,
                                                       const AttachParameters& declared,
                                                       uint64_t arena_bytes_max,
                                                       const Watermarks& watermarks);

}  // namespace retroinfer::kvstore
