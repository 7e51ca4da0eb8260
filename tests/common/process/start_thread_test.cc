#include "common/process/start_thread.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

namespace retroinfer::common {
namespace {

TEST(StartThread, Runs) {
  std::atomic<int> runs{0};
  auto thread = StartThread([&runs] { ++runs; });
  ASSERT_TRUE(thread.ok()) << thread.status();
  thread->join();
  EXPECT_EQ(runs, 1);
  RunBeside(3, [&runs] { ++runs; });
  EXPECT_EQ(runs, 5);
  RunBeside(0, [&runs] { ++runs; });
  EXPECT_EQ(runs, 6);
}

// In a process of a user without privileges that may not have a further thread.
void RunWithoutThreads() {
  const rlimit none{0, 0};
  if ((::getuid() == 0 && ::setuid(65534) != 0) || ::setrlimit(RLIMIT_NPROC, &none) != 0) {
    ::_exit(77);
  }
  const auto thread = StartThread([] {});
  if (thread.ok()) ::_exit(77);
  std::atomic<int> runs{0};
  RunBeside(3, [&runs] { ++runs; });
  ::_exit(absl::IsResourceExhausted(thread.status()) && runs == 1 ? 0 : 1);
}

TEST(StartThread, WithoutThreadsTheWorkIsDoneByTheCaller) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) RunWithoutThreads();
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "threads cannot be forbidden here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace retroinfer::common
