// What stands in for the address sanitizer in innermost loops. Instrumented, they take most of the
// time of the engine's tests, so they are compiled without (gpu_worker/ops/CMakeLists.txt), and who
// calls them has what they will touch looked at before.
#pragma once

#include <cstddef>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>

#include "common/log/check.h"
#endif

namespace retroinfer::cpu {

// With the address sanitizer: fails like RI_CHECK unless [begin, begin + bytes) may be read.
inline void CheckAddressable([[maybe_unused]] const void* begin, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  RI_CHECK(__asan_region_is_poisoned(const_cast<void*>(begin), bytes) == nullptr);
#endif
}

}  // namespace retroinfer::cpu
