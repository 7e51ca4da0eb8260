// Parses expressions.
#pragma once

#include <initializer_list>
#include <string_view>

#include "absl/status/statusor.h"
#include "text/jinja/syntax.h"
#include "text/jinja/token_stream.h"

namespace retroinfer::jinja {

// Jinja's grammar, from the loosest binding to the tightest: `a if c else b`, or, and, not,
// comparisons, + -, ~, * / // %, **, signs, and what stands behind a value: .name [item] (call)
// |filter `is test`.
//
// Every method returns INVALID_ARGUMENT with the line, for what is no expression and for one that
// is nested deeper than kHeightMax.
class ExpressionParser {
 public:
  static constexpr int kHeightMax = 200;
  static constexpr int kNestingMax = 100;  // of brackets, signs and the like

  explicit ExpressionParser(TokenStream& stream) : stream_(stream) {}

  absl::StatusOr<ExpressionPtr> Parse();
  // The same without `if`, for what a loop runs over.
  absl::StatusOr<ExpressionPtr> ParseWithoutCondition() { return ParseOr(); }
  // An expression, or a tuple of some that are separated by commas. An empty one only with
  // `may_be_empty`.
  absl::StatusOr<ExpressionPtr> ParseTuple(bool with_condition, bool may_be_empty);
  // A chain of filters "a(x)|b" that is applied to the text of a block.
  absl::StatusOr<ExpressionPtr> ParseFilterChain();
  absl::StatusOr<CallArguments> ParseArguments();

 private:
  using Rule = absl::StatusOr<ExpressionPtr> (ExpressionParser::*)();

  absl::StatusOr<ExpressionPtr> Finish(ExpressionPtr expression) const;
  absl::StatusOr<ExpressionPtr> ParseOr();
  absl::StatusOr<ExpressionPtr> ParseAnd();
  absl::StatusOr<ExpressionPtr> ParseNot();
  absl::StatusOr<ExpressionPtr> ParseComparison();
  absl::StatusOr<ExpressionPtr> ParseSum();
  absl::StatusOr<ExpressionPtr> ParseConcat();
  absl::StatusOr<ExpressionPtr> ParseProduct();
  absl::StatusOr<ExpressionPtr> ParsePower();
  absl::StatusOr<ExpressionPtr> ParseSigned() { return ParseUnary(true); }
  absl::StatusOr<ExpressionPtr> ParseUnary(bool with_filters);
  absl::StatusOr<ExpressionPtr> ParsePrimary();
  absl::StatusOr<ExpressionPtr> ParseNameOrConstant();
  absl::StatusOr<ExpressionPtr> ParseList();
  absl::StatusOr<ExpressionPtr> ParseDict();
  absl::StatusOr<ExpressionPtr> ParsePostfix(ExpressionPtr expression);
  absl::StatusOr<ExpressionPtr> ParseFilters(ExpressionPtr expression);
  absl::StatusOr<ExpressionPtr> ParseFilter(ExpressionPtr input);
  absl::StatusOr<ExpressionPtr> ParseTest(ExpressionPtr subject);
  absl::StatusOr<ExpressionPtr> ParseDot(ExpressionPtr object);
  absl::StatusOr<ExpressionPtr> ParseSubscript(ExpressionPtr object);
  bool AtTupleEnd() const;

  TokenStream& stream_;
  int nesting_ = 0;
};

}  // namespace retroinfer::jinja
