// Data planes for tests.
#pragma once

#include <memory>

#include "kv_store_service/lease/worker_plane.h"

namespace retroinfer::kvstore {

inline constexpr PlaneSizes kPlaneSizes{16, 64, 64};

inline std::shared_ptr<WorkerPlane> MakePlane() {
  return *WorkerPlane::Make(kPlaneSizes, 100, Watermarks(), nullptr);
}

// What the worker of a plane sees.
inline bool SeesArenaTaken(const WorkerPlane& plane) {
  auto memory = common::SealedMemory::Adopt(common::UniqueFd(::dup(plane.fd())), plane.num_bytes());
  return DataPlane::Open(memory->bytes())->arena_taken() != 0;
}

}  // namespace retroinfer::kvstore
