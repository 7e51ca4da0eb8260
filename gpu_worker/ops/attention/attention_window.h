// Which of the tokens before it a row of a prompt sees.
#pragma once

#include <algorithm>
#include <cstdint>

namespace retroinfer {

// Tokens are counted by rows of LayerKv. All rows see the leading `always_seen` tokens, as far as
// these are not behind the row. The tokens behind those are in groups of `step`: a row sees its own
// group up to itself, and the `tokens - step` tokens before its group. So with a step of 1 and
// nothing that is always seen a row sees the newest `tokens` tokens, its own included.
struct AttentionWindow {
  int64_t tokens = 0;  // 0: a row sees all tokens before it; else a multiple of `step`
  int64_t step = 1;
  int64_t always_seen = 0;  // at most kMaxAlwaysSeen

  constexpr bool sees_all() const { return tokens == 0; }
  // The first token behind those always seen that `row` sees. REQUIRES: !sees_all().
  constexpr int64_t FirstSeen(int64_t row) const {
    const int64_t behind = std::max<int64_t>(0, row - always_seen);
    return always_seen + std::max<int64_t>(0, behind / step * step - (tokens - step));
  }
};

// No more than a block of keys has in any of the kernels.
inline constexpr int64_t kMaxAlwaysSeen = 32;

}  // namespace retroinfer
