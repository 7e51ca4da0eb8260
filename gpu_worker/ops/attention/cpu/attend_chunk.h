// The inner loop of decode attention: a few tokens against the query heads of one group.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/kv/dtype.h"
#include "common/kv/kv_geometry.h"

namespace retroinfer::cpu {

inline constexpr int32_t kChunkTokens = 64;
inline constexpr int32_t kMaxGroup = 8;  // of a state: what registers have room for

// Where the keys and values of up to kChunkTokens tokens lie, in any order.
struct AttentionChunk {
  int32_t num_tokens = 0;
  std::array<const std::byte*, kChunkTokens> keys;    // a page's vector in the state's dtype each
  std::array<const std::byte*, kChunkTokens> values;  // the same
};

// The running softmax of the query heads that share a KV head: sum_g = sum_i exp(x_gi - max_g) and
// acc_g = sum_i exp(x_gi - max_g) v_i over the tokens i attended so far, x_gi = scale * q_g . k_i.
struct AttentionState {
  DType dtype;        // of keys and values; int8: as kEightBitTokens has it
  uint32_t head_dim;  // one of kHeadDims
  int32_t group;      // query heads, 1 to kMaxGroup
  std::array<float, kMaxGroup> max;
  std::array<float, kMaxGroup> sum;
  // Rows of head_dim; in the order in which a vector register takes elements out of memory.
  alignas(64) std::array<float, kMaxGroup * kMaxHeadDim> queries;  // times scale
  alignas(64) std::array<float, kMaxGroup * kMaxHeadDim> acc;
};

// Sets the state for `group` queries, rows of `head_dim`, with no token attended.
void BeginAttention(DType dtype, uint32_t head_dim, int32_t group, const float* queries,
                    float scale, AttentionState& state);

// Adds the tokens of `chunk`; fetches those of `next` into the cache meanwhile.
void AttendChunk(const AttentionChunk& chunk, const AttentionChunk& next, AttentionState& state);

// Writes row g of acc in its natural order to out [head_dim].
void ReadAccumulator(const AttentionState& state, int32_t g, float* out);

}  // namespace retroinfer::cpu
