// Free text up to the first occurrence of a tag, and free text without one.
#pragma once

#include <cstddef>
#include <string_view>

#include "text/constraint/expression.h"

namespace retroinfer::constraint {

inline constexpr size_t kTagCharactersMax = 256;

// Returns any text of characters up to the first `tag`, with the tag.
//
// REQUIRES: `tag` is UTF-8 of 1 to kTagCharactersMax characters.
ExpressionPtr TextUntil(std::string_view tag);

// Returns any text of characters, an empty one too, that nowhere contains `tag`.
//
// REQUIRES: as TextUntil().
ExpressionPtr TextWithout(std::string_view tag);

}  // namespace retroinfer::constraint
