// JSON (RFC 8259) as expressions, with white space that is bounded and may be there or not.
#pragma once

#include <optional>
#include <string_view>

#include "common/json/json_document.h"
#include "text/constraint/code_point_set.h"
#include "text/constraint/expression.h"

namespace retroinfer::constraint {

// Returns one character of a set inside a JSON string: quote, backslash and control characters are
// escaped, others are as they are.
ExpressionPtr JsonCharacters(const CodePointSet& characters);

// Returns the JSON text of a string, escaped where it must be.
ExpressionPtr JsonStringLiteral(std::string_view text);

// Adds the rules that JSON needs to a grammar, each when it is first asked for.
//
// White space: between elements nothing, a space, or a new line and at most 64 spaces and tabs.
// Strings: UTF-8 and all escapes, without lone surrogates. Numbers: at most 20 digits before and
// after the point, exponents of at most two digits, so that a double holds each.
//
// Threads: one at a time.
class JsonSyntax {
 public:
  // REQUIRES: `grammar` outlives this.
  explicit JsonSyntax(Grammar& grammar) : grammar_(grammar) {}

  ExpressionPtr Space();
  // One character of a string, in any spelling.
  ExpressionPtr Character();
  ExpressionPtr String();
  ExpressionPtr Number();
  ExpressionPtr Integer();  // at most 18 digits: 64 bits hold it
  ExpressionPtr Boolean();
  ExpressionPtr Null();
  ExpressionPtr Object();
  ExpressionPtr Array();
  ExpressionPtr Value();
  // The value and no other one; white space may be between its elements.
  //
  // Cost: the depth of the recursion is that of the value.
  ExpressionPtr Literal(const common::JsonValue& value);

  // A member of an object, and what stands between two members or elements.
  ExpressionPtr Member(ExpressionPtr key, ExpressionPtr value);
  ExpressionPtr Comma();

 private:
  ExpressionPtr Once(std::optional<size_t>& rule, std::string_view name, ExpressionPtr body);
  // One or more parts with commas between them, in brackets; or none.
  ExpressionPtr List(char open, ExpressionPtr part, char close);

  Grammar& grammar_;
  std::optional<size_t> space_, character_, string_, number_, integer_, object_, array_, value_;
};

}  // namespace retroinfer::constraint
