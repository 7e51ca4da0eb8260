#include "text/constraint/grammar_parser.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "text/constraint/grammar_scanner.h"
#include "text/constraint/invalid_constraint.h"
#include "text/constraint/regex_parser.h"
#include "text/constraint/schema_compiler.h"
#include "text/constraint/text_search.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer::constraint {
namespace {

class Parser {
 public:
  Parser(std::string_view text, const TokenVocabulary& vocabulary, const Limits& limits,
         Grammar& grammar, JsonSyntax& json)
      : scanner_(text), vocabulary_(vocabulary), limits_(limits), grammar_(grammar), json_(json) {}

  absl::StatusOr<ExpressionPtr> Run() {
    scanner_.SkipSpace();
    while (!scanner_.AtEnd()) {
      if (!scanner_.AtRule()) return scanner_.Error("needs a rule here: name ::= ...");
      const size_t line = scanner_.line();
      const std::string_view name = scanner_.TakeName();
      scanner_.SkipSpace();
      scanner_.Take("::=");
      const size_t rule = RuleOf(name, line);
      if (grammar_.rules[rule].body != nullptr) {
        return InvalidConstraint(absl::StrCat("line ", line),
                                 absl::StrCat("the rule \"", Shown(name), "\" is defined twice"));
      }
      ASSIGN_OR_RETURN(grammar_.rules[rule].body, ParseAlternatives(0));
      if (!scanner_.AtEnd() && !scanner_.AtRule()) {
        return scanner_.Error("needs a rule, a literal, a class, a group or | here");
      }
    }
    for (const auto& [name, use] : rules_) {
      if (grammar_.rules[use.rule].body == nullptr) {
        return InvalidConstraint(absl::StrCat("line ", use.line),
                                 absl::StrCat("the rule \"", Shown(name), "\" is not defined"));
      }
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) {
      return InvalidConstraint("line 1", "the grammar needs a rule with the name \"root\"");
    }
    return CallRule(root->second.rule);
  }

 private:
  struct Use {
    size_t rule;
    size_t line;  // where the name is first
  };

  size_t RuleOf(std::string_view name, size_t line) {
    const auto [known, is_new] = rules_.try_emplace(std::string(name));
    if (is_new) {
      known->second = {grammar_.Add(absl::StrCat("rule \"", Shown(name), "\"")), line};
    }
    return known->second.rule;
  }

  absl::StatusOr<ExpressionPtr> ParseAlternatives(size_t depth) {
    if (depth > limits_.nesting_max) {
      return scanner_.Error(
          absl::StrCat("has groups deeper than ", limits_.nesting_max, " in each other"));
    }
    std::vector<ExpressionPtr> alternatives;
    do {
      ASSIGN_OR_RETURN(ExpressionPtr sequence, ParseSequence(depth));
      alternatives.push_back(std::move(sequence));
    } while (scanner_.Take("|"));
    return Alternatives(std::move(alternatives));
  }

  absl::StatusOr<ExpressionPtr> ParseSequence(size_t depth) {
    std::vector<ExpressionPtr> parts;
    for (;;) {
      scanner_.SkipSpace();
      if (scanner_.AtEnd() || scanner_.AtRule()) break;
      ASSIGN_OR_RETURN(ExpressionPtr atom, ParseAtom(depth));
      if (atom == nullptr) break;
      scanner_.SkipSpace();
      ASSIGN_OR_RETURN(const auto counts, scanner_.Counts());
      if (counts.has_value()) atom = Repeat(std::move(atom), counts->first, counts->second);
      parts.push_back(std::move(atom));
    }
    return Sequence(std::move(parts));
  }

  // nullptr where a sequence ends.
  absl::StatusOr<ExpressionPtr> ParseAtom(size_t depth) {
    switch (scanner_.Peek()) {
      case '"': {
        ASSIGN_OR_RETURN(const std::string literal, scanner_.Literal());
        return Bytes(literal);
      }
      case '[': {
        scanner_.Take("[");
        ASSIGN_OR_RETURN(CodePointSet set, scanner_.Class());
        return Characters(std::move(set));
      }
      case '.':
        scanner_.Take(".");
        return Characters(CodePointSet::All());
      case '(': {
        scanner_.Take("(");
        ASSIGN_OR_RETURN(ExpressionPtr group, ParseAlternatives(depth + 1));
        if (!scanner_.Take(")")) return scanner_.Error("a ( needs a ) behind it");
        return group;
      }
      case '%':
        scanner_.Take("%");
        return ParseSpecialForm();
      default:
        break;
    }
    const size_t line = scanner_.line();
    const std::string_view name = scanner_.TakeName();
    if (name.empty()) return nullptr;
    return CallRule(RuleOf(name, line));
  }

  absl::StatusOr<ExpressionPtr> ParseSpecialForm() {
    const std::string_view name = scanner_.TakeName();
    scanner_.SkipSpace();
    if (name == "json") {
      ASSIGN_OR_RETURN(const std::string_view schema, scanner_.JsonObject());
      auto value = CompileJsonSchema(schema, limits_, grammar_, json_);
      if (!value.ok()) return scanner_.Error(absl::StrCat("%json: ", value.status().message()));
      return value;
    }
    if (name != "regex" && name != "until" && name != "without" && name != "special") {
      return scanner_.Error(absl::StrCat("there is no %", Shown(name),
                                         "; there are %json, %regex, %until, %without and "
                                         "%special"));
    }
    ASSIGN_OR_RETURN(const std::string text, scanner_.Literal());
    if (name == "regex") {
      auto expression = ParseRegex(text, {}, limits_);
      if (!expression.ok()) {
        return scanner_.Error(absl::StrCat("%regex: ", expression.status().message()));
      }
      return expression;
    }
    if (name == "special") {
      const std::optional<std::string> bytes = vocabulary_.SpecialBytes(text);
      if (!bytes.has_value()) {
        return scanner_.Error(absl::StrCat("the model has no special token \"", Shown(text),
                                           "\" that may be in a text"));
      }
      return Bytes(*bytes);
    }
    if (text.empty() || text.size() > kTagCharactersMax) {
      return scanner_.Error(absl::StrCat("%", std::string(name), " needs a text of 1 to ",
                                         kTagCharactersMax, " bytes"));
    }
    return name == "until" ? TextUntil(text) : TextWithout(text);
  }

  GrammarScanner scanner_;
  const TokenVocabulary& vocabulary_;
  const Limits& limits_;
  Grammar& grammar_;
  JsonSyntax& json_;
  absl::flat_hash_map<std::string, Use> rules_;
};

}  // namespace

absl::StatusOr<ExpressionPtr> ParseGrammar(std::string_view text, const TokenVocabulary& vocabulary,
                                           const Limits& limits, Grammar& grammar,
                                           JsonSyntax& json) {
  if (const absl::Status utf8 = ValidateUtf8(text); !utf8.ok()) {
    return InvalidConstraint("line 1", std::string(utf8.message()));
  }
  return Parser(text, vocabulary, limits, grammar, json).Run();
}

}  // namespace retroinfer::constraint
