// The byte sequences of characters.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "text/constraint/code_point_set.h"

namespace retroinfer::constraint {

struct ByteRange {
  uint8_t first;
  uint8_t last;
};

// One range for each byte of the characters: all combinations are characters of the set.
struct Utf8Path {
  std::array<ByteRange, 4> bytes;
  size_t length;
};

// Returns paths that together read the characters of `range` in UTF-8, in ascending order. A lead
// byte that paths share is a range of one byte in each, or the paths are equal up to there.
//
// REQUIRES: `range` has no surrogates.
std::vector<Utf8Path> Utf8PathsOf(const CodePointRange& range);

}  // namespace retroinfer::constraint
