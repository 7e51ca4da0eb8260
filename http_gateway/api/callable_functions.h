// The functions that an answer may call.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "http_gateway/api/tool_fields.h"

namespace retroinfer::gateway {

// What a parameter's text means where a model writes it without JSON's quotes.
enum class ParameterKind {
  kString,          // always a string
  kNullableString,  // "null" is null
  kJson,            // JSON if it is, else a string
};

// Threads: any, while it is not changed.
class CallableFunctions {
 public:
  CallableFunctions() = default;
  explicit CallableFunctions(const std::vector<ToolFunction>& functions);
  // Functions of whose parameters nothing is known.
  static CallableFunctions Named(const std::vector<std::string>& names);

  bool empty() const { return functions_.empty(); }
  bool Has(std::string_view name) const { return functions_.contains(name); }
  // Takes a parameter of which the schema says nothing for a string.
  ParameterKind KindOf(std::string_view function, std::string_view parameter) const;

 private:
  using Parameters = std::map<std::string, ParameterKind, std::less<>>;
  std::map<std::string, Parameters, std::less<>> functions_;
};

}  // namespace retroinfer::gateway
