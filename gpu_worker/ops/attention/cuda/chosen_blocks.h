// Which blocks of keys units of queries attend to, in device memory, and the working memory in
// which they are chosen (ops/attention/block_choice.h). Free of CUDA, so that memory can be planned
// where there is none.
//
// Working memory is for a slice of a call's units: as many as fit into kMostChoiceBytes, which hold
// a pass of 1,024 rows of 32 heads at a million tokens.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/attention/block_choice.h"

namespace retroinfer::cuda {

// Bit b % 32 of word b / 32 of a pair says whether it attends to block b; pair u * query_heads + h
// is unit u of the slice and query head h. Bits behind the last block are 0.
struct ChosenBlocks {
  const uint32_t* words = nullptr;  // device, [units * query_heads][words_of_pair]
  int32_t words_of_pair = 0;
};

inline constexpr int64_t kChoiceGroupsOfUnit = kQueryUnit / kChoiceGroup;
inline constexpr int64_t kChoiceGroupsOfBlock = kChoiceBlock / kChoiceGroup;
inline constexpr size_t kMostChoiceBytes = size_t{72} << 20;

constexpr int64_t ChoiceBlocksOf(int64_t tokens) {
  return (tokens + kChoiceBlock - 1) / kChoiceBlock;
}

// Where the parts of a slice's working memory begin, in bytes:
//   weights  [pairs][blocks][kChoiceGroupsOfUnit] f32, of each group of queries: the logarithm to
//            base 2 of a block's weight
//   words    [pairs][words_of_pair] u32
//   counts   [pairs] i32: blocks of a pair
//   order    [tiles] i32: tiles of two units of a head, in the order in which they are worked on
struct ChoiceLayout {
  constexpr ChoiceLayout(int64_t num_units, int64_t query_heads, int64_t num_blocks) {
    const auto pairs = static_cast<size_t>(num_units * query_heads);
    words_of_pair = (num_blocks + 31) / 32;
    words = pairs * static_cast<size_t>(num_blocks * kChoiceGroupsOfUnit) * sizeof(float);
    counts = words + pairs * static_cast<size_t>(words_of_pair) * sizeof(uint32_t);
    order = counts + pairs * sizeof(int32_t);
    end = order + pairs * sizeof(int32_t);
  }

  int64_t words_of_pair = 0;
  size_t words = 0, counts = 0, order = 0, end = 0;
};

constexpr size_t ChoiceBytesOfUnit(int64_t query_heads, int64_t num_blocks) {
  return ChoiceLayout(1, query_heads, num_blocks).end;
}

// For calls of at most `max_rows` rows, of tokens before `max_tokens`.
constexpr size_t PrefillAttentionScratchBytes(int64_t max_rows, int64_t max_tokens,
                                              int64_t query_heads) {
  const size_t unit = ChoiceBytesOfUnit(query_heads, ChoiceBlocksOf(max_tokens));
  return std::min(static_cast<size_t>(max_rows / kQueryUnit) * unit,
                  std::max(unit, kMostChoiceBytes));
}

}  // namespace retroinfer::cuda
