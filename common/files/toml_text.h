// TOML in files that may hold anything. The only place that includes toml++, which needs to be told
// a few things first.
#pragma once

#include <string_view>

#include "absl/status/status.h"

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
// In a release build toml++ has the compiler take for granted what a bad file makes false, and its
// own refusal of such a file is lost. So it is told not to.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expr) static_assert(true)
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

namespace retroinfer::common {

// Refuses characters that toml++ must not see: the tables by which it tells letters have gaps where
// its behaviour is undefined, as it is for some control characters. It looks at no letter of a
// comment, and tells none within quotation marks, if these end on their line.
//
// Returns: INVALID_ARGUMENT with the number of the line.
absl::Status CheckTomlCharacters(std::string_view text);

}  // namespace retroinfer::common
