// Checks for programmer errors. Never for input: RPCs, model files, shared memory and disk bytes
// get an absl::Status instead.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace retroinfer::common {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace retroinfer::common

// Aborts with the place and the condition if `condition` is false, in every build type.
#define RI_CHECK(condition) \
  ((condition) ? (void)0 : ::retroinfer::common::CheckFailed(__FILE__, __LINE__, #condition))

#ifdef NDEBUG
#define RI_DCHECK(condition) ((void)sizeof(condition))
#else
#define RI_DCHECK(condition) RI_CHECK(condition)
#endif
