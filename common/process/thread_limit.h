// How many threads a program may have.
#pragma once

namespace retroinfer::common {

// A service has some dozens, and libraries that cannot start one of theirs abort or wait for ever.
inline constexpr int kServiceThreadsMin = 32;

// Starts `count` threads and ends them. Returns false, and says so on stderr in the name of
// `service`, if the system does not give as many. Others may take them afterwards.
//
// Threads: to be called at the start of main().
bool ThreadsCanBeHad(const char* service, int count = kServiceThreadsMin);

}  // namespace retroinfer::common
