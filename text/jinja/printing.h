// Python's str() and repr(), and json.dumps().
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "text/jinja/workspace.h"

namespace retroinfer::jinja {

// Returns: UNIMPLEMENTED for functions and other values that a template has no reason to show.
absl::StatusOr<Text> Str(Workspace& workspace, const Value& value);
absl::StatusOr<Text> Repr(Workspace& workspace, const Value& value);

std::string IntText(Int number);
std::string FloatText(double number);

struct JsonStyle {
  std::optional<std::string> indent;  // of one level; nothing: all in one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ascii_only = false;
  bool sort_keys = false;
};

// As transformers' tojson: nothing is escaped for HTML. The contents of strings keep their origin,
// all else is not of the template.
//
// Returns: INVALID_ARGUMENT if JSON cannot hold the value.
absl::StatusOr<Text> ToJson(Workspace& workspace, const Value& value, const JsonStyle& style);

}  // namespace retroinfer::jinja
