#include "text/constraint/regex_scanner.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "text/constraint/invalid_constraint.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer::constraint {
namespace {

const CodePointSet& Digits() {
  static const CodePointSet* const kSet = new CodePointSet{{'0', '9'}};
  return *kSet;
}

const CodePointSet& WordCharacters() {
  static const CodePointSet* const kSet =
      new CodePointSet{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return *kSet;
}

// What all dialects take for white space, which \s writes, ...
const CodePointSet& SurelySpace() {
  static const CodePointSet* const kSet = new CodePointSet{{'\t', '\r'}, {' ', ' '}};
  return *kSet;
}

// ... and what any takes for it, which \S does not write.
const CodePointSet& MaybeSpace() {
  static const CodePointSet* const kSet =
      new CodePointSet{{'\t', '\r'},     {0x1C, ' '},      {0x85, 0x85},     {0xA0, 0xA0},
                       {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                       {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return *kSet;
}

std::optional<CodePointSet> ClassEscape(char32_t letter) {
  switch (letter) {
    case 'd':
      return Digits();
    case 'D':
      return Digits().Complement();
    case 'w':
      return WordCharacters();
    case 'W':
      return WordCharacters().Complement();
    case 's':
      return SurelySpace();
    case 'S':
      return MaybeSpace().Complement();
    default:
      return std::nullopt;
  }
}

std::optional<char32_t> ControlEscape(char32_t letter) {
  switch (letter) {
    case 't':
      return U'\t';
    case 'n':
      return U'\n';
    case 'r':
      return U'\r';
    case 'f':
      return U'\f';
    case 'v':
      return U'\v';
    default:
      return std::nullopt;
  }
}

bool IsSurrogate(char32_t code) { return code >= 0xD800 && code <= 0xDFFF; }

}  // namespace

absl::Status RegexScanner::Error(std::string_view problem) const {
  return InvalidConstraint(absl::StrCat("offset ", offset_), problem);
}

bool RegexScanner::Take(std::string_view expected) {
  if (!rest().starts_with(expected)) return false;
  offset_ += expected.size();
  return true;
}

char32_t RegexScanner::Next() {
  const Utf8Step step = NextUtf8(rest());
  offset_ += step.length;
  return step.code;
}

std::optional<int64_t> RegexScanner::TakeNumber() {
  constexpr int64_t kMax = 1'000'000'000;
  std::optional<int64_t> number;
  while (!AtEnd() && absl::ascii_isdigit(static_cast<unsigned char>(text_[offset_]))) {
    number = std::min(kMax, number.value_or(0) * 10 + (text_[offset_] - '0'));
    ++offset_;
  }
  return number;
}

std::optional<char32_t> RegexScanner::TakeHex(size_t num_digits) {
  const std::string_view digits = rest().substr(0, num_digits);
  if (digits.size() != num_digits) return std::nullopt;
  char32_t code = 0;
  for (const char digit : digits) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(digit))) return std::nullopt;
    const int value = absl::ascii_isdigit(static_cast<unsigned char>(digit))
                          ? digit - '0'
                          : absl::ascii_tolower(static_cast<unsigned char>(digit)) - 'a' + 10;
    code = code * 16 + static_cast<char32_t>(value);
  }
  offset_ += num_digits;
  return code;
}

absl::StatusOr<char32_t> RegexScanner::HexEscape(char kind) {
  std::optional<char32_t> code;
  if (Take("{")) {
    const size_t length = rest().find('}');
    if (length != std::string_view::npos && length >= 1 && length <= 6) code = TakeHex(length);
    if (!code.has_value() || !Take("}")) return Error("\\u{...} needs 1 to 6 hexadecimal digits");
  } else {
    code = TakeHex(kind == 'x' ? 2 : 4);
    if (!code.has_value()) {
      return Error(kind == 'x' ? "\\x needs two hexadecimal digits"
                               : "\\u needs four hexadecimal digits");
    }
    if (*code >= 0xD800 && *code < 0xDC00 && Take("\\u")) {
      const std::optional<char32_t> low = TakeHex(4);
      if (!low.has_value() || *low < 0xDC00 || *low > 0xDFFF) {
        return Error("a high surrogate needs a low one behind it");
      }
      code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
    }
  }
  if (*code > 0x10FFFF || IsSurrogate(*code)) return Error("names no character of Unicode");
  return *code;
}

absl::StatusOr<RegexScanner::Item> RegexScanner::EscapedItem(bool in_class) {
  if (AtEnd()) return Error("a backslash needs a character behind it");
  const char32_t letter = Next();
  if (std::optional<CodePointSet> set = ClassEscape(letter)) return Item{*std::move(set), {}};
  if (const std::optional<char32_t> code = ControlEscape(letter)) return Item{{}, code};
  if (letter == 'x' || letter == 'u') {
    ASSIGN_OR_RETURN(const char32_t code, HexEscape(static_cast<char>(letter)));
    return Item{{}, code};
  }
  const bool digit_behind =
      !AtEnd() && absl::ascii_isdigit(static_cast<unsigned char>(text_[offset_]));
  if (letter == '0' && !digit_behind) return Item{{}, U'\0'};
  if (in_class && letter == 'b') return Item{{}, U'\b'};
  if (letter == 'b' || letter == 'B') return Error("word boundaries (\\b, \\B) are not supported");
  if (letter == 'p' || letter == 'P') {
    return Error("Unicode properties (\\p) are not supported; write the characters as ranges");
  }
  if (letter == 'k' || (letter >= '0' && letter <= '9')) {
    return Error("back references are not supported");
  }
  if (letter < 0x80 && absl::ascii_isalpha(static_cast<unsigned char>(letter))) {
    return Error(absl::StrCat("the escape \\", std::string(1, static_cast<char>(letter)),
                              " is not supported"));
  }
  return Item{{}, letter};
}

absl::StatusOr<CodePointSet> RegexScanner::Escape() {
  ASSIGN_OR_RETURN(Item item, EscapedItem(false));
  if (item.single.has_value()) return CodePointSet{{*item.single, *item.single}};
  return std::move(item.set);
}

absl::StatusOr<RegexScanner::Item> RegexScanner::ClassItem() {
  if (Take("\\")) return EscapedItem(true);
  if (rest().starts_with("[:")) {
    return Error("POSIX classes ([:alpha:]) are not supported; write the characters as ranges");
  }
  return Item{{}, Next()};
}

absl::StatusOr<CodePointSet> RegexScanner::Class() {
  const bool is_negated = Take("^");
  CodePointSet set;
  while (!Take("]")) {
    if (AtEnd()) return Error("a class needs a ] at its end");
    ASSIGN_OR_RETURN(Item first, ClassItem());
    if (!first.single.has_value()) {
      set.Add(first.set);
      continue;
    }
    if (!rest().starts_with("-") || rest().starts_with("-]")) {
      set.Add(*first.single, *first.single);
      continue;
    }
    Take("-");
    if (AtEnd()) return Error("a class needs a ] at its end");
    ASSIGN_OR_RETURN(const Item last, ClassItem());
    if (!last.single.has_value()) return Error("a range needs a character at its end");
    if (*last.single < *first.single) return Error("a range needs its lower end first");
    set.Add(*first.single, *last.single);
  }
  return is_negated ? set.Complement() : set;
}

}  // namespace retroinfer::constraint
