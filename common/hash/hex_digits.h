// Bytes out of hexadecimal digits. absl::HexStringToBytes() is not used for this: its form differs
// between the years of abseil that distributions carry, and its older one takes what is not
// hexadecimal.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace retroinfer::common {

// Returns the bytes that `digits` stand for, two digits of either case a byte, the high one first;
// nothing if their number is odd or one of them is not a hexadecimal digit.
std::optional<std::string> BytesOfHexDigits(std::string_view digits);

}  // namespace retroinfer::common
