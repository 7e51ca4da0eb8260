// What a set of JSON Schemas demands together, keyword by keyword.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/json/json_document.h"
#include "text/constraint/decimal.h"
#include "text/constraint/number_range.h"

namespace retroinfer::constraint {

// A schema and its place, a JSON pointer: "#/properties/a".
struct SchemaRef {
  common::JsonValue schema;
  std::string pointer;
};

// A value must be of all of them. An empty set accepts any value.
using SchemaSet = std::vector<SchemaRef>;

using TypeBits = uint8_t;
inline constexpr TypeBits kNullType = 1;
inline constexpr TypeBits kBooleanType = 2;
inline constexpr TypeBits kIntegerType = 4;
inline constexpr TypeBits kFractionType = 8;  // numbers that are no integers
inline constexpr TypeBits kStringType = 16;
inline constexpr TypeBits kArrayType = 32;
inline constexpr TypeBits kObjectType = 64;
inline constexpr TypeBits kNumberTypes = kIntegerType | kFractionType;
inline constexpr TypeBits kAllTypes = 127;

struct NumberDemands {
  std::optional<NumberBound> min;
  std::optional<NumberBound> max;
  std::vector<Decimal> multiples_of;
};

struct StringDemands {
  size_t min_length = 0;
  std::optional<size_t> max_length;
  std::vector<std::string> patterns;
  std::vector<std::string> formats;  // those that are enforced
};

struct ArrayDemands {
  std::vector<SchemaSet> prefix;
  SchemaSet items;  // of what is behind the prefix
  size_t min_items = 0;
  std::optional<size_t> max_items;
  bool is_unique = false;
};

struct ObjectDemands {
  std::vector<std::pair<std::string, SchemaSet>> properties;
  std::vector<std::string> required;
  SchemaSet additional;
  SchemaSet names;
  std::vector<std::pair<std::string, SchemaRef>> pattern_properties;
  size_t min_properties = 0;
  std::optional<size_t> max_properties;
};

struct SchemaNode {
  // One of these must be accepted, and no other one if `is_exclusive`.
  struct Choice {
    SchemaSet branches;
    bool is_exclusive;
    std::string pointer;
  };

  std::string pointer;  // of the first schema
  TypeBits types = kAllTypes;
  std::optional<std::vector<common::JsonValue>> values;
  NumberDemands number;
  StringDemands string;
  ArrayDemands array;
  ObjectDemands object;
  std::vector<Choice> choices;
};

// The type of a value; 1.0 is an integer.
TypeBits TypeOf(const common::JsonValue& value);

// Adds what `from` demands to `into`: each item or property must fulfil both.
void Conjoin(const ArrayDemands& from, ArrayDemands& into);
void Conjoin(const ObjectDemands& from, ObjectDemands& into);
void Conjoin(const std::vector<common::JsonValue>& values, SchemaNode& into);

// The later bound wins where it is the tighter one.
void RaiseMin(const NumberBound& bound, NumberDemands& into);
void LowerMax(const NumberBound& bound, NumberDemands& into);

// Appends what `into` lacks, by pointer.
void Append(const SchemaSet& from, SchemaSet& into);

}  // namespace retroinfer::constraint
