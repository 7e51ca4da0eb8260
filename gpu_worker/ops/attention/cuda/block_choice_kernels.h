// The kernels that choose blocks of keys for the units of a slice (chosen_blocks.h): one of those
// that weigh blocks, then the one that chooses.
//
// What a pair of a unit and a head gets depends neither on its slice nor on its place in a tile:
// products are summed in one order, blocks behind a unit are not looked at, and shares of the
// weight are counted as integers.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace retroinfer::cuda {

struct ChoiceLaunch {
  const std::byte* queries = nullptr;  // device, [64 num_units, query_stride] bf16
  int64_t query_stride = 0;            // elements
  const std::byte* keys = nullptr;     // device, [num_kv_heads][capacity][head_dim]
  int64_t capacity = 0;
  int32_t num_kv_heads = 0;
  int32_t group = 0;  // query heads of a KV head
  int32_t head_dim = 0;
  int32_t first_unit = 0;  // of the slice, counted from the sequence's first
  int32_t num_units = 0;
  int32_t num_blocks = 0;  // of the slice's last unit, and places in `weights` of each pair
  float scale_log2 = 0;    // sums over antidiagonals times this are exponents of 2
  float threshold = 0;     // share of the weight
  // Device; see ChoiceLayout.
  float* weights = nullptr;
  uint32_t* words = nullptr;
  int32_t words_of_pair = 0;
  int32_t* counts = nullptr;
  int32_t* order = nullptr;
};

// Fill `weights`.
//
// Any head_dim, group and alignment; bf16 or f32 keys. Slow.
cudaError_t LaunchPlainBlockWeights(const ChoiceLaunch& launch, bool f32_kv, cudaStream_t stream);
// bf16 on Hopper: head_dim a multiple of 64, groups of at most kMostHopperChoiceGroup, all rows at
// multiples of 16 bytes.
inline constexpr int32_t kMostHopperChoiceGroup = 16;
inline constexpr uint32_t kHopperChoiceKeys = 256;
struct HopperChoiceMaps {
  // [groups of queries][16][query heads][head_dim], in boxes of [units' groups, 1, group, 64
  // columns], swizzled by 128 bytes.
  CUtensorMap queries;
  // [num_kv_heads][groups of keys][16 * head_dim], in boxes of [kHopperChoiceKeys groups, 64
  // columns]; zero from the last whole group on.
  CUtensorMap keys;
};
// Units of a box of `queries`.
constexpr int32_t HopperChoiceUnits(int32_t group) { return kMostHopperChoiceGroup / group; }
cudaError_t LaunchHopperBlockWeights(const ChoiceLaunch& launch, const HopperChoiceMaps& maps,
                                     cudaStream_t stream);

// Fills `words`, `counts` and `order` from `weights`.
cudaError_t LaunchChooseBlocks(const ChoiceLaunch& launch, cudaStream_t stream);
// Fills `order` from `counts`: the longest tiles first, so that none is left over.
cudaError_t LaunchOrderTiles(const ChoiceLaunch& launch, cudaStream_t stream);

}  // namespace retroinfer::cuda
