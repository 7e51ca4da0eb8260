#include "text/jinja/characters.h"

#include <utf8proc.h>

#include <algorithm>

namespace retroinfer::jinja {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

utf8proc_category_t CategoryOf(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool IsContinuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

}  // namespace

Character FirstCharacter(std::string_view text) {
  const auto first = static_cast<uint8_t>(text.front());
  if (first < 0x80) return {first, 1};
  utf8proc_int32_t code = 0;
  const utf8proc_ssize_t length =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(text.size()), &code);
  if (length <= 0) return {kReplacement, 1};
  return {static_cast<char32_t>(code), static_cast<size_t>(length)};
}

Character LastCharacter(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && IsContinuation(text[begin])) --begin;
  return FirstCharacter(text.substr(begin));
}

void AppendCharacter(char32_t code, std::string& out) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const Character character = FirstCharacter(text);
    if (character.code == kReplacement && character.length == 1) return false;
    text.remove_prefix(character.length);
  }
  return true;
}

size_t CountCharacters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return !IsContinuation(byte); }));
}

size_t OffsetOfCharacter(std::string_view text, size_t index) {
  size_t offset = 0;
  for (; offset < text.size(); ++offset) {
    if (IsContinuation(text[offset])) continue;
    if (index == 0) return offset;
    --index;
  }
  return offset;
}

bool IsSpace(char32_t code) {
  if (code < 0x80) return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20);
  if (code == 0x85) return true;
  const utf8proc_category_t category = CategoryOf(code);
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

bool IsAlpha(char32_t code) {
  const utf8proc_category_t category = CategoryOf(code);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsDecimal(char32_t code) { return CategoryOf(code) == UTF8PROC_CATEGORY_ND; }

bool IsUpper(char32_t code) { return CategoryOf(code) == UTF8PROC_CATEGORY_LU; }

bool IsLower(char32_t code) { return CategoryOf(code) == UTF8PROC_CATEGORY_LL; }

bool IsPrintable(char32_t code) {
  switch (CategoryOf(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code == ' ';
    default:
      return true;
  }
}

void AppendUpper(char32_t code, std::string& out) {
  constexpr char32_t kSharpS = 0xDF;
  if (code == kSharpS) {
    out.append("SS");
    return;
  }
  AppendCharacter(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))),
                  out);
}

void AppendLower(char32_t code, std::string& out) {
  AppendCharacter(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))),
                  out);
}

}  // namespace retroinfer::jinja
