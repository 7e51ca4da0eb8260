// The text between two tags is trimmed by what the tags say:
//
//   {%- ... -%}    all white space on that side
//   {%+ ... +%}    nothing on that side, in spite of the settings
//   {% ... %}      before: white space since the beginning of the line; behind: one line break
//   {# ... #}      as a block
//   {{ ... }}      nothing
#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <utility>

#include "common/status/status_macros.h"
#include "text/jinja/characters.h"
#include "text/jinja/errors.h"
#include "text/jinja/string_literal.h"

namespace retroinfer::jinja {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsNameStart(char32_t code) { return code == '_' || IsAlpha(code); }

bool IsNamePart(char32_t code) { return IsNameStart(code) || IsDecimal(code); }

std::string NormalizeLineBreaks(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') continue;
      text.push_back('\n');
    } else {
      text.push_back(source[i]);
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

size_t SkipSpace(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Character character = FirstCharacter(text.substr(at));
    if (!IsSpace(character.code)) break;
    at += character.length;
  }
  return at;
}

std::string_view TrimEnd(std::string_view text) {
  while (!text.empty()) {
    const Character last = LastCharacter(text);
    if (!IsSpace(last.code)) break;
    text.remove_suffix(last.length);
  }
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) {
      RETURN_IF_ERROR(ReadData());
    }
    Push(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return source_.substr(at_); }
  bool AtSign(size_t offset, char sign) const {
    return offset < source_.size() && source_[offset] == sign;
  }

  absl::Status Fail(std::string_view problem) const { return AtLine(line_, Error({problem})); }

  // Moves on to `end`, counting lines.
  void Advance(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    if (end > at_) begins_line_ = source_[end - 1] == '\n';
    at_ = end;
  }

  void Push(Token::Kind kind, std::string text) {
    tokens_.push_back({.kind = kind, .line = line_, .text = std::move(text)});
  }

  // Reads the text up to the next tag, and the tag.
  absl::Status ReadData() {
    size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 == source_.size()) {
        PushData(source_.substr(at_));
        at_ = source_.size();
        return absl::OkStatus();
      }
      if (std::string_view("{%#").find(source_[tag + 1]) != std::string_view::npos) break;
      ++tag;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    std::string_view data = source_.substr(at_, tag - at_);
    if (sign == '-') {
      data = TrimEnd(data);
    } else if (sign != '+' && kind != '{') {
      data = TrimLineStart(data);
    }
    PushData(data);
    Advance(tag + (sign == '-' || sign == '+' ? 3 : 2));
    begins_line_ = false;
    if (kind == '#') return SkipComment();
    if (kind == '%') {
      ASSIGN_OR_RETURN(const bool raw, ReadRaw());
      if (raw) return absl::OkStatus();
    }
    return ReadTag(kind == '{');
  }

  void PushData(std::string_view data) {
    if (!data.empty()) Push(Token::Kind::kData, std::string(data));
  }

  // Without the white space that stands between the beginning of a line and the end of `data`.
  std::string_view TrimLineStart(std::string_view data) const {
    const size_t line_break = data.rfind('\n');
    const size_t begin = line_break == std::string_view::npos ? 0 : line_break + 1;
    if (begin == 0 && !begins_line_) return data;
    return SkipSpace(data, begin) == data.size() ? data.substr(0, begin) : data;
  }

  // Goes behind the sign and the two characters that end a tag at `end`.
  void PassEnd(size_t end, char sign, bool trims_line_break) {
    size_t next = end + 2;
    if (sign == '-') {
      next = SkipSpace(source_, next);
    } else if (sign != '+' && trims_line_break && AtSign(next, '\n')) {
      ++next;
    }
    Advance(next);
  }

  absl::Status SkipComment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string_view::npos) return Fail("Missing end of comment tag");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    PassEnd(end, sign, true);
    return absl::OkStatus();
  }

  // Reads "raw %}...{% endraw %}" if that is what follows.
  absl::StatusOr<bool> ReadRaw() {
    size_t begin = SkipSpace(source_, at_);
    if (!source_.substr(begin).starts_with("raw")) return false;
    begin = SkipSpace(source_, begin + 3);
    const bool trims = AtSign(begin, '-');
    if (trims) ++begin;
    if (!source_.substr(begin).starts_with("%}")) return false;
    Advance(begin);
    PassEnd(begin, trims ? '-' : '\0', false);
    for (size_t tag = source_.find("{%", at_); tag != std::string_view::npos;
         tag = source_.find("{%", tag + 2)) {
      size_t next = tag + 2;
      const char sign = next < source_.size() ? source_[next] : '\0';
      if (sign == '-' || sign == '+') ++next;
      next = SkipSpace(source_, next);
      if (!source_.substr(next).starts_with("endraw")) continue;
      next = SkipSpace(source_, next + 6);
      const char end_sign = next < source_.size() ? source_[next] : '\0';
      if (end_sign == '-' || end_sign == '+') ++next;
      if (!source_.substr(next).starts_with("%}")) continue;
      std::string_view data = source_.substr(at_, tag - at_);
      PushData(sign == '-' ? TrimEnd(data) : sign == '+' ? data : TrimLineStart(data));
      Advance(next);
      PassEnd(next, end_sign, true);
      return true;
    }
    return Fail("Missing end of raw directive");
  }

  // Reads the tokens of an expression or a block, up to its end.
  absl::Status ReadTag(bool is_output) {
    const int first_line = line_;
    Push(is_output ? Token::Kind::kOutputBegin : Token::Kind::kBlockBegin, "");
    while (true) {
      Advance(SkipSpace(source_, at_));
      if (at_ == source_.size()) {
        line_ = first_line;
        return Fail(is_output ? "the end of the {{ is missing" : "the end of the {% is missing");
      }
      if (open_.empty()) {
        const std::string_view end = is_output ? "}}" : "%}";
        const char sign = source_[at_];
        const bool signed_end =
            (sign == '-' || (sign == '+' && !is_output)) && rest().substr(1).starts_with(end);
        if (signed_end || rest().starts_with(end)) {
          Push(is_output ? Token::Kind::kOutputEnd : Token::Kind::kBlockEnd, "");
          PassEnd(at_ + (signed_end ? 1 : 0), signed_end ? sign : '\0', !is_output);
          return absl::OkStatus();
        }
      }
      RETURN_IF_ERROR(ReadToken());
    }
  }

  absl::Status ReadToken() {
    const char first = source_[at_];
    if (first == '\'' || first == '"') return ReadString(first);
    if (IsDigit(first)) return ReadNumber();
    if (IsNameStart(FirstCharacter(rest()).code)) {
      size_t end = at_;
      while (end < source_.size()) {
        const Character character = FirstCharacter(source_.substr(end));
        if (!IsNamePart(character.code)) break;
        end += character.length;
      }
      Push(Token::Kind::kName, std::string(source_.substr(at_, end - at_)));
      Advance(end);
      return absl::OkStatus();
    }
    return ReadOperator();
  }

  absl::Status ReadString(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return Fail("a string has no end");
    const absl::StatusOr<std::string> text = UnescapeString(source_.substr(at_ + 1, end - at_ - 1));
    if (!text.ok()) return AtLine(line_, text.status());
    Push(Token::Kind::kString, *text);
    Advance(end + 1);
    return absl::OkStatus();
  }

  absl::Status ReadNumber() {
    size_t end = at_;
    const auto skip_digits = [&] {
      while (end < source_.size() && (IsDigit(source_[end]) || source_[end] == '_')) ++end;
    };
    skip_digits();
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
      is_float = true;
      ++end;
      skip_digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t digits = end + 1;
      if (AtSign(digits, '-') || AtSign(digits, '+')) ++digits;
      if (digits < source_.size() && IsDigit(source_[digits])) {
        is_float = true;
        end = digits;
        skip_digits();
      }
    }
    std::string digits(source_.substr(at_, end - at_));
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    if (end < source_.size() && digits == "0" &&
        IsNameStart(FirstCharacter(source_.substr(end)).code)) {
      return AtLine(line_, Unsupported({"numbers that are not decimal"}));
    }
    Push(is_float ? Token::Kind::kFloat : Token::Kind::kInt, digits);
    if (is_float) {
      tokens_.back().floating = std::strtod(digits.c_str(), nullptr);
    } else {
      constexpr size_t kDigitsMax = 18;
      if (digits.size() > kDigitsMax) return Fail("an integer has more than 18 digits");
      tokens_.back().number = std::strtoll(digits.c_str(), nullptr, 10);
    }
    Advance(end);
    return absl::OkStatus();
  }

  absl::Status ReadOperator() {
    constexpr std::array<std::string_view, 28> kOperators = {
        "**", "//", "==", "!=", "<=", ">=", "+", "-", "/", "*", "%", "~", "[", "]",
        "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!", "&"};
    const auto found =
        std::find_if(kOperators.begin(), kOperators.end(),
                     [this](std::string_view item) { return rest().starts_with(item); });
    if (found == kOperators.end() || *found == "!" || *found == "&") {
      return Fail(
          Concat({"unexpected character '", rest().substr(0, FirstCharacter(rest()).length), "'"}));
    }
    const char sign = found->front();
    if (sign == '(') open_.push_back(')');
    if (sign == '[') open_.push_back(']');
    if (sign == '{') open_.push_back('}');
    if (sign == ')' || sign == ']' || sign == '}') {
      if (open_.empty() || open_.back() != sign) {
        return Fail(Concat({"unexpected '", *found, "'"}));
      }
      open_.pop_back();
    }
    Push(Token::Kind::kOperator, std::string(*found));
    Advance(at_ + found->size());
    return absl::OkStatus();
  }

  const std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool begins_line_ = true;  // the text that follows stands at the beginning of a line
  std::string open_;         // the brackets that have to be closed
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status AtLine(int line, const absl::Status& status) {
  absl::Status located(
      status.code(), Concat({"line ", std::to_string(line), ": ", std::string(status.message())}));
  status.ForEachPayload(
      [&located](auto url, const auto& payload) { located.SetPayload(url, payload); });
  return located;
}

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) {
  if (!IsUtf8(source)) return Error({"the template is not valid UTF-8"});
  const std::string text = NormalizeLineBreaks(source);
  return Lexer(text).Run();
}

}  // namespace retroinfer::jinja
