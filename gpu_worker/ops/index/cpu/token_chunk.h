// Tokens of one cluster, whose pages the CPU's selection of pages weighs at once, and the queries
// that it weighs them for.
#pragma once

#include <cstdint>

namespace retroinfer::cpu {

inline constexpr int32_t kChunkTokens = 64;  // whole pages of any format, as a dense block has

struct TokenChunk {
  int32_t count;  // from the first token of a page on
  int32_t group;
  uint32_t head_dim;
  uint32_t per_page;
  const uint8_t* codes[kChunkTokens];
  uint16_t scales[kChunkTokens];  // factors, as f16
  uint16_t errors[kChunkTokens];
  // Turned queries in whole steps, [group][4][head_dim / 4]: channels by their place in a byte of a
  // code. Levels are taken 10 larger than they are, 7 c - (c >> 1) of code c, so that 10 times the
  // sum of a query has to be subtracted.
  const int16_t* queries;
  const int32_t* offsets;     // that, [group]
  const float* steps;         // [group], times 1 / sqrt(d)
  const float* half_squares;  // [group]: half the variance of a logit's error, over error^2
  const float* scores;        // [group], of the cluster
};

}  // namespace retroinfer::cpu
