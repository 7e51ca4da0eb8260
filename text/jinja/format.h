// Python's two ways to format: "%s" % value, and "{}".format(value).
#pragma once

#include "absl/status/statusor.h"
#include "text/jinja/workspace.h"

namespace retroinfer::jinja {

// Conversions s, r, d, i, u, f and x with flags - and 0, width and precision; names in parentheses
// take from a dict. Returns: INVALID_ARGUMENT if values and conversions do not go together,
//          UNIMPLEMENTED for others.
absl::StatusOr<Value> FormatPercent(Workspace& workspace, const Text& format, const Value& values);

// Fields "{}", "{0}" and "{name}" with the types of above behind a colon, and fill, alignment and
// commas between thousands.
absl::StatusOr<Value> FormatBraces(Workspace& workspace, const Text& format,
                                   const Arguments& arguments);

}  // namespace retroinfer::jinja
