#include "kv_store_service/lease/handed_back_memory.h"

#include <utility>

#include "common/status/status_macros.h"

namespace retroinfer::kvstore {

absl::StatusOr<HandedBackMemory> AdoptHandedBackMemory(common::UniqueFd arena_fd,
                                                       std::vector<common::UniqueFd> plane_fds,
                                                       const AttachParameters& declared,
                                                       uint64_t arena_bytes_max,
                                                       const Watermarks& watermarks) {
  HandedBackMemory memory;
  ASSIGN_OR_RETURN(common::SealedMemory arena,
                   common::SealedMemory::Adopt(std::move(arena_fd), arena_bytes_max));
  memory.arena = std::make_shared<const Arena>(std::move(arena));
  ASSIGN_OR_RETURN(memory.planes,
                   WorkerPlanes::Adopt(std::move(plane_fds), declared.plane_sizes(),
                                       memory.arena->num_bytes() / kPageBytes, watermarks));
  return memory;
}

}  // namespace retroinfer::kvstore
