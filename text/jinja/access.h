// Items, attributes, slices, lengths.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "text/jinja/workspace.h"

namespace retroinfer::jinja {

// The items of a value, which outlive it.
using Items = std::shared_ptr<const Values>;

// What `for` runs over: items, the keys of a dict, the characters of a string, nothing for an
// undefined value. A generator is empty after it.
//
// Returns: INVALID_ARGUMENT if the value cannot be iterated over.
absl::StatusOr<Items> Iterate(Workspace& workspace, const Value& value);
bool IsIterable(const Value& value);

// Python's len(); a string's characters.
absl::StatusOr<Int> Length(const Value& value);

absl::StatusOr<std::optional<Value>> FindKey(Workspace& workspace, const Dict& dict,
                                             const Value& key);

// `value[key]` and `value.name`, as Jinja has them: each also tries the other. What is not there is
// undefined.
//
// Returns: INVALID_ARGUMENT if `value` is undefined.
absl::StatusOr<Value> GetItem(Workspace& workspace, const Value& value, const Value& key);
absl::StatusOr<Value> GetAttribute(Workspace& workspace, const Value& value, std::string_view name);

// `value[start:stop:step]`; none where a part is left out.
absl::StatusOr<Value> Slice(Workspace& workspace, const Value& value, const Value& start,
                            const Value& stop, const Value& step);

}  // namespace retroinfer::jinja
