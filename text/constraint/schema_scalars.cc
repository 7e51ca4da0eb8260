#include "text/constraint/schema_scalars.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "text/constraint/counted_text.h"
#include "text/constraint/invalid_constraint.h"
#include "text/constraint/number_range.h"
#include "text/constraint/regex_parser.h"
#include "text/constraint/string_format.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer::constraint {
namespace {

using common::JsonValue;

struct Fraction {
  int64_t numerator;
  int64_t denominator;  // a power of ten
};

std::optional<Fraction> FractionOf(const Decimal& decimal) {
  constexpr size_t kDigitsMax = 15;
  if (decimal.whole.size() + decimal.fraction.size() > kDigitsMax) return std::nullopt;
  Fraction fraction = {0, 1};
  for (size_t i = 0; i < decimal.fraction.size(); ++i) fraction.denominator *= 10;
  if (!absl::SimpleAtoi(absl::StrCat(decimal.whole, decimal.fraction), &fraction.numerator)) {
    return std::nullopt;
  }
  return fraction;
}

// Narrows `range` to multiples of each of `multiples`.
absl::Status AddMultiples(const std::vector<Decimal>& multiples, std::string_view pointer,
                          NumberRange& range) {
  constexpr int64_t kMultipleMax = 1'000'000;
  for (const Decimal& multiple : multiples) {
    const std::optional<Fraction> fraction = FractionOf(multiple);
    if (!fraction.has_value()) {
      return InvalidConstraint(pointer, "\"multipleOf\" needs a number of at most 15 digits");
    }
    if (!range.is_integer && fraction->numerator == 1) {  // 0.01 is a number of digits
      range.fraction_digits_max = std::min(range.fraction_digits_max, multiple.fraction.size());
      continue;
    }
    if (!range.is_integer && fraction->denominator != 1) {
      return InvalidConstraint(pointer,
                               "\"multipleOf\" of a number is supported for integers and for 0.1, "
                               "0.01 and so on");
    }
    range.is_integer = true;  // multiples of an integer are integers
    const int64_t step = fraction->numerator / std::gcd(fraction->numerator, fraction->denominator);
    const int64_t gcd = std::gcd(step, range.multiple_of);
    if (step > kMultipleMax || range.multiple_of / gcd > kMultipleMax / step) {
      return InvalidConstraint(pointer,
                               absl::StrCat("\"multipleOf\" is supported up to ", kMultipleMax));
    }
    range.multiple_of = range.multiple_of / gcd * step;
  }
  return absl::OkStatus();
}

size_t NumCharacters(std::string_view text) {
  size_t count = 0;
  for (; !text.empty(); text.remove_prefix(NextUtf8(text).length)) ++count;
  return count;
}

// Whether a listed value fulfils the node's other demands, as far as those can be compared.
absl::StatusOr<bool> Fulfils(const JsonValue& value, const SchemaNode& node) {
  const TypeBits type = TypeOf(value);
  if ((node.types & type) == 0) return false;
  const auto not_compared = [&node](std::string_view what) {
    return InvalidConstraint(node.pointer, absl::StrCat("\"enum\" and \"const\" together with ",
                                                        std::string(what), " are not supported"));
  };
  if (value.IsString()) {
    if (!node.string.patterns.empty() || !node.string.formats.empty()) {
      return not_compared("\"pattern\" or \"format\"");
    }
    const size_t length = NumCharacters(*value.String());
    return length >= node.string.min_length && length <= node.string.max_length.value_or(length);
  }
  if (value.IsNumber()) {
    const std::optional<Decimal> number = Decimal::Parse(value.Text());
    if (!number.has_value()) return InvalidConstraint(node.pointer, "lists too long a number");
    if (!node.number.multiples_of.empty()) return not_compared("\"multipleOf\"");
    const auto order = [&number](const NumberBound& bound) {
      return Compare(*number, bound.value);
    };
    const auto& [min, max, multiples] = node.number;
    return (!min.has_value() || order(*min) >= (min->is_exclusive ? 1 : 0)) &&
           (!max.has_value() || order(*max) <= (max->is_exclusive ? -1 : 0));
  }
  if (value.IsArray()) {
    const ArrayDemands& array = node.array;
    if (!array.prefix.empty() || !array.items.empty() || array.is_unique || array.min_items > 0 ||
        array.max_items.has_value()) {
      return not_compared("the keywords of arrays");
    }
  }
  if (value.IsObject()) {
    const ObjectDemands& object = node.object;
    if (!object.properties.empty() || !object.required.empty() || !object.additional.empty() ||
        !object.names.empty() || !object.pattern_properties.empty() || object.min_properties > 0 ||
        object.max_properties.has_value()) {
      return not_compared("the keywords of objects");
    }
  }
  return true;
}

ExpressionPtr InQuotes(ExpressionPtr text) {
  return Sequence({Bytes("\""), std::move(text), Bytes("\"")});
}

}  // namespace

absl::StatusOr<ExpressionPtr> CompileString(const StringDemands& string, std::string_view pointer,
                                            JsonSyntax& json, const Limits& limits) {
  const size_t max = string.max_length.value_or(SIZE_MAX);
  if (string.min_length > max) return Nothing();
  const TextLengths lengths = {.min = string.min_length, .max = string.max_length};
  if (string.patterns.empty() && string.formats.empty()) {
    if (string.min_length == 0 && !string.max_length.has_value()) return json.String();
    if (string.min_length > limits.nodes_max ||
        (string.max_length.has_value() && max > limits.nodes_max)) {
      return InvalidConstraint(pointer, absl::StrCat("\"minLength\" and \"maxLength\" may be ",
                                                     limits.nodes_max, " at most"));
    }
    return InQuotes(
        Repeat(json.Character(), static_cast<int64_t>(string.min_length),
               string.max_length.has_value() ? static_cast<int64_t>(max) : Expression::kUnbounded));
  }
  if (string.patterns.size() + string.formats.size() > 1) {
    return InvalidConstraint(pointer,
                             "more than one \"pattern\" or \"format\" for a string is not "
                             "supported");
  }
  const bool is_pattern = !string.patterns.empty();
  const std::string_view pattern =
      is_pattern ? string.patterns[0] : *PatternOfFormat(string.formats[0]);
  RegexOptions options = {.is_search = is_pattern};
  const auto plain = ParseRegex(pattern, options, limits);
  if (!plain.ok()) {
    return InvalidConstraint(pointer, absl::StrCat("\"pattern\": ", plain.status().message()));
  }
  if (!AllWithin(**plain, lengths)) {
    const auto counted = TextOfLengths(**plain, lengths, &JsonCharacters);
    if (!counted.has_value()) {
      return InvalidConstraint(pointer,
                               "\"pattern\" or \"format\" with these lengths is too large; write "
                               "the lengths as {m,n} into the pattern");
    }
    return InQuotes(*counted);
  }
  options.read = &JsonCharacters;
  ASSIGN_OR_RETURN(ExpressionPtr text, ParseRegex(pattern, options, limits));
  return InQuotes(std::move(text));
}

absl::StatusOr<ExpressionPtr> CompileNumber(const NumberDemands& number, TypeBits types,
                                            std::string_view pointer, JsonSyntax& json) {
  const bool is_integer = (types & kFractionType) == 0;
  if (!number.min.has_value() && !number.max.has_value() && number.multiples_of.empty()) {
    return is_integer ? json.Integer() : json.Number();
  }
  NumberRange range = {.min = number.min, .max = number.max, .is_integer = is_integer};
  RETURN_IF_ERROR(AddMultiples(number.multiples_of, pointer, range));
  const std::optional<ExpressionPtr> numbers = NumbersIn(range);
  if (!numbers.has_value()) {
    return InvalidConstraint(pointer,
                             "\"multipleOf\" is too large for these bounds; use a smaller number");
  }
  return *numbers;
}

absl::StatusOr<ExpressionPtr> CompileValues(const SchemaNode& node, JsonSyntax& json) {
  std::vector<ExpressionPtr> parts;
  for (const JsonValue& value : *node.values) {
    ASSIGN_OR_RETURN(const bool fulfils, Fulfils(value, node));
    if (fulfils) parts.push_back(json.Literal(value));
  }
  return Alternatives(std::move(parts));
}

}  // namespace retroinfer::constraint
