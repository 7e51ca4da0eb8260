#include "text/jinja/predicates.h"

#include <string>

#include "absl/container/flat_hash_map.h"
#include "common/status/status_macros.h"
#include "text/jinja/access.h"
#include "text/jinja/call.h"
#include "text/jinja/errors.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/string_methods.h"

namespace retroinfer::jinja {
namespace {

using Result = absl::StatusOr<bool>;

// A test of the value alone.
template <bool (*kHolds)(const Value&)>
Result Plain(Workspace&, const Value& value, const Arguments& arguments) {
  RETURN_IF_ERROR(BoundArguments::Bind("a test", arguments, {}).status());
  return kHolds(value);
}

bool IsDefined(const Value& value) { return !value.is_undefined(); }
bool IsUndefined(const Value& value) { return value.is_undefined(); }
bool IsNone(const Value& value) { return value.is_none(); }
bool IsString(const Value& value) { return value.AsText() != nullptr; }
bool IsMapping(const Value& value) { return value.AsDict() != nullptr; }
bool IsBoolean(const Value& value) { return value.AsBool() != nullptr; }
bool IsInteger(const Value& value) { return value.is_int(); }
bool IsFloat(const Value& value) { return value.AsFloat() != nullptr; }
bool IsNumber(const Value& value) { return value.AsInt().has_value() || IsFloat(value); }
bool IsTrueItself(const Value& value) { return IsBoolean(value) && *value.AsBool(); }
bool IsFalseItself(const Value& value) { return IsBoolean(value) && !*value.AsBool(); }
bool IsEscaped(const Value&) { return false; }

bool IsCallable(const Value& value) {
  return value.is_undefined() || (value.AsObject() != nullptr && value.AsObject()->is_callable());
}

bool IsSequence(const Value& value) {
  if (value.is_undefined() || IsString(value) || IsMapping(value)) return true;
  const Sequence* const sequence = value.AsSequence();
  return sequence != nullptr &&
         (sequence->kind == Sequence::Kind::kList || sequence->kind == Sequence::Kind::kTuple ||
          sequence->kind == Sequence::Kind::kRange);
}

// A comparison with one argument.
enum class Order { kEqual, kNotEqual, kLess, kLessOrEqual, kGreater, kGreaterOrEqual };
template <Order kOrder>
Result Compare(Workspace& workspace, const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("a test", arguments, {"other"}, 1));
  const Value& other = *bound[0];
  if (kOrder == Order::kEqual) return Equal(workspace, value, other);
  if (kOrder == Order::kLess) return Less(workspace, value, other);
  if (kOrder == Order::kGreater) return Less(workspace, other, value);
  ASSIGN_OR_RETURN(const bool equal, Equal(workspace, value, other));
  if (kOrder == Order::kNotEqual) return !equal;
  if (equal) return true;
  return kOrder == Order::kLessOrEqual ? Less(workspace, value, other)
                                       : Less(workspace, other, value);
}

absl::StatusOr<Int> Remainder(Workspace& workspace, const Value& value, const Value& divisor) {
  ASSIGN_OR_RETURN(const Value rest, Apply(workspace, Operator::kModulo, value, divisor));
  if (rest.AsInt().has_value()) return *rest.AsInt();
  ASSIGN_OR_RETURN(const double number, ToDouble(rest));
  return number == 0 ? 0 : number == 1 ? 1 : 2;
}

Result IsOdd(Workspace& workspace, const Value& value, const Arguments&) {
  ASSIGN_OR_RETURN(const Int rest, Remainder(workspace, value, Value(Int{2})));
  return rest == 1;
}

Result IsEven(Workspace& workspace, const Value& value, const Arguments&) {
  ASSIGN_OR_RETURN(const Int rest, Remainder(workspace, value, Value(Int{2})));
  return rest == 0;
}

Result IsDivisibleBy(Workspace& workspace, const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("divisibleby", arguments, {"num"}, 1));
  ASSIGN_OR_RETURN(const Int rest, Remainder(workspace, value, *bound[0]));
  return rest == 0;
}

Result IsIn(Workspace& workspace, const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("in", arguments, {"seq"}, 1));
  return Contains(workspace, *bound[0], value);
}

Result IsSameAs(Workspace& workspace, const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("sameas", arguments, {"other"}, 1));
  if (value.TypeName() != bound[0]->TypeName()) return false;
  return Equal(workspace, value, *bound[0]);
}

// Whether a string is in upper or in lower case.
template <bool kUpper>
Result HasCase(Workspace& workspace, const Value& value, const Arguments&) {
  if (value.AsText() == nullptr) return false;
  const Arguments none;  // GCC 14 does not take a temporary here
  ASSIGN_OR_RETURN(const Value result,
                   FindStringMethod(kUpper ? "isupper" : "islower")(workspace, value, none));
  return IsTrue(result);
}

template <bool kFilters>
Result IsKnown(Workspace&, const Value& value, const Arguments&) {
  if (value.AsText() == nullptr) return false;
  const std::string& name = value.AsText()->bytes();
  return kFilters ? FindFilter(name) != nullptr : FindPredicate(name) != nullptr;
}

const absl::flat_hash_map<std::string, Predicate>& Predicates() {
  static const auto* const kPredicates = new absl::flat_hash_map<std::string, Predicate>{
      {"defined", Plain<IsDefined>},
      {"undefined", Plain<IsUndefined>},
      {"none", Plain<IsNone>},
      {"string", Plain<IsString>},
      {"mapping", Plain<IsMapping>},
      {"boolean", Plain<IsBoolean>},
      {"integer", Plain<IsInteger>},
      {"float", Plain<IsFloat>},
      {"number", Plain<IsNumber>},
      {"true", Plain<IsTrueItself>},
      {"false", Plain<IsFalseItself>},
      {"escaped", Plain<IsEscaped>},
      {"callable", Plain<IsCallable>},
      {"sequence", Plain<IsSequence>},
      {"iterable", Plain<IsIterable>},
      {"odd", IsOdd},
      {"even", IsEven},
      {"divisibleby", IsDivisibleBy},
      {"in", IsIn},
      {"sameas", IsSameAs},
      {"upper", HasCase<true>},
      {"lower", HasCase<false>},
      {"filter", IsKnown<true>},
      {"test", IsKnown<false>},
      {"eq", Compare<Order::kEqual>},
      {"==", Compare<Order::kEqual>},
      {"equalto", Compare<Order::kEqual>},
      {"ne", Compare<Order::kNotEqual>},
      {"!=", Compare<Order::kNotEqual>},
      {"lt", Compare<Order::kLess>},
      {"<", Compare<Order::kLess>},
      {"lessthan", Compare<Order::kLess>},
      {"le", Compare<Order::kLessOrEqual>},
      {"<=", Compare<Order::kLessOrEqual>},
      {"gt", Compare<Order::kGreater>},
      {">", Compare<Order::kGreater>},
      {"greaterthan", Compare<Order::kGreater>},
      {"ge", Compare<Order::kGreaterOrEqual>},
      {">=", Compare<Order::kGreaterOrEqual>},
  };
  return *kPredicates;
}

}  // namespace

Predicate FindPredicate(std::string_view name) {
  const auto found = Predicates().find(absl::string_view(name.data(), name.size()));
  return found == Predicates().end() ? nullptr : found->second;
}

}  // namespace retroinfer::jinja
