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

// The same for a service, which cannot do its work with fewer than these: it would start and then
// fail here and there. Returns false, and says so on stderr, if it may not have as many.
inline constexpr int64_t kServiceDescriptorsMin = 64;
bool RaiseDescriptorLimitOf(const char* service);

}  // namespace retroinfer::common
