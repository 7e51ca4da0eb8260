#include "common/process/thread_limit.h"

#include <cstdio>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"

namespace retroinfer::common {

bool ThreadsCanBeHad(const char* service, int count) {
  absl::Notification end;
  std::vector<std::thread> threads;
  bool had = true;
  try {
    for (int i = 0; i < count; ++i) threads.emplace_back([&end] { end.WaitForNotification(); });
  } catch (const std::system_error&) {
    had = false;
  }
  end.Notify();
  for (std::thread& thread : threads) thread.join();
  if (had) return true;
  std::fprintf(
      stderr,
      "%s: the system gives it only %zu more threads, needs at least %d: raise the limit of "
      "processes (ulimit -u, or pids of its control group)\n",
      service, threads.size(), count);
  return false;
}

}  // namespace retroinfer::common
