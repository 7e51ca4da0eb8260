// The translator reads one term at a time and writes it in the syntax that both libraries read
// alike. Three things differ and are rewritten:
//   * \s: PCRE2 counts U+180E to it, Oniguruma does not. Both agree on White_Space.
//   * \p{L} and its like: PCRE2's tables may be older. unicode_additions.h has what is missing.
//   * \p{Han}: PCRE2 means script extensions, Oniguruma the script.
#include "text/tokenizer/regex_syntax.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status/status_macros.h"
#include "text/tokenizer/unicode_additions.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer {
namespace {

constexpr size_t kPatternBytesMax = 16384;
constexpr int kGroupDepthMax = 32;
constexpr int kRepeatMax = 1000;

constexpr std::array<std::string_view, 36> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
    "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
    "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cs"};
constexpr std::array<std::string_view, 4> kScripts = {"Han", "Hiragana", "Katakana", "Hangul"};

template <size_t N>
bool Contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string_view AdditionsOf(std::string_view category) {
  for (const UnicodeAdditions& additions : kUnicodeAdditions) {
    if (additions.category == category) return additions.ranges;
  }
  return {};
}

void AppendCode(char32_t code, std::string& out) {
  absl::StrAppend(&out, "\\x{", absl::Hex(static_cast<uint32_t>(code)), "}");
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    if (pattern_.size() > kPatternBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("the pattern has ", pattern_.size(),
                                                     " bytes, at most ", kPatternBytesMax,
                                                     " are possible"));
    }
    while (!AtEnd()) RETURN_IF_ERROR(Term());
    if (depth_ != 0) return Error("a group is not closed");
    return std::move(out_);
  }

 private:
  // A member of a class, or an atom outside of one.
  struct Atom {
    std::string text;  // as a member of a PCRE2 class
    std::optional<char32_t> code =
        std::nullopt;                 // set for a single character, which may begin or end a range
    bool complement_of_many = false;  // \P{L} with additions: no class member can express it
  };

  bool AtEnd() const { return offset_ == pattern_.size(); }
  char Peek(size_t ahead = 0) const {
    return offset_ + ahead < pattern_.size() ? pattern_[offset_ + ahead] : '\0';
  }
  bool Accept(std::string_view text) {
    if (pattern_.substr(offset_, text.size()) != text) return false;
    offset_ += text.size();
    return true;
  }
  absl::Status Error(std::string_view problem) const {
    return absl::InvalidArgumentError(absl::StrCat(
        "pattern \"", absl::CHexEscape(std::string(pattern_.substr(0, 200))), "\", offset ",
        offset_, ": ", std::string(problem), "; this part of the syntax is not supported"));
  }

  absl::Status Term() {
    if (Accept("|")) {
      out_.push_back('|');
      return absl::OkStatus();
    }
    if (Peek() == '(') return OpenGroup();
    if (Accept(")")) {
      if (--depth_ < 0) return Error("')' without '('");
      out_.push_back(')');
      return Quantifier();
    }
    if (Accept("[")) {
      RETURN_IF_ERROR(Class());
      return Quantifier();
    }
    constexpr std::string_view kMeta = "^$.?*+{}]";
    if (kMeta.find(Peek()) != std::string_view::npos) {
      return Error(absl::StrFormat("'%c' here", Peek()));
    }
    ASSIGN_OR_RETURN(const Atom atom, NextAtom());
    if (atom.code.has_value()) {
      out_ += atom.text;
    } else {
      absl::StrAppend(&out_, atom.complement_of_many ? "[^" : "[", atom.text, "]");
    }
    return Quantifier();
  }

  absl::Status OpenGroup() {
    if (++depth_ > kGroupDepthMax) return Error("groups are nested too deeply");
    for (const std::string_view opening : {"(?:", "(?i:", "(?=", "(?!"}) {
      if (Accept(opening)) {
        absl::StrAppend(&out_, std::string(opening));
        return absl::OkStatus();
      }
    }
    if (Peek(1) == '?' || Peek(1) == '*') return Error("this kind of group");
    Accept("(");
    out_ += "(?:";
    return absl::OkStatus();
  }

  absl::Status Quantifier() {
    if (Peek() == '{') return CountedQuantifier();
    if (Peek() != '?' && Peek() != '*' && Peek() != '+') return absl::OkStatus();
    out_.push_back(pattern_[offset_++]);
    if (Peek() == '?' || Peek() == '+') out_.push_back(pattern_[offset_++]);
    return NoQuantifierHere();
  }

  absl::Status CountedQuantifier() {
    Accept("{");
    ASSIGN_OR_RETURN(const int min, Count());
    std::string max_text = absl::StrCat(min);
    if (Accept(",")) {
      max_text.clear();
      if (Peek() != '}') {
        ASSIGN_OR_RETURN(const int max, Count());
        if (max < min) return Error("a range of counts that is empty");
        max_text = absl::StrCat(max);
      }
    }
    if (!Accept("}")) return Error("a count that is not closed");
    absl::StrAppend(&out_, "{", min, ",", max_text, "}");
    return NoQuantifierHere();
  }

  absl::StatusOr<int> Count() {
    int value = 0;
    const size_t begin = offset_;
    while (absl::ascii_isdigit(static_cast<unsigned char>(Peek()))) {
      value = value * 10 + (Peek() - '0');
      if (value > kRepeatMax) return Error("a count over 1000");
      ++offset_;
    }
    if (offset_ == begin) return Error("a count without digits");
    return value;
  }

  absl::Status NoQuantifierHere() const {
    if (Peek() == '?' || Peek() == '*' || Peek() == '+' || Peek() == '{') {
      return Error("a second quantifier");
    }
    return absl::OkStatus();
  }

  absl::Status Class() {
    out_.push_back('[');
    if (Accept("^")) out_.push_back('^');
    if (Peek() == ']') return Error("']' as the first member of a class");
    while (!Accept("]")) {
      if (AtEnd()) return Error("a class that is not closed");
      if (Peek() == '[' || (Peek() == '&' && Peek(1) == '&')) return Error("a nested class");
      ASSIGN_OR_RETURN(const Atom member, NextAtom());
      if (member.complement_of_many) return Error("this complement inside a class");
      out_ += member.text;
      if (Peek() != '-' || Peek(1) == ']') continue;
      // A '-' between two members.
      if (!member.code.has_value()) return Error("a range that begins with a set");
      Accept("-");
      if (Peek() == '[') return Error("a nested class");
      ASSIGN_OR_RETURN(const Atom last, NextAtom());
      if (!last.code.has_value() || *last.code < *member.code) return Error("this range");
      absl::StrAppend(&out_, "-", last.text);
      if (Peek() == '-' && Peek(1) != ']') return Error("a range of a range");
    }
    out_.push_back(']');
    return absl::OkStatus();
  }

  absl::StatusOr<Atom> NextAtom() {
    if (Peek() == '\\') return Escape();
    const Utf8Step step = NextUtf8(pattern_.substr(offset_));
    if (step.kind != Utf8Step::Kind::kCharacter) return Error("bytes that are not UTF-8");
    offset_ += step.length;
    return Character(step.code);
  }

  static Atom Character(char32_t code) {
    Atom atom{.text = {}, .code = code};
    if (code < 0x80 && absl::ascii_isalnum(static_cast<unsigned char>(code))) {
      atom.text.push_back(static_cast<char>(code));
    } else {
      AppendCode(code, atom.text);
    }
    return atom;
  }

  absl::StatusOr<Atom> Escape() {
    Accept("\\");
    if (AtEnd()) return Error("a '\\' at the end");
    const char c = pattern_[offset_++];
    switch (c) {
      case 'n':
        return Character('\n');
      case 'r':
        return Character('\r');
      case 't':
        return Character('\t');
      case 'f':
        return Character('\f');
      case 'e':
        return Character(0x1B);
      case 's':
        return Atom{.text = "\\p{White_Space}"};
      case 'S':
        return Atom{.text = "\\P{White_Space}"};
      case 'd':
        return Category("Nd", false);
      case 'D':
        return Category("Nd", true);
      case 'p':
        return Property(false);
      case 'P':
        return Property(true);
      case 'x':
        return Accept("{") ? HexCode(1, 6, true) : HexCode(2, 2, false);
      case 'u':
        return HexCode(4, 4, false);
      default:
        break;
    }
    if (!absl::ascii_ispunct(static_cast<unsigned char>(c)) && c != ' ') {
      return Error(absl::StrFormat("'\\%c'", c));
    }
    return Character(static_cast<unsigned char>(c));
  }

  absl::StatusOr<Atom> HexCode(int digits_min, int digits_max, bool in_braces) {
    uint32_t code = 0;
    int digits = 0;
    while (digits < digits_max && absl::ascii_isxdigit(static_cast<unsigned char>(Peek()))) {
      const char digit = absl::ascii_tolower(static_cast<unsigned char>(Peek()));
      code = code * 16 + static_cast<uint32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
      ++digits;
      ++offset_;
    }
    if (digits < digits_min || (in_braces && !Accept("}"))) return Error("a code point");
    // \x80 to \xFF without braces are bytes of UTF-8 to Oniguruma.
    if (digits_max == 2 && code >= 0x80) return Error("a single byte over 0x7F");
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return Error("this code point");
    return Character(code);
  }

  absl::StatusOr<Atom> Property(bool complement) {
    const size_t close = pattern_.find('}', offset_);
    if (!Accept("{") || close == std::string_view::npos) return Error("a property without braces");
    const std::string name(pattern_.substr(offset_, close - offset_));
    const bool is_script = Contains(kScripts, name);
    if (!is_script && !Contains(kCategories, name)) return Error("this property");
    offset_ = close + 1;
    return is_script ? Atom{.text = absl::StrCat(complement ? "\\P" : "\\p", "{sc:", name, "}")}
                     : Category(name, complement);
  }

  static Atom Category(const std::string& name, bool complement) {
    const std::string additions(AdditionsOf(name));
    if (additions.empty()) {
      return Atom{.text = absl::StrCat(complement ? "\\P{" : "\\p{", name, "}")};
    }
    return Atom{.text = absl::StrCat("\\p{", name, "}", additions),
                .complement_of_many = complement};
  }

  const std::string_view pattern_;
  size_t offset_ = 0;
  int depth_ = 0;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> TranslateRegex(std::string_view pattern) {
  return Translator(pattern).Run();
}

std::string EscapeLiteral(std::string_view literal) {
  std::string pattern;
  while (!literal.empty()) {
    const Utf8Step step = NextUtf8(literal);
    AppendCode(step.code, pattern);
    literal.remove_prefix(step.length);
  }
  return pattern;
}

}  // namespace retroinfer
