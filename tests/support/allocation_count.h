// Counts what a test program allocates with new, to show that a path allocates nothing. Linking
// test_allocation_count replaces the program's operator new.
#pragma once

#include <cstdint>

namespace retroinfer::test_support {

// Calls of operator new so far, on all threads.
int64_t NumAllocations();

}  // namespace retroinfer::test_support
