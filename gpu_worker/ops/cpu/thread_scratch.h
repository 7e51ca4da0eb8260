// Working memory of one thread for the length of one operation.
#pragma once

#include <cstddef>

namespace retroinfer::cpu {

// Returns memory that belongs to the calling thread until its next call: at least `bytes`, aligned
// to 64, contents undefined.
//
// Cost: allocates only when a thread asks for more than ever before, so a decode step that has run
//       once allocates nothing.
std::byte* ThreadScratch(size_t bytes);

}  // namespace retroinfer::cpu
