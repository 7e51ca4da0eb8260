// Which build this is.
#pragma once

namespace retroinfer::common {

extern const char kBuildVersion[];   // of the project: "0.1.0"
extern const char kBuildRevision[];  // git commit at configuration time, or "unknown"

}  // namespace retroinfer::common
