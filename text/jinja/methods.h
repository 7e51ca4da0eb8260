// The methods of strings, dicts and lists.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "text/jinja/workspace.h"

namespace retroinfer::jinja {

// The method `name` of `value`, bound to it; nothing if its type has none in Python. A method that
// would change `value` is undefined, as in Jinja's immutable sandbox; calling one that this
// interpreter lacks is UNIMPLEMENTED.
absl::StatusOr<std::optional<Value>> FindMethod(const Value& value, std::string_view name);

}  // namespace retroinfer::jinja
