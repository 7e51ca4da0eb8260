// Which build this is.
#pragma once

namespace retroinfer::common {

extern const char kBuildVersion[];  // of the project: "0.1.0"
// The git commit that was built, or "unknown"; in tests always that.
extern const char kBuildRevision[];

}  // namespace retroinfer::common
