#include "text/jinja/evaluator.h"

#include <string>

#include "absl/strings/cord.h"
#include "common/status/status_macros.h"
#include "text/jinja/access.h"
#include "text/jinja/errors.h"
#include "text/jinja/filters.h"
#include "text/jinja/globals.h"
#include "text/jinja/lexer.h"
#include "text/jinja/operators.h"
#include "text/jinja/predicates.h"
#include "text/jinja/printing.h"

namespace retroinfer::jinja {
namespace {

constexpr char kLocatedUrl[] = "retroinfer/template-line";

using Result = absl::StatusOr<Value>;
using Kind = Expression::Kind;

absl::StatusOr<bool> Compare(Workspace& workspace, Comparison comparison, const Value& left,
                             const Value& right) {
  switch (comparison) {
    case Comparison::kEqual:
      return Equal(workspace, left, right);
    case Comparison::kNotEqual: {
      ASSIGN_OR_RETURN(const bool equal, Equal(workspace, left, right));
      return !equal;
    }
    case Comparison::kLess:
      return Less(workspace, left, right);
    case Comparison::kGreater:
      return Less(workspace, right, left);
    case Comparison::kLessOrEqual:
    case Comparison::kGreaterOrEqual: {
      const bool is_less = comparison == Comparison::kLessOrEqual;
      ASSIGN_OR_RETURN(const bool ordered,
                       is_less ? Less(workspace, left, right) : Less(workspace, right, left));
      if (ordered) return true;
      return Equal(workspace, left, right);
    }
    case Comparison::kIn:
      return Contains(workspace, right, left);
    case Comparison::kNotIn: {
      ASSIGN_OR_RETURN(const bool contained, Contains(workspace, right, left));
      return !contained;
    }
  }
  return false;
}

}  // namespace

absl::Status Locate(int line, const absl::Status& status) {
  if (status.GetPayload(kLocatedUrl).has_value()) return status;
  absl::Status located = AtLine(line, status);
  located.SetPayload(kLocatedUrl, absl::Cord());
  return located;
}

absl::Status Evaluator::Level::Check() const {
  const int depth_max = evaluator_.workspace_.limits().call_depth_max;
  if (evaluator_.depth_ <= depth_max) return absl::OkStatus();
  return OverLimit({"calls are nested deeper than ", std::to_string(depth_max), " levels"});
}

Result Evaluator::Evaluate(const Expression& expression) {
  const Level level(*this);
  if (const absl::Status status = level.Check(); !status.ok()) {
    return Locate(expression.line, status);
  }
  Result result = EvaluateUnlocated(expression);
  if (!result.ok()) return Locate(expression.line, result.status());
  return result;
}

absl::StatusOr<bool> Evaluator::Test(const Expression& expression) {
  ASSIGN_OR_RETURN(const Value value, Evaluate(expression));
  return IsTrue(value);
}

Result Evaluator::EvaluateUnlocated(const Expression& expression) {
  RETURN_IF_ERROR(workspace_.Spend(1));
  switch (expression.kind) {
    case Kind::kLiteral:
      return expression.literal;
    case Kind::kName:
      return LookUp(expression.name);
    case Kind::kTuple:
      return MakeItems(expression, Sequence::Kind::kTuple);
    case Kind::kList:
      return MakeItems(expression, Sequence::Kind::kList);
    case Kind::kDict:
      return MakeDict(expression);
    case Kind::kAttribute: {
      ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.operands[0]));
      return GetAttribute(workspace_, object, expression.name);
    }
    case Kind::kItem:
      return EvaluateItem(expression);
    case Kind::kSlice:
      return EvaluateSlice(expression);
    case Kind::kCall:
      return EvaluateCall(expression, nullptr);
    case Kind::kFilter: {
      ASSIGN_OR_RETURN(const Value input, Evaluate(*expression.operands[0]));
      return EvaluateFilter(expression, input);
    }
    case Kind::kTest:
      return EvaluateTest(expression);
    case Kind::kNegate:
    case Kind::kPlus:
      return EvaluateSign(expression);
    case Kind::kBinary:
      return EvaluateBinary(expression);
    case Kind::kConcat:
      return EvaluateConcat(expression);
    case Kind::kAnd:
    case Kind::kOr:
    case Kind::kNot:
      return EvaluateLogic(expression);
    case Kind::kCompare:
      return EvaluateComparison(expression);
    case Kind::kConditional:
      return EvaluateConditional(expression);
  }
  return Error({"an expression of an unknown kind"});
}

Result Evaluator::LookUp(std::string_view name) {
  if (const Value* const variable = scope_->Find(name)) return *variable;
  if (const Value* const global = FindGlobal(name)) return *global;
  return Value::Missing({"'", name, "' is undefined"});
}

Result Evaluator::MakeItems(const Expression& expression, Sequence::Kind kind) {
  Values items;
  for (const ExpressionPtr& operand : expression.operands) {
    ASSIGN_OR_RETURN(items.emplace_back(), Evaluate(*operand));
  }
  return workspace_.Items(kind, std::move(items));
}

Result Evaluator::MakeDict(const Expression& expression) {
  std::vector<Dict::Entry> entries;
  for (size_t i = 0; i + 1 < expression.operands.size(); i += 2) {
    ASSIGN_OR_RETURN(Value key, Evaluate(*expression.operands[i]));
    ASSIGN_OR_RETURN(Value value, Evaluate(*expression.operands[i + 1]));
    entries.emplace_back(std::move(key), std::move(value));
  }
  return workspace_.MakeDict(std::move(entries));
}

Result Evaluator::EvaluateItem(const Expression& expression) {
  ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.operands[0]));
  ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.operands[1]));
  return GetItem(workspace_, object, key);
}

Result Evaluator::EvaluateSlice(const Expression& expression) {
  Values parts(4, None());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (expression.operands[i] == nullptr) continue;
    ASSIGN_OR_RETURN(parts[i], Evaluate(*expression.operands[i]));
  }
  return Slice(workspace_, parts[0], parts[1], parts[2], parts[3]);
}

Result Evaluator::EvaluateBinary(const Expression& expression) {
  ASSIGN_OR_RETURN(const Value left, Evaluate(*expression.operands[0]));
  ASSIGN_OR_RETURN(const Value right, Evaluate(*expression.operands[1]));
  return Apply(workspace_, expression.op, left, right);
}

Result Evaluator::EvaluateSign(const Expression& expression) {
  ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.operands[0]));
  if (expression.kind == Kind::kNegate) return Negate(value);
  RETURN_IF_ERROR(ToDouble(value).status());
  return value.AsInt().has_value() ? Value(*value.AsInt()) : value;
}

Result Evaluator::EvaluateLogic(const Expression& expression) {
  if (expression.kind == Kind::kNot) {
    ASSIGN_OR_RETURN(const bool truth, Test(*expression.operands[0]));
    return Value(!truth);
  }
  // The value that decides, as in Python.
  Value value;
  for (const ExpressionPtr& operand : expression.operands) {
    ASSIGN_OR_RETURN(value, Evaluate(*operand));
    if (IsTrue(value) == (expression.kind == Kind::kOr)) break;
  }
  return value;
}

Result Evaluator::EvaluateConcat(const Expression& expression) {
  Text text;
  for (const ExpressionPtr& operand : expression.operands) {
    ASSIGN_OR_RETURN(const Value value, Evaluate(*operand));
    ASSIGN_OR_RETURN(const Text part, Str(workspace_, value));
    text.Append(part);
    RETURN_IF_ERROR(workspace_.CheckRoom(text.size()));
  }
  return workspace_.String(std::move(text));
}

Result Evaluator::EvaluateComparison(const Expression& expression) {
  ASSIGN_OR_RETURN(Value left, Evaluate(*expression.operands[0]));
  for (size_t i = 0; i < expression.comparisons.size(); ++i) {
    ASSIGN_OR_RETURN(Value right, Evaluate(*expression.operands[i + 1]));
    ASSIGN_OR_RETURN(const bool holds, Compare(workspace_, expression.comparisons[i], left, right));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result Evaluator::EvaluateConditional(const Expression& expression) {
  ASSIGN_OR_RETURN(const bool condition, Test(*expression.operands[0]));
  if (condition) return Evaluate(*expression.operands[1]);
  if (expression.operands[2] != nullptr) return Evaluate(*expression.operands[2]);
  return Value::Missing({"the inline if-expression evaluated to false and no else is defined"});
}

Result Evaluator::EvaluateFilter(const Expression& expression, const Value& input) {
  const Filter filter = FindFilter(expression.name);
  if (filter == nullptr) return Unsupported({"the filter '", expression.name, "'"});
  ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression.arguments));
  return filter(workspace_, input, arguments);
}

Result Evaluator::EvaluateTest(const Expression& expression) {
  const Predicate predicate = FindPredicate(expression.name);
  if (predicate == nullptr) return Unsupported({"the test '", expression.name, "'"});
  ASSIGN_OR_RETURN(const Value subject, Evaluate(*expression.operands[0]));
  ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression.arguments));
  ASSIGN_OR_RETURN(const bool holds, predicate(workspace_, subject, arguments));
  return Value(holds);
}

absl::StatusOr<Arguments> Evaluator::EvaluateArguments(const CallArguments& arguments) {
  Arguments values;
  for (const ExpressionPtr& item : arguments.positional) {
    ASSIGN_OR_RETURN(values.positional.emplace_back(), Evaluate(*item));
  }
  if (arguments.sequence != nullptr) {
    ASSIGN_OR_RETURN(const Value sequence, Evaluate(*arguments.sequence));
    ASSIGN_OR_RETURN(const Items items, Iterate(workspace_, sequence));
    values.positional.insert(values.positional.end(), items->begin(), items->end());
  }
  for (const auto& [name, item] : arguments.named) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*item));
    values.named.emplace_back(name, std::move(value));
  }
  if (arguments.mapping != nullptr) {
    ASSIGN_OR_RETURN(const Value mapping, Evaluate(*arguments.mapping));
    if (mapping.AsDict() == nullptr) return Error({"the argument behind ** must be a dict"});
    for (const Dict::Entry& entry : mapping.AsDict()->entries) {
      if (entry.first.AsText() == nullptr) return Error({"keywords must be strings"});
      values.named.emplace_back(entry.first.AsText()->bytes(), entry.second);
    }
  }
  return values;
}

Result Evaluator::EvaluateCall(const Expression& call, const Value* caller) {
  ASSIGN_OR_RETURN(const Value function, Evaluate(*call.operands[0]));
  ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(call.arguments));
  if (function.is_undefined()) return function.UndefinedError();
  Object* const object = function.AsObject();
  if (object == nullptr || !object->is_callable()) {
    return Error({"'", function.TypeName(), "' object is not callable"});
  }
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  return object->Call(workspace_, arguments);
}

Result Evaluator::CallWith(const Expression& call, Value caller) {
  Result result = EvaluateCall(call, &caller);
  if (!result.ok()) return Locate(call.line, result.status());
  return result;
}

Result Evaluator::ApplyFilters(const Expression& chain, Value input) {
  if (chain.operands[0] != nullptr) {
    ASSIGN_OR_RETURN(input, ApplyFilters(*chain.operands[0], std::move(input)));
  }
  Result result = EvaluateFilter(chain, input);
  if (!result.ok()) return Locate(chain.line, result.status());
  return result;
}

absl::Status Evaluator::Assign(const Target& target, const Value& value) {
  if (!target.attribute.empty()) {
    ASSIGN_OR_RETURN(const Value object, LookUp(target.name));
    if (!IsNamespace(object)) return Error({"cannot assign attribute on non-namespace object"});
    return object.AsObject()->SetAttribute(target.attribute, value);
  }
  if (target.parts.empty()) {
    scope_->Set(target.name, value);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Items items, Iterate(workspace_, value));
  if (items->size() != target.parts.size()) {
    return Error({"expected ", std::to_string(target.parts.size()), " values to unpack, got ",
                  std::to_string(items->size())});
  }
  for (size_t i = 0; i < items->size(); ++i) {
    RETURN_IF_ERROR(Assign(target.parts[i], (*items)[i]));
  }
  return absl::OkStatus();
}

}  // namespace retroinfer::jinja
