#include "text/constraint/spec_grammar.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "text/constraint/grammar_parser.h"
#include "text/constraint/invalid_constraint.h"
#include "text/constraint/json_syntax.h"
#include "text/constraint/regex_parser.h"
#include "text/constraint/schema_compiler.h"
#include "text/constraint/text_search.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer::constraint {
namespace {

constexpr int64_t kSpaceBehindThoughtsMax = 8;

absl::Status CheckSize(const ConstraintSpec& spec, const Limits& limits) {
  size_t bytes = spec.text.size();
  for (const std::string& choice : spec.choices) bytes += choice.size();
  if (bytes <= limits.spec_bytes_max) return absl::OkStatus();
  return InvalidConstraint("constraint", absl::StrCat("has ", bytes, " bytes, at most ",
                                                      limits.spec_bytes_max, " are allowed"));
}

absl::StatusOr<ExpressionPtr> ParseChoices(const std::vector<std::string>& choices,
                                           const Limits& limits) {
  if (choices.empty() || choices.size() > limits.choices_max) {
    return InvalidConstraint(
        "choices", absl::StrCat("needs 1 to ", limits.choices_max, " texts, has ", choices.size()));
  }
  std::vector<ExpressionPtr> texts;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].empty() || !ValidateUtf8(choices[i]).ok()) {
      return InvalidConstraint(absl::StrCat("choices[", i, "]"),
                               "needs a text of UTF-8 that is not empty");
    }
    texts.push_back(Bytes(choices[i]));
  }
  return Alternatives(std::move(texts));
}

absl::StatusOr<ExpressionPtr> ParseThoughts(const Thoughts& thoughts,
                                            const TokenVocabulary& vocabulary) {
  for (const auto& [tag, name] :
       {std::pair(&thoughts.open, "thoughts.open"), std::pair(&thoughts.close, "thoughts.close")}) {
    if (tag->size() > kTagCharactersMax || !ValidateUtf8(*tag).ok() ||
        (tag->empty() && tag == &thoughts.close)) {
      return InvalidConstraint(
          name, absl::StrCat("needs a tag of UTF-8 with 1 to ", kTagCharactersMax, " bytes"));
    }
  }
  ExpressionPtr text_and_close;
  if (const auto special = vocabulary.SpecialBytes(thoughts.close); special.has_value()) {
    ExpressionPtr text = Graph({{.edges = {{Characters(CodePointSet::All()), 0}},
                                 .accepts = true,
                                 .text_set = TextSet::kNoAngle}});
    text_and_close = Sequence({std::move(text), Bytes(*special)});
  } else {
    text_and_close = TextUntil(thoughts.close);
  }
  ExpressionPtr space =
      Repeat(Characters({{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}}), 0, kSpaceBehindThoughtsMax);
  if (thoughts.open.empty()) return Sequence({std::move(text_and_close), std::move(space)});
  const std::string open = vocabulary.SpecialBytes(thoughts.open).value_or(thoughts.open);
  return Optional(Sequence({Bytes(open), std::move(text_and_close), std::move(space)}));
}

absl::StatusOr<ExpressionPtr> ParseForm(const ConstraintSpec& spec,
                                        const TokenVocabulary& vocabulary, const Limits& limits,
                                        Grammar& grammar, JsonSyntax& json) {
  switch (spec.form) {
    case ConstraintSpec::Form::kJsonSchema:
      return CompileJsonSchema(spec.text, limits, grammar, json);
    case ConstraintSpec::Form::kRegex:
      return ParseRegex(spec.text, {}, limits);
    case ConstraintSpec::Form::kChoices:
      return ParseChoices(spec.choices, limits);
    case ConstraintSpec::Form::kGrammar:
      return ParseGrammar(spec.text, vocabulary, limits, grammar, json);
  }
  return InvalidConstraint("constraint", "has no form that is known");
}

}  // namespace

absl::StatusOr<Grammar> GrammarOf(const ConstraintSpec& spec, const TokenVocabulary& vocabulary,
                                  const Limits& limits) {
  RETURN_IF_ERROR(CheckSize(spec, limits));
  Grammar grammar;
  JsonSyntax json(grammar);
  ASSIGN_OR_RETURN(ExpressionPtr text, ParseForm(spec, vocabulary, limits, grammar, json));
  if (spec.thoughts.has_value()) {
    ASSIGN_OR_RETURN(ExpressionPtr thoughts, ParseThoughts(*spec.thoughts, vocabulary));
    text = Sequence({std::move(thoughts), std::move(text)});
  }
  grammar.root = grammar.Add("constraint", std::move(text));
  return grammar;
}

}  // namespace retroinfer::constraint
