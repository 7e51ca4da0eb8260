#include "gpu_worker/device/cpu/thread_priority.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace retroinfer {
namespace {

int Niceness() { return getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid))); }

TEST(ThreadPriorityTest, LowersTheCallingThreadOnly) {
  const int before = Niceness();
  int inside = -100;
  std::thread([&inside] {
    LowerThreadPriority(3);
    inside = Niceness();
  }).join();
  EXPECT_EQ(inside, std::min(before + 3, 19));
  EXPECT_EQ(Niceness(), before);
}

}  // namespace
}  // namespace retroinfer
