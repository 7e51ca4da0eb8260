#include "text/jinja/expression_parser.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/status/status_macros.h"
#include "text/jinja/errors.h"
#include "text/jinja/lexer.h"

namespace retroinfer::jinja {
namespace {

using Result = absl::StatusOr<ExpressionPtr>;
using Kind = Expression::Kind;

ExpressionPtr Make(Kind kind, int line) {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = line;
  return expression;
}

ExpressionPtr MakeLiteral(Value value, int line) {
  ExpressionPtr expression = Make(Kind::kLiteral, line);
  expression->literal = std::move(value);
  return expression;
}

int HeightOf(const ExpressionPtr& expression) {
  return expression == nullptr ? 0 : expression->height;
}

// Counts a level of nesting while it lives.
class Level {
 public:
  explicit Level(int& nesting) : nesting_(nesting) { ++nesting_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  ~Level() { --nesting_; }

 private:
  int& nesting_;
};

std::optional<Operator> BinaryOperator(std::string_view text) {
  if (text == "+") return Operator::kAdd;
  if (text == "-") return Operator::kSubtract;
  if (text == "*") return Operator::kMultiply;
  if (text == "/") return Operator::kDivide;
  if (text == "//") return Operator::kFloorDivide;
  if (text == "%") return Operator::kModulo;
  if (text == "**") return Operator::kPower;
  return std::nullopt;
}

std::optional<Comparison> ComparisonOf(const TokenStream& stream) {
  if (stream.AtName("in")) return Comparison::kIn;
  if (stream.AtName("not") && stream.next().Is(Token::Kind::kName, "in")) {
    return Comparison::kNotIn;
  }
  if (stream.AtOperator("==")) return Comparison::kEqual;
  if (stream.AtOperator("!=")) return Comparison::kNotEqual;
  if (stream.AtOperator("<")) return Comparison::kLess;
  if (stream.AtOperator("<=")) return Comparison::kLessOrEqual;
  if (stream.AtOperator(">")) return Comparison::kGreater;
  if (stream.AtOperator(">=")) return Comparison::kGreaterOrEqual;
  return std::nullopt;
}

}  // namespace

Result ExpressionParser::Finish(ExpressionPtr expression) const {
  int height = 0;
  for (const ExpressionPtr& operand : expression->operands) {
    height = std::max(height, HeightOf(operand));
  }
  const CallArguments& arguments = expression->arguments;
  for (const ExpressionPtr& item : arguments.positional) height = std::max(height, HeightOf(item));
  for (const auto& [name, item] : arguments.named) height = std::max(height, HeightOf(item));
  height = std::max({height, HeightOf(arguments.sequence), HeightOf(arguments.mapping)});
  expression->height = height + 1;
  if (expression->height <= kHeightMax) return expression;
  return AtLine(expression->line, OverLimit({"an expression is nested deeper than ",
                                             std::to_string(kHeightMax), " levels"}));
}

Result ExpressionParser::Parse() {
  const Level level(nesting_);
  if (nesting_ > kNestingMax) {
    return AtLine(stream_.line(), OverLimit({"an expression is nested deeper than ",
                                             std::to_string(kNestingMax), " levels"}));
  }
  const int line = stream_.line();
  ASSIGN_OR_RETURN(ExpressionPtr value, ParseOr());
  while (stream_.SkipName("if")) {
    ExpressionPtr conditional = Make(Kind::kConditional, line);
    ASSIGN_OR_RETURN(ExpressionPtr condition, ParseOr());
    ExpressionPtr otherwise;
    if (stream_.SkipName("else")) {
      ASSIGN_OR_RETURN(otherwise, Parse());
    }
    conditional->operands.push_back(std::move(condition));
    conditional->operands.push_back(std::move(value));
    conditional->operands.push_back(std::move(otherwise));
    ASSIGN_OR_RETURN(value, Finish(std::move(conditional)));
  }
  return value;
}

Result ExpressionParser::ParseOr() {
  ASSIGN_OR_RETURN(ExpressionPtr first, ParseAnd());
  if (!stream_.AtName("or")) return first;
  ExpressionPtr all = Make(Kind::kOr, first->line);
  all->operands.push_back(std::move(first));
  while (stream_.SkipName("or")) {
    ASSIGN_OR_RETURN(all->operands.emplace_back(), ParseAnd());
  }
  return Finish(std::move(all));
}

Result ExpressionParser::ParseAnd() {
  ASSIGN_OR_RETURN(ExpressionPtr first, ParseNot());
  if (!stream_.AtName("and")) return first;
  ExpressionPtr all = Make(Kind::kAnd, first->line);
  all->operands.push_back(std::move(first));
  while (stream_.SkipName("and")) {
    ASSIGN_OR_RETURN(all->operands.emplace_back(), ParseNot());
  }
  return Finish(std::move(all));
}

Result ExpressionParser::ParseNot() {
  if (!stream_.AtName("not")) return ParseComparison();
  const Level level(nesting_);
  if (nesting_ > kNestingMax) return stream_.Fail("too many 'not's");
  ExpressionPtr negation = Make(Kind::kNot, stream_.line());
  stream_.Take();
  ASSIGN_OR_RETURN(negation->operands.emplace_back(), ParseNot());
  return Finish(std::move(negation));
}

Result ExpressionParser::ParseComparison() {
  ASSIGN_OR_RETURN(ExpressionPtr first, ParseSum());
  if (!ComparisonOf(stream_).has_value()) return first;
  ExpressionPtr chain = Make(Kind::kCompare, first->line);
  chain->operands.push_back(std::move(first));
  while (const std::optional<Comparison> comparison = ComparisonOf(stream_)) {
    stream_.Take();
    if (*comparison == Comparison::kNotIn) stream_.Take();
    chain->comparisons.push_back(*comparison);
    ASSIGN_OR_RETURN(chain->operands.emplace_back(), ParseSum());
  }
  return Finish(std::move(chain));
}

Result ExpressionParser::ParseSum() {
  ASSIGN_OR_RETURN(ExpressionPtr left, ParseConcat());
  while (stream_.AtOperator("+") || stream_.AtOperator("-")) {
    ExpressionPtr sum = Make(Kind::kBinary, stream_.line());
    sum->op = *BinaryOperator(stream_.Take().text);
    sum->operands.push_back(std::move(left));
    ASSIGN_OR_RETURN(sum->operands.emplace_back(), ParseConcat());
    ASSIGN_OR_RETURN(left, Finish(std::move(sum)));
  }
  return left;
}

Result ExpressionParser::ParseConcat() {
  ASSIGN_OR_RETURN(ExpressionPtr first, ParseProduct());
  if (!stream_.AtOperator("~")) return first;
  ExpressionPtr all = Make(Kind::kConcat, first->line);
  all->operands.push_back(std::move(first));
  while (stream_.SkipOperator("~")) {
    ASSIGN_OR_RETURN(all->operands.emplace_back(), ParseProduct());
  }
  return Finish(std::move(all));
}

Result ExpressionParser::ParseProduct() {
  ASSIGN_OR_RETURN(ExpressionPtr left, ParsePower());
  while (stream_.AtOperator("*") || stream_.AtOperator("/") || stream_.AtOperator("//") ||
         stream_.AtOperator("%")) {
    ExpressionPtr product = Make(Kind::kBinary, stream_.line());
    product->op = *BinaryOperator(stream_.Take().text);
    product->operands.push_back(std::move(left));
    ASSIGN_OR_RETURN(product->operands.emplace_back(), ParsePower());
    ASSIGN_OR_RETURN(left, Finish(std::move(product)));
  }
  return left;
}

Result ExpressionParser::ParsePower() {
  ASSIGN_OR_RETURN(ExpressionPtr left, ParseSigned());
  while (stream_.AtOperator("**")) {
    ExpressionPtr power = Make(Kind::kBinary, stream_.line());
    power->op = Operator::kPower;
    stream_.Take();
    power->operands.push_back(std::move(left));
    ASSIGN_OR_RETURN(power->operands.emplace_back(), ParseSigned());
    ASSIGN_OR_RETURN(left, Finish(std::move(power)));
  }
  return left;
}

Result ExpressionParser::ParseUnary(bool with_filters) {
  const Level level(nesting_);
  if (nesting_ > kNestingMax) return stream_.Fail("an expression is nested too deeply");
  ExpressionPtr value;
  if (stream_.AtOperator("-") || stream_.AtOperator("+")) {
    value = Make(stream_.AtOperator("-") ? Kind::kNegate : Kind::kPlus, stream_.line());
    stream_.Take();
    ASSIGN_OR_RETURN(value->operands.emplace_back(), ParseUnary(false));
    ASSIGN_OR_RETURN(value, Finish(std::move(value)));
  } else {
    ASSIGN_OR_RETURN(value, ParsePrimary());
  }
  ASSIGN_OR_RETURN(value, ParsePostfix(std::move(value)));
  if (with_filters) return ParseFilters(std::move(value));
  return value;
}

Result ExpressionParser::ParsePrimary() {
  const int line = stream_.line();
  switch (stream_.current().kind) {
    case Token::Kind::kName:
      return ParseNameOrConstant();
    case Token::Kind::kString: {
      std::string text = stream_.Take().text;
      while (stream_.At(Token::Kind::kString)) text.append(stream_.Take().text);
      return MakeLiteral(Value::OfText(Text(text, true)), line);
    }
    case Token::Kind::kInt:
      return MakeLiteral(Value(stream_.Take().number), line);
    case Token::Kind::kFloat:
      return MakeLiteral(Value(stream_.Take().floating), line);
    default:
      break;
  }
  if (stream_.SkipOperator("(")) {
    ASSIGN_OR_RETURN(ExpressionPtr inside, ParseTuple(true, true));
    RETURN_IF_ERROR(stream_.ExpectOperator(")"));
    return inside;
  }
  if (stream_.AtOperator("[")) return ParseList();
  if (stream_.AtOperator("{")) return ParseDict();
  return stream_.Unexpected("an expression");
}

Result ExpressionParser::ParseNameOrConstant() {
  const int line = stream_.line();
  const std::string& name = stream_.Take().text;
  if (name == "true" || name == "True") return MakeLiteral(Value(true), line);
  if (name == "false" || name == "False") return MakeLiteral(Value(false), line);
  if (name == "none" || name == "None") return MakeLiteral(None(), line);
  ExpressionPtr expression = Make(Kind::kName, line);
  expression->name = name;
  return expression;
}

Result ExpressionParser::ParseList() {
  ExpressionPtr list = Make(Kind::kList, stream_.line());
  stream_.Take();
  while (!stream_.AtOperator("]")) {
    if (!list->operands.empty()) RETURN_IF_ERROR(stream_.ExpectOperator(","));
    if (stream_.AtOperator("]")) break;
    ASSIGN_OR_RETURN(list->operands.emplace_back(), Parse());
  }
  RETURN_IF_ERROR(stream_.ExpectOperator("]"));
  return Finish(std::move(list));
}

Result ExpressionParser::ParseDict() {
  ExpressionPtr dict = Make(Kind::kDict, stream_.line());
  stream_.Take();
  while (!stream_.AtOperator("}")) {
    if (!dict->operands.empty()) RETURN_IF_ERROR(stream_.ExpectOperator(","));
    if (stream_.AtOperator("}")) break;
    ASSIGN_OR_RETURN(dict->operands.emplace_back(), Parse());
    RETURN_IF_ERROR(stream_.ExpectOperator(":"));
    ASSIGN_OR_RETURN(dict->operands.emplace_back(), Parse());
  }
  RETURN_IF_ERROR(stream_.ExpectOperator("}"));
  return Finish(std::move(dict));
}

bool ExpressionParser::AtTupleEnd() const {
  return stream_.At(Token::Kind::kOutputEnd) || stream_.At(Token::Kind::kBlockEnd) ||
         stream_.AtOperator(")") || stream_.AtName("recursive");
}

Result ExpressionParser::ParseTuple(bool with_condition, bool may_be_empty) {
  const int line = stream_.line();
  ExpressionPtr tuple = Make(Kind::kTuple, line);
  bool is_tuple = false;
  while (!AtTupleEnd()) {
    ASSIGN_OR_RETURN(tuple->operands.emplace_back(), with_condition ? Parse() : ParseOr());
    if (!stream_.SkipOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !tuple->operands.empty()) return std::move(tuple->operands.front());
  if (tuple->operands.empty() && !may_be_empty) return stream_.Unexpected("an expression");
  return Finish(std::move(tuple));
}

Result ExpressionParser::ParsePostfix(ExpressionPtr expression) {
  while (true) {
    if (stream_.AtOperator(".")) {
      ASSIGN_OR_RETURN(expression, ParseDot(std::move(expression)));
    } else if (stream_.AtOperator("[")) {
      ASSIGN_OR_RETURN(expression, ParseSubscript(std::move(expression)));
    } else if (stream_.AtOperator("(")) {
      ExpressionPtr call = Make(Kind::kCall, stream_.line());
      call->operands.push_back(std::move(expression));
      ASSIGN_OR_RETURN(call->arguments, ParseArguments());
      ASSIGN_OR_RETURN(expression, Finish(std::move(call)));
    } else {
      return expression;
    }
  }
}

Result ExpressionParser::ParseFilters(ExpressionPtr expression) {
  while (true) {
    if (stream_.SkipOperator("|")) {
      ASSIGN_OR_RETURN(expression, ParseFilter(std::move(expression)));
    } else if (stream_.AtName("is")) {
      ASSIGN_OR_RETURN(expression, ParseTest(std::move(expression)));
    } else if (stream_.AtOperator("(")) {
      ExpressionPtr call = Make(Kind::kCall, stream_.line());
      call->operands.push_back(std::move(expression));
      ASSIGN_OR_RETURN(call->arguments, ParseArguments());
      ASSIGN_OR_RETURN(expression, Finish(std::move(call)));
    } else {
      return expression;
    }
  }
}

Result ExpressionParser::ParseFilter(ExpressionPtr input) {
  ExpressionPtr filter = Make(Kind::kFilter, stream_.line());
  ASSIGN_OR_RETURN(filter->name, stream_.TakeName());
  filter->operands.push_back(std::move(input));
  if (stream_.AtOperator("(")) {
    ASSIGN_OR_RETURN(filter->arguments, ParseArguments());
  }
  return Finish(std::move(filter));
}

Result ExpressionParser::ParseFilterChain() {
  ASSIGN_OR_RETURN(ExpressionPtr chain, ParseFilter(nullptr));
  while (stream_.SkipOperator("|")) {
    ASSIGN_OR_RETURN(chain, ParseFilter(std::move(chain)));
  }
  return chain;
}

Result ExpressionParser::ParseTest(ExpressionPtr subject) {
  ExpressionPtr test = Make(Kind::kTest, stream_.line());
  stream_.Take();
  const bool negated = stream_.SkipName("not");
  ASSIGN_OR_RETURN(test->name, stream_.TakeName());
  test->operands.push_back(std::move(subject));
  const Token& current = stream_.current();
  const bool begins_value =
      current.kind == Token::Kind::kName || current.kind == Token::Kind::kString ||
      current.kind == Token::Kind::kInt || current.kind == Token::Kind::kFloat ||
      stream_.AtOperator("[") || stream_.AtOperator("{");
  if (stream_.AtOperator("(")) {
    ASSIGN_OR_RETURN(test->arguments, ParseArguments());
  } else if (begins_value && !stream_.AtName("else") && !stream_.AtName("or") &&
             !stream_.AtName("and")) {
    if (stream_.AtName("is")) return stream_.Fail("You cannot chain multiple tests with is");
    const Level level(nesting_);
    if (nesting_ > kNestingMax) return stream_.Fail("an expression is nested too deeply");
    ASSIGN_OR_RETURN(ExpressionPtr argument, ParsePrimary());
    ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    test->arguments.positional.push_back(std::move(argument));
  }
  ASSIGN_OR_RETURN(test, Finish(std::move(test)));
  if (!negated) return test;
  ExpressionPtr negation = Make(Kind::kNot, test->line);
  negation->operands.push_back(std::move(test));
  return Finish(std::move(negation));
}

Result ExpressionParser::ParseDot(ExpressionPtr object) {
  const int line = stream_.line();
  stream_.Take();
  ExpressionPtr access = Make(Kind::kAttribute, line);
  access->operands.push_back(std::move(object));
  if (stream_.At(Token::Kind::kInt)) {
    access->kind = Kind::kItem;
    access->operands.push_back(MakeLiteral(Value(stream_.Take().number), line));
    return Finish(std::move(access));
  }
  ASSIGN_OR_RETURN(access->name, stream_.TakeName());
  return Finish(std::move(access));
}

Result ExpressionParser::ParseSubscript(ExpressionPtr object) {
  ExpressionPtr access = Make(Kind::kItem, stream_.line());
  access->operands.push_back(std::move(object));
  stream_.Take();
  ExpressionPtr part;
  if (!stream_.AtOperator(":")) {
    ASSIGN_OR_RETURN(part, Parse());
  }
  if (stream_.AtOperator(":")) {
    access->kind = Kind::kSlice;
    access->operands.push_back(std::move(part));
    for (int i = 0; i < 2; ++i) {
      ExpressionPtr next;
      if (stream_.SkipOperator(":") && !stream_.AtOperator("]") && !stream_.AtOperator(":")) {
        ASSIGN_OR_RETURN(next, Parse());
      }
      access->operands.push_back(std::move(next));
    }
  } else {
    access->operands.push_back(std::move(part));
  }
  RETURN_IF_ERROR(stream_.ExpectOperator("]"));
  return Finish(std::move(access));
}

absl::StatusOr<CallArguments> ExpressionParser::ParseArguments() {
  RETURN_IF_ERROR(stream_.ExpectOperator("("));
  CallArguments arguments;
  bool first = true;
  while (!stream_.AtOperator(")")) {
    if (!first) RETURN_IF_ERROR(stream_.ExpectOperator(","));
    first = false;
    if (stream_.AtOperator(")")) break;
    if (stream_.SkipOperator("*")) {
      if (arguments.sequence != nullptr) return stream_.Fail("a call has two '*'");
      ASSIGN_OR_RETURN(arguments.sequence, Parse());
    } else if (stream_.SkipOperator("**")) {
      if (arguments.mapping != nullptr) return stream_.Fail("a call has two '**'");
      ASSIGN_OR_RETURN(arguments.mapping, Parse());
    } else if (stream_.At(Token::Kind::kName) && stream_.next().Is(Token::Kind::kOperator, "=")) {
      const std::string name = stream_.Take().text;
      stream_.Take();
      ASSIGN_OR_RETURN(ExpressionPtr value, Parse());
      arguments.named.emplace_back(name, std::move(value));
    } else {
      if (!arguments.named.empty()) return stream_.Fail("a value stands behind named ones");
      ASSIGN_OR_RETURN(arguments.positional.emplace_back(), Parse());
    }
  }
  RETURN_IF_ERROR(stream_.ExpectOperator(")"));
  return arguments;
}

}  // namespace retroinfer::jinja
