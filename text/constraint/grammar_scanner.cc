#include "text/constraint/grammar_scanner.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "text/constraint/expression.h"
#include "text/constraint/invalid_constraint.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer::constraint {
namespace {

bool IsNameByte(char byte) {
  return absl::ascii_isalnum(static_cast<unsigned char>(byte)) || byte == '-' || byte == '_';
}

size_t NameLength(std::string_view text) {
  return static_cast<size_t>(std::find_if_not(text.begin(), text.end(), IsNameByte) - text.begin());
}

}  // namespace

size_t GrammarScanner::line() const {
  return 1 + static_cast<size_t>(
                 std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(offset_), '\n'));
}

absl::Status GrammarScanner::Error(std::string_view problem) const {
  return InvalidConstraint(absl::StrCat("line ", line()), problem);
}

void GrammarScanner::SkipSpace() {
  while (!AtEnd()) {
    if (Peek() == '#') {
      offset_ = std::min(text_.find('\n', offset_), text_.size());
    } else if (absl::ascii_isspace(static_cast<unsigned char>(Peek()))) {
      ++offset_;
    } else {
      return;
    }
  }
}

bool GrammarScanner::Take(std::string_view expected) {
  if (!text_.substr(offset_).starts_with(expected)) return false;
  offset_ += expected.size();
  return true;
}

std::string_view GrammarScanner::TakeName() {
  const std::string_view name = text_.substr(offset_, NameLength(text_.substr(offset_)));
  offset_ += name.size();
  return name;
}

bool GrammarScanner::AtRule() const {
  GrammarScanner ahead = *this;
  if (ahead.TakeName().empty()) return false;
  ahead.SkipSpace();
  return ahead.Take("::=");
}

absl::StatusOr<char32_t> GrammarScanner::Character() {
  if (AtEnd()) return Error("a literal or a class has no end");
  if (!Take("\\")) {
    const Utf8Step step = NextUtf8(text_.substr(offset_));
    offset_ += step.length;
    return step.code;
  }
  const char kind = Peek();
  if (!AtEnd()) ++offset_;
  static constexpr std::string_view kPlain = "\\\"[]-^";
  if (kPlain.find(kind) != std::string_view::npos && kind != '\0') {
    return static_cast<char32_t>(kind);
  }
  if (kind == 'n') return U'\n';
  if (kind == 't') return U'\t';
  if (kind == 'r') return U'\r';
  const size_t num_digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
  if (num_digits == 0) {
    return Error(
        "a backslash needs one of n t r x u U \\ \" [ ] - ^ behind it; a backslash itself is \\\\");
  }
  const std::string_view digits = text_.substr(offset_, num_digits);
  const bool is_hex =
      digits.size() == num_digits && std::all_of(digits.begin(), digits.end(), [](char digit) {
        return absl::ascii_isxdigit(static_cast<unsigned char>(digit));
      });
  uint32_t code = 0;
  if (!is_hex || !absl::SimpleHexAtoi(std::string(digits), &code) || code > 0x10FFFF ||
      (code >= 0xD800 && code <= 0xDFFF)) {
    return Error(absl::StrCat("\\", std::string(1, kind), " needs ", num_digits,
                              " hexadecimal digits that name a character of Unicode"));
  }
  offset_ += num_digits;
  return static_cast<char32_t>(code);
}

absl::StatusOr<std::string> GrammarScanner::Literal() {
  if (!Take("\"")) return Error("needs a literal in double quotes here");
  std::string literal;
  while (!Take("\"")) {
    if (Peek() == '\n') return Error("a literal needs a \" at its end; a line end is \\n");
    ASSIGN_OR_RETURN(const char32_t code, Character());
    AppendUtf8(code, literal);
  }
  return literal;
}

absl::StatusOr<CodePointSet> GrammarScanner::Class() {
  const bool is_negated = Take("^");
  CodePointSet set;
  while (!Take("]")) {
    ASSIGN_OR_RETURN(const char32_t first, Character());
    char32_t last = first;
    if (Peek() == '-' && !text_.substr(offset_).starts_with("-]")) {
      Take("-");
      ASSIGN_OR_RETURN(last, Character());
    }
    if (last < first) return Error("a range needs its lower end first");
    set.Add(first, last);
  }
  return is_negated ? set.Complement() : set;
}

std::optional<int64_t> GrammarScanner::TakeNumber() {
  constexpr int64_t kMax = 1'000'000'000;
  std::optional<int64_t> number;
  while (absl::ascii_isdigit(static_cast<unsigned char>(Peek()))) {
    number = std::min(kMax, number.value_or(0) * 10 + (Peek() - '0'));
    ++offset_;
  }
  return number;
}

absl::StatusOr<std::optional<std::pair<int64_t, int64_t>>> GrammarScanner::Counts() {
  using Pair = std::pair<int64_t, int64_t>;
  if (Take("*")) return Pair(0, Expression::kUnbounded);
  if (Take("+")) return Pair(1, Expression::kUnbounded);
  if (Take("?")) return Pair(0, 1);
  if (!Take("{")) return std::nullopt;
  SkipSpace();
  const std::optional<int64_t> min = TakeNumber();
  SkipSpace();
  std::optional<int64_t> max = min;
  if (Take(",")) {
    SkipSpace();
    max = TakeNumber().value_or(Expression::kUnbounded);
    SkipSpace();
  }
  if (!min.has_value() || !Take("}") || (*max != Expression::kUnbounded && *max < *min)) {
    return Error("a count is {m}, {m,} or {m,n} with m at most n");
  }
  return Pair(*min, *max);
}

absl::StatusOr<std::string_view> GrammarScanner::JsonObject() {
  const size_t begin = offset_;
  if (Peek() != '{') return Error("%json needs a schema in braces");
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = begin; i < text_.size(); ++i) {
    const char byte = text_[i];
    if (in_string) {
      if (byte == '\\') ++i;
      in_string = byte != '"';
    } else if (byte == '"') {
      in_string = true;
    } else if (byte == '{') {
      ++depth;
    } else if (byte == '}' && --depth == 0) {
      offset_ = i + 1;
      return text_.substr(begin, offset_ - begin);
    }
  }
  return Error("the schema behind %json needs a } at its end");
}

}  // namespace retroinfer::constraint
