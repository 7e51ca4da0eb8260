#include "text/constraint/schema_node.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"

namespace retroinfer::constraint {
namespace {

const SchemaSet& ItemAt(const ArrayDemands& array, size_t index) {
  return index < array.prefix.size() ? array.prefix[index] : array.items;
}

template <typename T>
void TakeLess(const std::optional<T>& from, std::optional<T>& into) {
  if (from.has_value() && (!into.has_value() || *from < *into)) into = from;
}

}  // namespace

TypeBits TypeOf(const common::JsonValue& value) {
  if (value.IsNull()) return kNullType;
  if (value.IsBool()) return kBooleanType;
  if (value.IsString()) return kStringType;
  if (value.IsArray()) return kArrayType;
  if (value.IsObject()) return kObjectType;
  const std::optional<Decimal> number = Decimal::Parse(value.Text());
  return number.has_value() && number->fraction.empty() ? kIntegerType : kFractionType;
}

void Append(const SchemaSet& from, SchemaSet& into) {
  for (const SchemaRef& ref : from) {
    const bool is_known = std::any_of(into.begin(), into.end(), [&ref](const SchemaRef& other) {
      return other.pointer == ref.pointer;
    });
    if (!is_known) into.push_back(ref);
  }
}

void Conjoin(const ArrayDemands& from, ArrayDemands& into) {
  ArrayDemands both = into;
  both.prefix.resize(std::max(from.prefix.size(), into.prefix.size()));
  for (size_t i = 0; i < both.prefix.size(); ++i) {
    both.prefix[i] = ItemAt(into, i);
    Append(ItemAt(from, i), both.prefix[i]);
  }
  Append(from.items, both.items);
  both.min_items = std::max(from.min_items, into.min_items);
  TakeLess(from.max_items, both.max_items);
  both.is_unique = from.is_unique || into.is_unique;
  into = std::move(both);
}

void Conjoin(const ObjectDemands& from, ObjectDemands& into) {
  absl::flat_hash_map<std::string, size_t> known;
  for (size_t i = 0; i < into.properties.size(); ++i) known.emplace(into.properties[i].first, i);
  absl::flat_hash_map<std::string, bool> named;
  for (const auto& [name, set] : from.properties) {
    named[name] = true;
    const auto found = known.find(name);
    if (found == known.end()) {
      into.properties.emplace_back(name, into.additional);
      Append(set, into.properties.back().second);
    } else {
      Append(set, into.properties[found->second].second);
    }
  }
  for (auto& [name, set] : into.properties) {
    if (!named.contains(name)) Append(from.additional, set);
  }
  Append(from.additional, into.additional);
  Append(from.names, into.names);
  for (const std::string& name : from.required) {
    if (std::find(into.required.begin(), into.required.end(), name) == into.required.end()) {
      into.required.push_back(name);
    }
  }
  into.pattern_properties.insert(into.pattern_properties.end(), from.pattern_properties.begin(),
                                 from.pattern_properties.end());
  into.min_properties = std::max(from.min_properties, into.min_properties);
  TakeLess(from.max_properties, into.max_properties);
}

void Conjoin(const std::vector<common::JsonValue>& values, SchemaNode& into) {
  if (!into.values.has_value()) {
    into.values = values;
    return;
  }
  std::erase_if(*into.values, [&values](const common::JsonValue& value) {
    return std::none_of(values.begin(), values.end(),
                        [&value](const common::JsonValue& other) { return value.SameAs(other); });
  });
}

void RaiseMin(const NumberBound& bound, NumberDemands& into) {
  const int order = into.min.has_value() ? Compare(bound.value, into.min->value) : 1;
  if (order > 0 || (order == 0 && bound.is_exclusive)) into.min = bound;
}

void LowerMax(const NumberBound& bound, NumberDemands& into) {
  const int order = into.max.has_value() ? Compare(bound.value, into.max->value) : -1;
  if (order < 0 || (order == 0 && bound.is_exclusive)) into.max = bound;
}

}  // namespace retroinfer::constraint
