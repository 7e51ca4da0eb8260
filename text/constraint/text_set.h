// Sets of tokens that free text takes as they are, which spares most of the walk over the
// vocabulary where a mask is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "text/constraint/code_point_set.h"

namespace retroinfer::constraint {

// Each is the set of those tokens that consist of whole characters of a set.
enum class TextSet : uint8_t {
  kJsonText,   // all that a JSON string holds without an escape: no quote, backslash or control
  kNoAngle,    // all but '<', with which most tags begin
  kNoBracket,  // all but '['
};
inline constexpr size_t kNumTextSets = 3;

// The characters of a set.
CodePointSet CharactersOf(TextSet set);

// A set whose tokens nowhere contain `code`; nothing if there is none.
std::optional<TextSet> TextSetWithout(char32_t code);

// Sets of sets.
using TextSetBits = uint8_t;
constexpr TextSetBits BitOf(TextSet set) {
  return static_cast<TextSetBits>(1U << static_cast<unsigned>(set));
}

}  // namespace retroinfer::constraint
