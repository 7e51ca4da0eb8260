// Unicode normalisation form C.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace retroinfer {

// Returns the NFC form of `text` (Unicode Standard Annex 15) as Hugging Face tokenizers forms it:
// by the tables of Unicode 9, in which newer characters have no part.
//
// REQUIRES: `text` is valid UTF-8.
// Returns:  RESOURCE_EXHAUSTED if the text is over 512 MiB; INTERNAL if the Unicode library
// refuses. Cost:     O(n log n) at worst, for text of nothing but combining marks; ASCII is only
// copied.
absl::StatusOr<std::string> NormalizeNfc(std::string_view text);

}  // namespace retroinfer
