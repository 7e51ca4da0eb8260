// Which blocks of keys a row of a prompt attends to, where it does not attend to all (sparse
// prefill, docs/decisions/0097-sparse-prefill.md).
//
// Rows are in units of 64 tokens (common/kv/query_units.h). All rows of a unit and a query head
// attend to the same blocks of 128 keys, at [128 b, 128 (b + 1)), each as far as the row sees it:
//
//   floor   the sink's block, the blocks that hold the unit, and the blocks of the 128 tokens
//           before it;
//   chosen  the blocks of most estimated weight, until floor and chosen ones hold `threshold` of
//   it.
//           Of equal blocks the first comes first.
//
// The estimate is XAttention's (Xu et al., 2025): tokens in groups of 16, keys at multiples of 16,
// queries from the unit's first on. A pair of groups scores the sum over its antidiagonal, query s
// times key 15 - s, over 16; a softmax over the groups of keys that do not end behind the group of
// queries makes weights, and a block's weight is their sum over its groups of keys and the unit's
// groups of queries.
//
// So a choice follows from the unit's rows and the keys before its end alone. Rows of units that
// begin before `dense_before`, and rows of a unit that a call does not hold whole, attend to all
// keys before them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/kv/query_units.h"

namespace retroinfer {

inline constexpr int64_t kChoiceBlock = 128;  // keys
inline constexpr int64_t kChoiceGroup = 16;   // tokens

struct BlockChoice {
  float threshold = 0;  // share of the estimated weight, in (0, 1); 0: all rows attend to all keys
  int64_t dense_before = 0;  // tokens

  constexpr bool chooses() const { return threshold > 0; }
};

// Sparse prefill, as requests may ask for it. A prompt of dense_before tokens is exact. Measured in
// docs/evaluation/sparse-prefill.md.
inline constexpr BlockChoice kSparsePrefill = {.threshold = 0.98f, .dense_before = 4096};

// Tokens [begin, end) of units that attend to chosen blocks; begin >= end: there are none.
struct ChoosingTokens {
  int64_t begin = 0;
  int64_t end = 0;
};

// Of the tokens [first, end) that a call holds.
constexpr ChoosingTokens ChoosingOf(const BlockChoice& choice, int64_t first, int64_t end) {
  if (!choice.chooses()) return {};
  const int64_t last = end - kSinkTokens;
  return {.begin = UnitFrom(std::max(first, choice.dense_before)),
          .end = last < 0 ? 0 : kSinkTokens + last / kQueryUnit * kQueryUnit};
}

}  // namespace retroinfer
