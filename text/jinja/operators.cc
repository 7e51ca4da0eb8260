#include "text/jinja/operators.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "common/status/status_macros.h"
#include "text/jinja/access.h"
#include "text/jinja/characters.h"
#include "text/jinja/errors.h"
#include "text/jinja/format.h"

namespace retroinfer::jinja {
namespace {

std::string_view Symbol(Operator op) {
  switch (op) {
    case Operator::kAdd:
      return "+";
    case Operator::kSubtract:
      return "-";
    case Operator::kMultiply:
      return "*";
    case Operator::kDivide:
      return "/";
    case Operator::kFloorDivide:
      return "//";
    case Operator::kModulo:
      return "%";
    case Operator::kPower:
      return "**";
  }
  return "";
}

absl::Status TypesError(Operator op, const Value& left, const Value& right) {
  if (left.is_undefined()) return left.UndefinedError();
  if (right.is_undefined()) return right.UndefinedError();
  return Error({"unsupported operand types for ", Symbol(op), ": '", left.TypeName(), "' and '",
                right.TypeName(), "'"});
}

absl::Status TooLarge() { return Error({"an integer has more than 127 bits"}); }

absl::Status DivisionByZero() { return Error({"division by zero"}); }

absl::StatusOr<Value> Power(Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) return DivisionByZero();
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  Int result = 1;
  if (base == 0 || base == 1) return Value(exponent == 0 ? Int{1} : base);
  if (base == -1) return Value(exponent % 2 == 0 ? Int{1} : Int{-1});
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) return TooLarge();
  }
  return Value(result);
}

absl::StatusOr<Value> ApplyToInts(Operator op, Int left, Int right) {
  Int result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(left, right, &result)) return TooLarge();
      return Value(result);
    case Operator::kSubtract:
      if (__builtin_sub_overflow(left, right, &result)) return TooLarge();
      return Value(result);
    case Operator::kMultiply:
      if (__builtin_mul_overflow(left, right, &result)) return TooLarge();
      return Value(result);
    case Operator::kDivide:
      if (right == 0) return DivisionByZero();
      return Value(static_cast<double>(left) / static_cast<double>(right));
    case Operator::kFloorDivide:
    case Operator::kModulo: {
      if (right == 0) return DivisionByZero();
      if (right == -1) {  // the one quotient that may not fit
        if (op == Operator::kModulo) return Value(Int{0});
        return Negate(Value(left));
      }
      Int quotient = left / right;
      Int remainder = left % right;
      if (remainder != 0 && (remainder < 0) != (right < 0)) {
        remainder += right;
        --quotient;
      }
      return Value(op == Operator::kModulo ? remainder : quotient);
    }
    case Operator::kPower:
      return Power(left, right);
  }
  return TooLarge();
}

absl::StatusOr<Value> ApplyToFloats(Operator op, double left, double right) {
  switch (op) {
    case Operator::kAdd:
      return Value(left + right);
    case Operator::kSubtract:
      return Value(left - right);
    case Operator::kMultiply:
      return Value(left * right);
    case Operator::kDivide:
      if (right == 0) return DivisionByZero();
      return Value(left / right);
    case Operator::kFloorDivide:
    case Operator::kModulo: {
      if (right == 0) return DivisionByZero();
      double remainder = std::fmod(left, right);
      if (remainder != 0 && (remainder < 0) != (right < 0)) remainder += right;
      if (op == Operator::kModulo) return Value(remainder);
      return Value(std::round((left - remainder) / right));
    }
    case Operator::kPower: {
      const double result = std::pow(left, right);
      if (std::isfinite(result)) return Value(result);
      return Error({"the result of ** is no finite number"});
    }
  }
  return DivisionByZero();
}

bool IsJoinable(const Value& value) {
  const Sequence* const sequence = value.AsSequence();
  return sequence != nullptr &&
         (sequence->kind == Sequence::Kind::kList || sequence->kind == Sequence::Kind::kTuple);
}

absl::StatusOr<Value> Repeat(Workspace& workspace, const Value& value, Int times) {
  if (times < 0) times = 0;
  const Text* const text = value.AsText();
  const size_t size =
      text != nullptr ? text->size() : value.AsSequence()->items.size() * sizeof(Value);
  if (size != 0 && times > std::numeric_limits<int32_t>::max()) {
    return OverLimit({"a value is repeated more than 2147483647 times"});
  }
  if (size == 0) times = 0;
  const auto count = static_cast<size_t>(times);
  RETURN_IF_ERROR(workspace.Expect(size * count));
  if (text != nullptr) {
    Text result;
    result.Reserve(size * count);
    for (size_t i = 0; i < count; ++i) result.Append(*text);
    return workspace.String(std::move(result));
  }
  Values items;
  for (size_t i = 0; i < count; ++i) {
    items.insert(items.end(), value.AsSequence()->items.begin(), value.AsSequence()->items.end());
  }
  return workspace.Items(value.AsSequence()->kind, std::move(items));
}

// The operators that strings and sequences have; nothing if this is none of them.
absl::StatusOr<std::optional<Value>> ApplyToSequences(Workspace& workspace, Operator op,
                                                      const Value& left, const Value& right) {
  if (op == Operator::kAdd && left.AsText() != nullptr && right.AsText() != nullptr) {
    RETURN_IF_ERROR(workspace.Expect(left.AsText()->size() + right.AsText()->size()));
    Text text;
    text.Reserve(left.AsText()->size() + right.AsText()->size());
    text.Append(*left.AsText());
    text.Append(*right.AsText());
    return workspace.String(std::move(text));
  }
  if (op == Operator::kAdd && IsJoinable(left) && IsJoinable(right) &&
      left.AsSequence()->kind == right.AsSequence()->kind) {
    Values items = left.AsSequence()->items;
    items.insert(items.end(), right.AsSequence()->items.begin(), right.AsSequence()->items.end());
    return workspace.Items(left.AsSequence()->kind, std::move(items));
  }
  if (op == Operator::kMultiply) {
    if ((left.AsText() != nullptr || IsJoinable(left)) && right.AsInt().has_value()) {
      return Repeat(workspace, left, *right.AsInt());
    }
    if ((right.AsText() != nullptr || IsJoinable(right)) && left.AsInt().has_value()) {
      return Repeat(workspace, right, *left.AsInt());
    }
  }
  if (op == Operator::kModulo && left.AsText() != nullptr) {
    return FormatPercent(workspace, *left.AsText(), right);
  }
  return std::nullopt;
}

// Compares item by item; `compare` says what counts where one is the beginning of the other.
absl::StatusOr<bool> LessItems(Workspace& workspace, const Values& left, const Values& right) {
  for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    ASSIGN_OR_RETURN(const bool equal, Equal(workspace, left[i], right[i]));
    if (!equal) return Less(workspace, left[i], right[i]);
  }
  return left.size() < right.size();
}

absl::StatusOr<bool> EqualDicts(Workspace& workspace, const Dict& left, const Dict& right) {
  if (left.entries.size() != right.entries.size()) return false;
  for (const Dict::Entry& entry : left.entries) {
    ASSIGN_OR_RETURN(const std::optional<Value> other, FindKey(workspace, right, entry.first));
    if (!other.has_value()) return false;
    ASSIGN_OR_RETURN(const bool equal, Equal(workspace, entry.second, *other));
    if (!equal) return false;
  }
  return true;
}

absl::StatusOr<bool> EqualSequences(Workspace& workspace, const Sequence& left,
                                    const Sequence& right) {
  if (&left == &right) return true;
  if (left.kind != right.kind || left.items.size() != right.items.size()) return false;
  if (left.kind == Sequence::Kind::kGenerator || left.kind == Sequence::Kind::kValues) return false;
  for (size_t i = 0; i < left.items.size(); ++i) {
    ASSIGN_OR_RETURN(const bool equal, Equal(workspace, left.items[i], right.items[i]));
    if (!equal) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<double> ToDouble(const Value& value) {
  if (value.AsFloat() != nullptr) return *value.AsFloat();
  if (const std::optional<Int> number = value.AsInt()) return static_cast<double>(*number);
  if (value.is_undefined()) return value.UndefinedError();
  return Error({"a number is needed, not '", value.TypeName(), "'"});
}

absl::StatusOr<Value> Apply(Workspace& workspace, Operator op, const Value& left,
                            const Value& right) {
  const std::optional<Int> left_int = left.AsInt();
  const std::optional<Int> right_int = right.AsInt();
  if (left_int.has_value() && right_int.has_value()) return ApplyToInts(op, *left_int, *right_int);
  const bool left_is_number = left_int.has_value() || left.AsFloat() != nullptr;
  const bool right_is_number = right_int.has_value() || right.AsFloat() != nullptr;
  if (left_is_number && right_is_number) {
    ASSIGN_OR_RETURN(const double a, ToDouble(left));
    ASSIGN_OR_RETURN(const double b, ToDouble(right));
    return ApplyToFloats(op, a, b);
  }
  ASSIGN_OR_RETURN(std::optional<Value> result, ApplyToSequences(workspace, op, left, right));
  if (result.has_value()) return *std::move(result);
  return TypesError(op, left, right);
}

absl::StatusOr<Value> Negate(const Value& value) {
  if (const std::optional<Int> number = value.AsInt()) {
    Int result = 0;
    if (__builtin_sub_overflow(Int{0}, *number, &result)) return TooLarge();
    return Value(result);
  }
  ASSIGN_OR_RETURN(const double number, ToDouble(value));
  return Value(-number);
}

bool IsTrue(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const std::optional<Int> number = value.AsInt()) return *number != 0;
  if (value.AsFloat() != nullptr) return *value.AsFloat() != 0;
  if (value.AsText() != nullptr) return !value.AsText()->empty();
  if (value.AsDict() != nullptr) return !value.AsDict()->entries.empty();
  if (const Sequence* const sequence = value.AsSequence()) {
    return sequence->kind == Sequence::Kind::kGenerator || !sequence->items.empty();
  }
  return true;
}

absl::StatusOr<bool> Equal(Workspace& workspace, const Value& left, const Value& right) {
  RETURN_IF_ERROR(workspace.Spend(1));
  if (left.is_undefined() || right.is_undefined()) {
    return left.is_undefined() && right.is_undefined();
  }
  if (left.is_none() || right.is_none()) return left.is_none() && right.is_none();
  if (left.AsInt().has_value() && right.AsInt().has_value()) {
    return *left.AsInt() == *right.AsInt();
  }
  if (left.AsText() != nullptr && right.AsText() != nullptr) {
    RETURN_IF_ERROR(workspace.Spend(left.AsText()->size() / 256));
    return left.AsText()->bytes() == right.AsText()->bytes();
  }
  if (left.AsDict() != nullptr && right.AsDict() != nullptr) {
    return EqualDicts(workspace, *left.AsDict(), *right.AsDict());
  }
  if (left.AsSequence() != nullptr && right.AsSequence() != nullptr) {
    return EqualSequences(workspace, *left.AsSequence(), *right.AsSequence());
  }
  if (left.AsObject() != nullptr) return left.AsObject() == right.AsObject();
  const absl::StatusOr<double> a = ToDouble(left);
  const absl::StatusOr<double> b = ToDouble(right);
  return a.ok() && b.ok() && *a == *b;
}

absl::StatusOr<bool> Less(Workspace& workspace, const Value& left, const Value& right) {
  RETURN_IF_ERROR(workspace.Spend(1));
  if (left.AsInt().has_value() && right.AsInt().has_value()) return *left.AsInt() < *right.AsInt();
  if (left.AsText() != nullptr && right.AsText() != nullptr) {
    RETURN_IF_ERROR(workspace.Spend(left.AsText()->size() / 256));
    // The order of UTF-8's bytes is that of the characters.
    return left.AsText()->bytes() < right.AsText()->bytes();
  }
  if (IsJoinable(left) && IsJoinable(right) &&
      left.AsSequence()->kind == right.AsSequence()->kind) {
    return LessItems(workspace, left.AsSequence()->items, right.AsSequence()->items);
  }
  const absl::StatusOr<double> a = ToDouble(left);
  const absl::StatusOr<double> b = ToDouble(right);
  if (a.ok() && b.ok()) return *a < *b;
  if (left.is_undefined()) return left.UndefinedError();
  if (right.is_undefined()) return right.UndefinedError();
  return Error({"'", left.TypeName(), "' and '", right.TypeName(), "' have no order"});
}

absl::StatusOr<bool> Contains(Workspace& workspace, const Value& container, const Value& item) {
  if (container.is_undefined()) return false;
  if (const Text* const text = container.AsText()) {
    if (item.AsText() == nullptr) {
      if (item.is_undefined()) return item.UndefinedError();
      return Error({"'in <string>' requires a string as left operand, not ", item.TypeName()});
    }
    RETURN_IF_ERROR(workspace.Expect(text->size()));
    return text->bytes().find(item.AsText()->bytes()) != std::string::npos;
  }
  if (const Dict* const dict = container.AsDict()) {
    if (!item.is_undefined()) RETURN_IF_ERROR(CheckKey(item));
    ASSIGN_OR_RETURN(const std::optional<Value> found, FindKey(workspace, *dict, item));
    return found.has_value();
  }
  ASSIGN_OR_RETURN(const Items items, Iterate(workspace, container));
  for (const Value& candidate : *items) {
    ASSIGN_OR_RETURN(const bool equal, Equal(workspace, candidate, item));
    if (equal) return true;
  }
  return false;
}

absl::Status CheckKey(const Value& value) {
  const Sequence* const sequence = value.AsSequence();
  if (value.AsDict() != nullptr ||
      (sequence != nullptr && sequence->kind == Sequence::Kind::kList)) {
    return Error({"unhashable type: '", value.TypeName(), "'"});
  }
  if (sequence != nullptr) {
    for (const Value& item : sequence->items) RETURN_IF_ERROR(CheckKey(item));
  }
  return absl::OkStatus();
}

}  // namespace retroinfer::jinja
