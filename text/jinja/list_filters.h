// Filters over sequences and dicts.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "text/jinja/filters.h"

namespace retroinfer::jinja {

// By name.
const absl::flat_hash_map<std::string, Filter>& ListFilters();

// What `path` leads to: "function.name" is the item "name" of the item "function"; a number is an
// index. Where a step leads nowhere, `fallback` is taken, if there is one.
absl::StatusOr<Value> AttributePath(Workspace& workspace, const Value& value, const Value& path,
                                    const Value* fallback = nullptr);

}  // namespace retroinfer::jinja
