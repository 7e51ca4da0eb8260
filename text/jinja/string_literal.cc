#include "text/jinja/string_literal.h"

#include <optional>

#include "text/jinja/characters.h"
#include "text/jinja/errors.h"

namespace retroinfer::jinja {
namespace {

// The character of escapes of one letter; nothing if it is none.
std::optional<char> SimpleEscape(char letter) {
  switch (letter) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case '\\':
    case '\'':
    case '"':
      return letter;
    default:
      return std::nullopt;
  }
}

int DigitValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

// Reads up to `count` digits of `base` from `at`; returns how many there were.
size_t ReadDigits(std::string_view text, size_t at, size_t count, int base, char32_t& code) {
  code = 0;
  size_t read = 0;
  while (read < count && at + read < text.size() && DigitValue(text[at + read]) < base) {
    code = code * static_cast<char32_t>(base) + static_cast<char32_t>(DigitValue(text[at + read]));
    ++read;
  }
  return read;
}

}  // namespace

absl::StatusOr<std::string> UnescapeString(std::string_view literal) {
  std::string text;
  text.reserve(literal.size());
  for (size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] != '\\' || i + 1 == literal.size()) {
      text.push_back(literal[i]);
      continue;
    }
    const char letter = literal[++i];
    if (const std::optional<char> simple = SimpleEscape(letter)) {
      text.push_back(*simple);
    } else if (letter == '\n') {
      // A line break behind a backslash is left out.
    } else if (letter == 'x' || letter == 'u' || letter == 'U' ||
               (letter >= '0' && letter <= '7')) {
      const bool octal = letter <= '7';
      const size_t wanted = octal ? 3 : letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
      const size_t begin = octal ? i : i + 1;
      char32_t code = 0;
      const size_t read = ReadDigits(literal, begin, wanted, octal ? 8 : 16, code);
      const bool is_character = code <= 0x10FFFF && !(code >= 0xD800 && code <= 0xDFFF);
      if ((!octal && read != wanted) || !is_character) {
        return Error({"a string has an escape that is no character"});
      }
      AppendCharacter(code, text);
      i = begin + read - 1;
    } else if (letter == 'N') {
      return Unsupported({"characters by name in a string"});
    } else {
      text.push_back('\\');
      text.push_back(letter);
    }
  }
  return text;
}

}  // namespace retroinfer::jinja
