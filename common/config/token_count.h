// Numbers of tokens as people write them.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace retroinfer::common {

// Parses a whole number, or a number with or without a fraction and K (1024) or M (1024 K), as
// lengths of contexts are called: "131072", "128K", "1M". Case does not matter.
//
// Returns: INVALID_ARGUMENT for anything else, a part of a token, or a number that is not in
//          [least, most].
absl::StatusOr<int64_t> ParseTokenCount(std::string_view text, int64_t least, int64_t most);

}  // namespace retroinfer::common
