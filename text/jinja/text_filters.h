// Filters that make text.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "text/jinja/filters.h"

namespace retroinfer::jinja {

// By name.
const absl::flat_hash_map<std::string, Filter>& TextFilters();

}  // namespace retroinfer::jinja
