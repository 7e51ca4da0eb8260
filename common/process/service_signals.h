// The signals that a service takes itself.
#pragma once

#include <signal.h>

namespace retroinfer::common {

// SIGTERM and SIGINT, which end a service, and SIGHUP, which asks it to open its log and to read
// its files again. To be blocked before the first thread starts, and taken by sigwait() and its
// like.
inline sigset_t ServiceSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

}  // namespace retroinfer::common
