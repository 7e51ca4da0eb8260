// Which contexts of which texts are measured.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace retroinfer::client {

// Lengths of context up to `longest`: 16,384 and its doubles, and `longest` itself.
std::vector<int64_t> TuneLengths(int64_t longest);

// A context of text `text` begins at its token `begin`.
struct TextWindow {
  size_t text = 0;
  int64_t begin = 0;
  friend bool operator==(const TextWindow&, const TextWindow&) = default;
};

// At most `most` windows for a context of `context` tokens and `scored` tokens behind it: of each
// text in turn, from its beginning on. A window of one of `lengths` begins where those of the
// longer ones do, so that what was read of a shorter context is the beginning of a longer one.
// REQUIRES: `lengths` ascend, and context is one of them.
std::vector<TextWindow> PlanTextWindows(std::span<const int64_t> text_tokens,
                                        std::span<const int64_t> lengths, int64_t context,
                                        int64_t scored, int64_t most);

// "0.5%" and "0.005" are 0.005.
//
// Returns: INVALID_ARGUMENT if it is no number above 0.
absl::StatusOr<double> ShareOf(std::string_view text);

}  // namespace retroinfer::client
