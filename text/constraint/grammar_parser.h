// Grammars in GBNF, the notation of llama.cpp, with a few names more.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "text/constraint/expression.h"
#include "text/constraint/json_syntax.h"
#include "text/constraint/limits.h"
#include "text/constraint/token_vocabulary.h"

namespace retroinfer::constraint {

// Adds the rules of `text` to `grammar`, and returns what calls the rule "root".
//
// Understood: rules `name ::= ...` over any number of lines, alternatives, groups, * + ? {m} {m,}
// {m,n}, literals, classes, `.` for any character, comments behind #, and
//   %json {...}     a JSON value of the schema
//   %regex "..."    a text that the expression matches
//   %until "..."    any text up to the first occurrence of the literal, with the literal
//   %without "..."  any text, an empty one too, that does not contain the literal
//   %special "..."  the special token with this content
//
// REQUIRES: `json` writes to `grammar`.
// Returns:  INVALID_ARGUMENT, reason INVALID_CONSTRAINT, with the line.
absl::StatusOr<ExpressionPtr> ParseGrammar(std::string_view text, const TokenVocabulary& vocabulary,
                                           const Limits& limits, Grammar& grammar,
                                           JsonSyntax& json);

}  // namespace retroinfer::constraint
