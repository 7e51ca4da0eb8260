// The units of rows of a prompt that choose together which keys they attend to: 64 tokens behind
// the sink, at tokens [4 + 64 u, 4 + 64 (u + 1)), which are the blocks of which KV is found again.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/kv/kv_geometry.h"

namespace retroinfer {

inline constexpr int64_t kQueryUnit = kDenseBlockTokens;

// The first token of a unit at or behind `token`.
constexpr int64_t UnitFrom(int64_t token) {
  const int64_t behind = std::max<int64_t>(0, token - int64_t{kSinkTokens});
  return kSinkTokens + (behind + kQueryUnit - 1) / kQueryUnit * kQueryUnit;
}

// Where a stretch of tokens that would end at `end`, of a prompt that goes on up to `last`, ends
// instead so that no unit is cut: at the last place from `least` on, else at the next one.
//
// REQUIRES: least <= end <= last.
constexpr int64_t EndOfUnits(int64_t least, int64_t end, int64_t last) {
  if (end <= int64_t{kSinkTokens}) return end;
  const int64_t next = UnitFrom(end);
  if (next == end || end == last) return end;
  return next - kQueryUnit >= least ? next - kQueryUnit : std::min(next, last);
}

}  // namespace retroinfer
