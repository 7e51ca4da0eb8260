// Places of units and their blocks, as kernels count them.
#pragma once

#include "gpu_worker/ops/attention/cuda/chosen_blocks.h"

namespace retroinfer::cuda {

inline constexpr int kUnitTokens = static_cast<int>(kQueryUnit);
inline constexpr int kBlockTokens = static_cast<int>(kChoiceBlock);
inline constexpr int kGroupTokens = static_cast<int>(kChoiceGroup);
inline constexpr int kUnitGroups = static_cast<int>(kChoiceGroupsOfUnit);
inline constexpr int kBlockGroups = static_cast<int>(kChoiceGroupsOfBlock);
static_assert(kUnitGroups == 4 && kBlockGroups == 8);

// First token of a unit of the sequence.
__host__ __device__ constexpr int UnitBegin(int unit) {
  return static_cast<int>(kSinkTokens) + unit * kUnitTokens;
}
// Blocks of keys before the unit's end.
__host__ __device__ constexpr int BlocksOfUnit(int unit) {
  return (UnitBegin(unit + 1) + kBlockTokens - 1) / kBlockTokens;
}
// The first of the blocks that hold the unit and the 128 tokens before it.
__host__ __device__ constexpr int LocalBlock(int unit) {
  return UnitBegin(unit) < kBlockTokens ? 0 : (UnitBegin(unit) - kBlockTokens) / kBlockTokens;
}
// The last group of keys that does not end behind group `g` of the unit's queries.
__host__ __device__ constexpr int LastSeenGroup(int unit, int g) { return unit * kUnitGroups + g; }

}  // namespace retroinfer::cuda
