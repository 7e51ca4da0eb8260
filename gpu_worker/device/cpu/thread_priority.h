// Scheduling priority of threads.
#pragma once

namespace retroinfer {

// Raises the niceness of the calling thread by `nice_increment`. Where the system refuses, the
// thread keeps its priority: slower for others, never wrong.
void LowerThreadPriority(int nice_increment);

}  // namespace retroinfer
