// Rows of a batch that a kernel works on together, so that what they have in common is read once:
// neighbours with the same list of blocks are rows of one sequence. Who is joined with whom is read
// on the device, since a recorded step knows no more than the number of rows. What a row gets does
// not depend on whom it is joined with.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer::cuda {

constexpr uint32_t kMaxJoinedRows = 16;

// How many rows from `row` on are worked on together, itself included. `indexes`: of all `num_rows`
// rows. Called by whole warps.
__device__ inline uint32_t NumJoined(const MetaIndexView* indexes, uint32_t row,
                                     uint32_t num_rows) {
  const uint32_t next = row + 1 + threadIdx.x % 32;
  const bool is_same = threadIdx.x % 32 + 1 < kMaxJoinedRows && next < num_rows &&
                       indexes[next].block_ids == indexes[row].block_ids &&
                       indexes[next].num_blocks == indexes[row].num_blocks;
  return static_cast<uint32_t>(__ffs(static_cast<int>(~__ballot_sync(0xffffffffu, is_same))));
}

}  // namespace retroinfer::cuda
