// Data planes for tests.
#pragma once

#include <unistd.h>

#include <initializer_list>
#include <memory>
#include <vector>

#include "kv_store_service/lease/worker_planes.h"

namespace retroinfer::kvstore {

inline constexpr PlaneSizes kPlaneSizes{16, 64, 64};

inline std::shared_ptr<WorkerPlanes> MakePlanes(uint32_t num_planes = 1) {
  PlaneSizes sizes = kPlaneSizes;
  sizes.num_planes = num_planes;
  return *WorkerPlanes::Make(sizes, 100, Watermarks(), nullptr);
}

inline std::vector<common::UniqueFd> CopiesOf(std::initializer_list<int> fds) {
  std::vector<common::UniqueFd> copies;
  for (const int fd : fds) copies.emplace_back(::dup(fd));
  return copies;
}

// What a worker has mapped of one of its planes.
inline common::SealedMemory MemoryOf(const WorkerPlanes& planes, size_t rank) {
  return *common::SealedMemory::Adopt(common::UniqueFd(::dup(planes.fd(rank))), planes.num_bytes());
}

// What the rank of a worker sees.
inline bool SeesArenaTaken(const WorkerPlanes& planes, size_t rank = 0) {
  const common::SealedMemory memory = MemoryOf(planes, rank);
  return DataPlane::Open(memory.bytes())->arena_taken() != 0;
}

}  // namespace retroinfer::kvstore
