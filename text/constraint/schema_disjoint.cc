#include "text/constraint/schema_disjoint.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "common/status/status_macros.h"

namespace retroinfer::constraint {
namespace {

constexpr int kDepthMax = 4;  // of properties in each other

using common::JsonValue;

TypeBits TypesOf(const SchemaNode& node) {
  if (!node.values.has_value()) return node.types;
  TypeBits types = 0;
  for (const JsonValue& value : *node.values) types |= TypeOf(value);
  return types & node.types;
}

bool ValuesDiffer(const SchemaNode& a, const SchemaNode& b) {
  if (!a.values.has_value() || !b.values.has_value()) return false;
  return std::none_of(a.values->begin(), a.values->end(), [&b](const JsonValue& value) {
    return std::any_of(b.values->begin(), b.values->end(),
                       [&value](const JsonValue& other) { return value.SameAs(other); });
  });
}

// All numbers of `a` are below those of `b`.
bool IsBelow(const NumberDemands& a, const NumberDemands& b) {
  if (!a.max.has_value() || !b.min.has_value()) return false;
  const int order = Compare(a.max->value, b.min->value);
  return order < 0 || (order == 0 && (a.max->is_exclusive || b.min->is_exclusive));
}

bool Requires(const SchemaNode& node, std::string_view name) {
  return std::find(node.object.required.begin(), node.object.required.end(), name) !=
         node.object.required.end();
}

const SchemaSet& SchemasOf(const SchemaNode& node, std::string_view name) {
  for (const auto& [property, set] : node.object.properties) {
    if (property == name) return set;
  }
  return node.object.additional;
}

absl::StatusOr<bool> Differ(const SchemaNode& a, const SchemaNode& b, SchemaReader& reader,
                            int depth) {
  const TypeBits both = TypesOf(a) & TypesOf(b);
  if (both == 0 || ValuesDiffer(a, b)) return true;
  const bool numbers_only = (both & ~kNumberTypes) == 0;
  if (numbers_only && (IsBelow(a.number, b.number) || IsBelow(b.number, a.number))) return true;
  if (both != kObjectType || depth == kDepthMax) return false;
  for (const SchemaNode* node : {&a, &b}) {
    const SchemaNode& other = node == &a ? b : a;
    for (const std::string& name : node->object.required) {
      // A value of `other` either has the property, and differs in it, or cannot have it.
      const SchemaSet& others = SchemasOf(other, name);
      const bool never = std::any_of(others.begin(), others.end(), [](const SchemaRef& ref) {
        return ref.schema.Bool() == false;
      });
      if (never && other.object.pattern_properties.empty()) return true;
      if (!Requires(other, name)) continue;
      ASSIGN_OR_RETURN(const SchemaNode own_value, reader.Read(SchemasOf(*node, name)));
      ASSIGN_OR_RETURN(const SchemaNode other_value, reader.Read(others));
      ASSIGN_OR_RETURN(const bool differ, Differ(own_value, other_value, reader, depth + 1));
      if (differ) return true;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<bool> AreDisjoint(const SchemaNode& a, const SchemaNode& b, SchemaReader& reader) {
  return Differ(a, b, reader, 0);
}

}  // namespace retroinfer::constraint
