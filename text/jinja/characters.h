// Characters of UTF-8 text as Python's str sees them. All texts here are valid UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace retroinfer::jinja {

// A character of a text.
struct Character {
  char32_t code;
  size_t length;  // in bytes
};

// The first character of `text`, the last one, and one that replaces a byte that is not UTF-8.
//
// REQUIRES: !text.empty().
Character FirstCharacter(std::string_view text);
Character LastCharacter(std::string_view text);

void AppendCharacter(char32_t code, std::string& out);

bool IsUtf8(std::string_view text);
size_t CountCharacters(std::string_view text);
// The byte at which the character `index` begins; the length of `text` if it has fewer.
size_t OffsetOfCharacter(std::string_view text, size_t index);

// As the methods of Python's str of the same names.
bool IsSpace(char32_t code);
bool IsAlpha(char32_t code);
bool IsDecimal(char32_t code);
bool IsUpper(char32_t code);
bool IsLower(char32_t code);
// Whether repr() shows the character as it is.
bool IsPrintable(char32_t code);
// Of one character to one: mappings to several are left out, but for the German sharp s.
void AppendUpper(char32_t code, std::string& out);
void AppendLower(char32_t code, std::string& out);

}  // namespace retroinfer::jinja
