#include "text/constraint/regex_parser.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "text/constraint/invalid_constraint.h"
#include "text/constraint/regex_scanner.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer::constraint {
namespace {

class Parser {
 public:
  Parser(std::string_view pattern, const RegexOptions& options, const Limits& limits)
      : scanner_(pattern), options_(options), limits_(limits) {}

  absl::StatusOr<ExpressionPtr> Run() {
    std::vector<ExpressionPtr> alternatives;
    do {
      const bool begins = TakeAnchors("^");
      ASSIGN_OR_RETURN(ExpressionPtr body, ParseSequence());
      const bool ends = TakeAnchors("$");
      std::vector<ExpressionPtr> parts;
      if (options_.is_search && !begins) parts.push_back(AnyText());
      parts.push_back(std::move(body));
      if (options_.is_search && !ends) parts.push_back(AnyText());
      alternatives.push_back(Sequence(std::move(parts)));
    } while (scanner_.Take("|"));
    if (scanner_.Take(")")) return scanner_.Error("a ) needs a ( before it");
    if (!scanner_.AtEnd()) {
      return scanner_.Error("$ is supported at the ends of the pattern only");
    }
    return Alternatives(std::move(alternatives));
  }

 private:
  bool TakeAnchors(std::string_view anchor) {
    bool taken = false;
    while (scanner_.Take(anchor)) taken = true;
    return taken;
  }

  ExpressionPtr AnyText() const { return Repeat(options_.read(CodePointSet::All()), 0); }

  absl::StatusOr<ExpressionPtr> ParseAlternatives() {
    std::vector<ExpressionPtr> alternatives;
    do {
      ASSIGN_OR_RETURN(ExpressionPtr body, ParseSequence());
      alternatives.push_back(std::move(body));
    } while (scanner_.Take("|"));
    return Alternatives(std::move(alternatives));
  }

  absl::StatusOr<ExpressionPtr> ParseSequence() {
    std::vector<ExpressionPtr> parts;
    while (!scanner_.AtEnd() && scanner_.rest()[0] != '|' && scanner_.rest()[0] != ')' &&
           scanner_.rest()[0] != '$') {
      ASSIGN_OR_RETURN(ExpressionPtr atom, ParseAtom());
      ASSIGN_OR_RETURN(atom, ParseQuantifier(std::move(atom)));
      parts.push_back(std::move(atom));
    }
    return Sequence(std::move(parts));
  }

  absl::StatusOr<ExpressionPtr> ParseAtom() {
    if (scanner_.Take("(")) return ParseGroup();
    if (scanner_.Take("[")) {
      ASSIGN_OR_RETURN(const CodePointSet set, scanner_.Class());
      return options_.read(set);
    }
    if (scanner_.Take("\\")) {
      ASSIGN_OR_RETURN(const CodePointSet set, scanner_.Escape());
      return options_.read(set);
    }
    if (scanner_.Take(".")) {
      static const CodePointSet* const kAnyButLineEnd =
          new CodePointSet(CodePointSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.Complement());
      return options_.read(*kAnyButLineEnd);
    }
    const char next = scanner_.rest()[0];
    if (next == '*' || next == '+' || next == '?') {
      return scanner_.Error("a quantifier needs something to repeat");
    }
    if (next == '^') return scanner_.Error("^ is supported at the ends of the pattern only");
    const char32_t code = scanner_.Next();
    return options_.read(CodePointSet{{code, code}});
  }

  absl::StatusOr<ExpressionPtr> ParseGroup() {
    if (scanner_.Take("?")) {
      const std::string_view rest = scanner_.rest();
      for (const std::string_view look : {"=", "!", "<=", "<!"}) {
        if (rest.starts_with(look)) {
          return scanner_.Error("look-around ((?=, (?!, (?<=, (?<!) is not supported");
        }
      }
      const bool is_named = scanner_.Take("P<") || scanner_.Take("<");
      if (is_named) {
        const size_t length = scanner_.rest().find('>');
        if (length == std::string_view::npos) return scanner_.Error("a name needs a > behind it");
        scanner_.Take(scanner_.rest().substr(0, length + 1));
      } else if (!scanner_.Take(":")) {
        return scanner_.Error("flags and other groups that begin with (? are not supported");
      }
    }
    if (++depth_ > limits_.nesting_max) {
      return scanner_.Error(
          absl::StrCat("has groups deeper than ", limits_.nesting_max, " in each other"));
    }
    ASSIGN_OR_RETURN(ExpressionPtr body, ParseAlternatives());
    --depth_;
    if (scanner_.rest().starts_with("$")) {
      return scanner_.Error("$ is supported at the ends of the pattern only");
    }
    if (!scanner_.Take(")")) return scanner_.Error("a ( needs a ) behind it");
    return body;
  }

  absl::StatusOr<ExpressionPtr> ParseQuantifier(ExpressionPtr atom) {
    int64_t min = 0;
    int64_t max = Expression::kUnbounded;
    if (scanner_.Take("+")) {
      min = 1;
    } else if (scanner_.Take("?")) {
      max = 1;
    } else if (!scanner_.Take("*")) {
      const std::optional<std::pair<int64_t, int64_t>> counts = TakeCounts();
      if (!counts.has_value()) return atom;
      std::tie(min, max) = *counts;
      if (max != Expression::kUnbounded && max < min) {
        return scanner_.Error("a count needs its lower end first");
      }
    }
    scanner_.Take("?");
    const std::string_view rest = scanner_.rest();
    if (!rest.empty() && (rest[0] == '+' || rest[0] == '*' || rest[0] == '?')) {
      return scanner_.Error("a quantifier behind another one is not supported");
    }
    return Repeat(std::move(atom), min, max);
  }

  // {m}, {m,} or {m,n}; a brace that begins no count is a character.
  std::optional<std::pair<int64_t, int64_t>> TakeCounts() {
    const RegexScanner before = scanner_;
    if (scanner_.Take("{")) {
      const std::optional<int64_t> min = scanner_.TakeNumber();
      if (min.has_value()) {
        int64_t max = *min;
        if (scanner_.Take(",")) max = scanner_.TakeNumber().value_or(Expression::kUnbounded);
        if (scanner_.Take("}")) return std::pair(*min, max);
      }
    }
    scanner_ = before;
    return std::nullopt;
  }

  RegexScanner scanner_;
  const RegexOptions& options_;
  const Limits& limits_;
  size_t depth_ = 0;
};

}  // namespace

absl::StatusOr<ExpressionPtr> ParseRegex(std::string_view pattern, const RegexOptions& options,
                                         const Limits& limits) {
  if (const absl::Status utf8 = ValidateUtf8(pattern); !utf8.ok()) {
    return InvalidConstraint("pattern", std::string(utf8.message()));
  }
  return Parser(pattern, options, limits).Run();
}

}  // namespace retroinfer::constraint
