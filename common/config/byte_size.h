// Sizes in bytes as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace retroinfer::common {

// Parses a non-negative number, with or without a fraction, and a unit: none or B; K, Ki, KiB and
// so on for M, G, T (powers of 1024); KB, MB, GB, TB (powers of 1000). Case does not matter; a
// space may stand before the unit.
//
// Returns: INVALID_ARGUMENT for anything else, or more than 2^63 - 1 bytes.
absl::StatusOr<uint64_t> ParseByteSize(std::string_view text);

// Returns the size with the largest binary unit that leaves at least 1, for people: "1.50 GiB".
std::string FormatByteSize(uint64_t bytes);

}  // namespace retroinfer::common
