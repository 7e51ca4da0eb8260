#include "http_gateway/api/callable_functions.h"

#include <functional>

namespace retroinfer::gateway {
namespace {

struct Types {
  bool string = false;
  bool null = false;
  bool other = false;
};

void AddNamed(const Json& name, Types* types) {
  if (name == "string") {
    types->string = true;
  } else if (name == "null") {
    types->null = true;
  } else {
    types->other = true;
  }
}

void AddValue(const Json& value, Types* types) {
  types->string |= value.is_string();
  types->null |= value.is_null();
  types->other |= !value.is_string() && !value.is_null();
}

// Collects the types that a schema names, also in its alternatives. `depth`: of schemas that may
// lie within each other; kBodyJson bounds it, too.
void AddTypes(const Json& schema, int depth, Types* types) {
  if (!schema.is_object() || depth == 0) return;
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (!type->is_array()) return AddNamed(*type, types);
    for (const Json& name : *type) AddNamed(name, types);
    return;
  }
  if (const auto value = schema.find("const"); value != schema.end()) AddValue(*value, types);
  if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
    for (const Json& value : *values) AddValue(value, types);
  }
  for (const char* const name : {"anyOf", "oneOf", "allOf"}) {
    const auto branches = schema.find(name);
    if (branches == schema.end() || !branches->is_array()) continue;
    for (const Json& branch : *branches) AddTypes(branch, depth - 1, types);
  }
}

ParameterKind KindBySchema(const Json& schema) {
  Types types;
  AddTypes(schema, 8, &types);
  if (!types.string) return ParameterKind::kJson;
  return types.null ? ParameterKind::kNullableString : ParameterKind::kString;
}

}  // namespace

CallableFunctions::CallableFunctions(const std::vector<ToolFunction>& functions) {
  for (const ToolFunction& function : functions) {
    Parameters& parameters = functions_[function.name];
    if (!function.parameters.is_object()) continue;
    const auto properties = function.parameters.find("properties");
    if (properties == function.parameters.end() || !properties->is_object()) continue;
    for (const auto& [name, schema] : properties->items()) {
      parameters.emplace(name, KindBySchema(schema));
    }
  }
}

CallableFunctions CallableFunctions::Named(const std::vector<std::string>& names) {
  CallableFunctions functions;
  for (const std::string& name : names) functions.functions_[name];
  return functions;
}

ParameterKind CallableFunctions::KindOf(std::string_view function,
                                        std::string_view parameter) const {
  const auto known = functions_.find(function);
  if (known == functions_.end()) return ParameterKind::kString;
  const auto kind = known->second.find(parameter);
  return kind == known->second.end() ? ParameterKind::kString : kind->second;
}

}  // namespace retroinfer::gateway
