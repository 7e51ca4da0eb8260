// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace retroinfer::common {

// Returns the bytes that can be allocated without swapping and without reaching a limit of this
// process's control groups (version 1 or 2), whichever is less. Page cache that can be dropped
// counts as available.
//
// `root`: the folder that holds proc/ and sys/; for tests.
// Returns: NOT_FOUND if proc/meminfo cannot be read.
absl::StatusOr<uint64_t> AvailableMemoryBytes(const std::string& root = "");

// Returns RESOURCE_EXHAUSTED, with both numbers, if `bytes` is more than AvailableMemoryBytes().
// Linux gives shared memory out until it kills a process for it, so large blocks must ask first.
absl::Status RequireAvailableMemory(uint64_t bytes, const std::string& what);

}  // namespace retroinfer::common
