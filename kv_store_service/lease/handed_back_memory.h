// The memory that a worker hands to a restarted store.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/arena/arena.h"
#include "kv_store_service/lease/worker_lease.h"
#include "kv_store_service/lease/worker_plane.h"

namespace retroinfer::kvstore {

struct HandedBackMemory {
  ArenaRef arena;
  std::shared_ptr<WorkerPlane> plane;
};

// Maps the arena and the data plane that a worker hands back, and checks them.
//
// Returns: INVALID_ARGUMENT if one of them is not sealed memory, the arena has more than
//          `arena_bytes_max` bytes, or the plane does not fit what the worker declared;
//          FAILED_PRECONDITION if another worker had the arena since.
absl::StatusOr<HandedBackMemory> AdoptHandedBackMemory(common::UniqueFd arena_fd,
                                                       common::UniqueFd plane_fd,
                                                       const AttachParameters& declared,
                                                       uint64_t arena_bytes_max,
                                                       const Watermarks& watermarks);

}  // namespace retroinfer::kvstore
