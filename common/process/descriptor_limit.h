// How many files and sockets a program may have open.
#pragma once

#include <cstdint>

namespace retroinfer::common {

// Raises this process's limit of descriptors to the highest that it may set without being told to:
// the usual 1,024 are fewer than the connections that a service lets in. Returns the limit that is
// in force then.
//
// Threads: to be called at the start of main(). Children inherit it.
int64_t RaiseDescriptorLimit();

}  // namespace retroinfer::common
