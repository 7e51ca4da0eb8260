// Whether a value is of a schema: an oracle for the keywords that the tests draw values for.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace retroinfer::constraint {

inline size_t NumCodePoints(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

inline bool IsOfType(const nlohmann::json& value, const std::string& type) {
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  return type == value.type_name();
}

inline bool IsOf(const nlohmann::json& value, const nlohmann::json& schema,
                 const nlohmann::json& root);

inline bool IsOfObject(const nlohmann::json& value, const nlohmann::json& schema,
                       const nlohmann::json& root) {
  const nlohmann::json properties = schema.value("properties", nlohmann::json::object());
  for (const auto& [key, member] : value.items()) {
    if (properties.contains(key) && !IsOf(member, properties[key], root)) return false;
    const bool is_additional = !properties.contains(key) && schema.contains("additionalProperties");
    if (is_additional && !IsOf(member, schema["additionalProperties"], root)) return false;
  }
  for (const auto& key : schema.value("required", nlohmann::json::array())) {
    if (!value.contains(key)) return false;
  }
  // A key that was drawn twice counts once here, so there may be fewer.
  return value.size() <= schema.value("maxProperties", value.size());
}

inline bool IsOfArray(const nlohmann::json& value, const nlohmann::json& schema,
                      const nlohmann::json& root) {
  const nlohmann::json prefix = schema.value("prefixItems", nlohmann::json::array());
  for (size_t i = 0; i < value.size(); ++i) {
    if (i < prefix.size() && !IsOf(value[i], prefix[i], root)) return false;
    if (i >= prefix.size() && schema.contains("items") && !IsOf(value[i], schema["items"], root)) {
      return false;
    }
  }
  return value.size() >= schema.value("minItems", size_t{0}) &&
         value.size() <= schema.value("maxItems", value.size());
}

inline bool IsOfNumber(double value, const nlohmann::json& schema) {
  return value >= schema.value("minimum", value) && value <= schema.value("maximum", value) &&
         (!schema.contains("exclusiveMinimum") || value > schema["exclusiveMinimum"]) &&
         (!schema.contains("exclusiveMaximum") || value < schema["exclusiveMaximum"]) &&
         (!schema.contains("multipleOf") ||
          static_cast<int64_t>(value) % schema["multipleOf"].get<int64_t>() == 0);
}

inline bool IsOf(const nlohmann::json& value, const nlohmann::json& schema,
                 const nlohmann::json& root) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (schema.contains("$ref")) {
    const std::string pointer = schema["$ref"].get<std::string>().substr(1);
    return IsOf(value, root.at(nlohmann::json::json_pointer(pointer)), root);
  }
  if (schema.contains("type")) {
    const nlohmann::json types =
        schema["type"].is_array() ? schema["type"] : nlohmann::json::array({schema["type"]});
    if (std::none_of(types.begin(), types.end(),
                     [&value](const auto& type) { return IsOfType(value, type); })) {
      return false;
    }
  }
  if (schema.contains("const") && value != schema["const"]) return false;
  if (schema.contains("enum") &&
      std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end()) {
    return false;
  }
  const auto is_of = [&](const nlohmann::json& branch) { return IsOf(value, branch, root); };
  const nlohmann::json all = schema.value("allOf", nlohmann::json::array());
  if (!std::all_of(all.begin(), all.end(), is_of)) return false;
  const nlohmann::json any = schema.value("anyOf", nlohmann::json::array());
  if (!any.empty() && std::none_of(any.begin(), any.end(), is_of)) return false;
  if (value.is_object()) return IsOfObject(value, schema, root);
  if (value.is_array()) return IsOfArray(value, schema, root);
  if (value.is_number()) return IsOfNumber(value.get<double>(), schema);
  if (value.is_string()) {
    const size_t length = NumCodePoints(value.get<std::string>());
    return length >= schema.value("minLength", size_t{0}) &&
           length <= schema.value("maxLength", length);
  }
  return true;
}

}  // namespace retroinfer::constraint
