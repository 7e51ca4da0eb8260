#include "gpu_worker/device/cpu/thread_priority.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace retroinfer {

void LowerThreadPriority(int nice_increment) {
  // Linux keeps a niceness for each thread, whose id PRIO_PROCESS takes.
  const auto thread = static_cast<id_t>(syscall(SYS_gettid));
  const int current = getpriority(PRIO_PROCESS, thread);
  (void)setpriority(PRIO_PROCESS, thread, current + nice_increment);
}

}  // namespace retroinfer
