// The functions that a template finds without being given them.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "text/jinja/workspace.h"

namespace retroinfer::jinja {

// range, namespace, dict, joiner, cycler of Jinja; raise_exception, strftime_now of transformers.
// nullptr if there is none of this name.
const Value* FindGlobal(std::string_view name);

// Whether `value` is a namespace(), whose attributes a template may set.
bool IsNamespace(const Value& value);

// The error of raise_exception() in a template, as opposed to those of the interpreter.
absl::Status RaisedError(std::string_view message);
bool IsRaisedError(const absl::Status& status);

}  // namespace retroinfer::jinja
