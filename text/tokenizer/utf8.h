// UTF-8 as the tokenizer needs it: checking, decoding, and replacing what is not UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace retroinfer {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// What the bytes at some position of a text are.
struct Utf8Step {
  enum class Kind {
    kCharacter,   // a well-formed sequence of `length` bytes
    kInvalid,     // `length` bytes that can begin no well-formed sequence (a "maximal subpart")
    kIncomplete,  // the text ends inside a sequence that is well-formed so far
  };
  Kind kind;
  size_t length;      // in bytes, at least 1
  char32_t code = 0;  // of a kCharacter
};

// Looks at the first sequence of `text`, by table 3-7 of the Unicode standard: overlong forms,
// surrogates and code points above U+10FFFF are invalid.
//
// REQUIRES: !text.empty().
Utf8Step NextUtf8(std::string_view text);

// Returns INVALID_ARGUMENT with the offset of the first byte that is not UTF-8, or OK.
absl::Status ValidateUtf8(std::string_view text);

// Appends well-formed UTF-8 of `code`.
//
// REQUIRES: `code` is no surrogate and at most U+10FFFF.
void AppendUtf8(char32_t code, std::string& out);

// Whether `code` has the Unicode property White_Space.
bool IsWhiteSpace(char32_t code);

// The last character of `text`.
//
// REQUIRES: `text` is valid UTF-8 and not empty.
Utf8Step LastUtf8(std::string_view text);

// Moves what is complete in `bytes` to the end of `text`; each maximal invalid subpart becomes one
// U+FFFD, as the Unicode standard recommends and browsers do. What remains in `bytes` is at most 3
// bytes that can still become a character; with `at_end` they become U+FFFD too.
void DrainUtf8(std::string& bytes, bool at_end, std::string& text);

}  // namespace retroinfer
