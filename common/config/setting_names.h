// The names of the settings of all programs: they share one environment.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace retroinfer::common {

// "arena-bytes": "RETROINFER_ARENA_BYTES".
std::string VariableName(std::string_view name);

// Whether some program has a setting `name`.
bool IsSettingName(std::string_view name);

// Names of the variables that set something in some program.
std::vector<std::string> KnownVariables();

// Whether a variable of the environment is no mistake: it does not begin with RETROINFER_, sets
// something in some program, belongs to the tests and benchmarks, or is one of those that a
// container platform makes for each service in the neighbourhood (RETROINFER_SERVICE_HOST and so
// on).
bool IsExpectedVariable(std::string_view name, std::string_view value);

// Returns the one of `names` that `name` was perhaps meant to be; empty if none is near.
std::string NearestName(std::string_view name, const std::vector<std::string>& names);

}  // namespace retroinfer::common
