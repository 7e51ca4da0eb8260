// Rows of a batch that a kernel works on together, so that what they have in common is read once:
// neighbours with the same list of blocks are rows of one sequence. Who is joined with whom is read
// on the device, since a recorded step knows no more than the number of rows. What a row gets does
// not depend on whom it is joined with.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer::cuda {

// Whether row `row` > 0 is joined to the one before it.
__device__ inline bool IsJoined(const MetaIndexView* indexes, uint32_t row) {
  return indexes[row].block_ids == indexes[row - 1].block_ids &&
         indexes[row].num_blocks == indexes[row - 1].num_blocks;
}

// How many rows from `row` on are joined, itself included; at most 32. `indexes`: of all `num_rows`
// rows. Called by whole warps.
__device__ inline uint32_t NumJoined(const MetaIndexView* indexes, uint32_t row,
                                     uint32_t num_rows) {
  const uint32_t lane = threadIdx.x % 32, next = row + 1 + lane;
  const bool is_joined = lane < 31 && next < num_rows && IsJoined(indexes, next);
  return static_cast<uint32_t>(__ffs(static_cast<int>(~__ballot_sync(0xffffffffu, is_joined))));
}

}  // namespace retroinfer::cuda
