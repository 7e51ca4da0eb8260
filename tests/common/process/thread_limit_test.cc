#include "common/process/thread_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace retroinfer::common {
namespace {

// In a child that may have no more threads than it has, under a user of its own.
bool HadWith(rlim_t limit) {
  const pid_t child = ::fork();
  if (child == 0) {
    const uid_t nobody_else = 64'000 + static_cast<uid_t>(::getpid() % 1000);
    const rlimit processes = {.rlim_cur = limit, .rlim_max = limit};
    if (::setrlimit(RLIMIT_NPROC, &processes) != 0 || ::setuid(nobody_else) != 0) ::_exit(2);
    ::_exit(ThreadsCanBeHad("test", 8) ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(ThreadLimit, TellsWhetherThereAreEnough) {
  EXPECT_TRUE(ThreadsCanBeHad("test", 8));
  if (::getuid() != 0) GTEST_SKIP() << "limits do not count for one process alone: needs root";
  EXPECT_FALSE(HadWith(4));
  EXPECT_TRUE(HadWith(64));
}

}  // namespace
}  // namespace retroinfer::common
