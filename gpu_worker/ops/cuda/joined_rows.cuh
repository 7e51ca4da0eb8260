// Rows of a batch that a kernel works on together, so that what they have in common is read once:
// neighbours with the same list of blocks are rows of one sequence. Who is joined with whom is read
// on the device, since a recorded step knows no more than the number of rows.
//
// Rows are joined within aligned runs of kMaxJoinedRows, so that a block looks at no more of them.
// What a row gets does not depend on whom it is joined with.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer::cuda {

constexpr uint32_t kMaxJoinedRows = 8;

__device__ inline bool HaveSameList(const MetaIndexView& a, const MetaIndexView& b) {
  return a.block_ids == b.block_ids && a.num_blocks == b.num_blocks;
}
__device__ inline bool HaveSameList(const DenseZone& a, const DenseZone& b) {
  return a.block_ids == b.block_ids;
}

// How many rows from `row` on are worked on together; 0 if the row is joined to the one before it.
// Called by whole warps. `lists`: of all `num_rows` rows.
template <typename List>
__device__ int32_t NumJoined(const List* lists, uint32_t row, uint32_t num_rows) {
  const uint32_t place = row % kMaxJoinedRows, lane = threadIdx.x % 32;
  const uint32_t of_lane = row - place + lane;
  const bool is_joined = lane > 0 && lane < kMaxJoinedRows && of_lane < num_rows &&
                         HaveSameList(lists[of_lane], lists[of_lane - 1]);
  const uint32_t joined = __ballot_sync(0xffffffffu, is_joined);
  if ((joined >> place & 1) != 0) return 0;
  return __ffs(static_cast<int>(~(joined >> (place + 1))));
}

}  // namespace retroinfer::cuda
