#include "common/process/descriptor_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace retroinfer::common {
namespace {

// What the function returns in a process with these limits; -1: it is not what is in force.
int64_t Raised(rlim_t soft, rlim_t hard) {
  int result[2];
  if (::pipe(result) != 0) return -2;
  const pid_t child = ::fork();
  if (child == 0) {
    rlimit limit = {.rlim_cur = soft, .rlim_max = hard};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    int64_t raised = RaiseDescriptorLimit();
    ::getrlimit(RLIMIT_NOFILE, &limit);
    if (static_cast<int64_t>(limit.rlim_cur) != raised || limit.rlim_max != hard) raised = -1;
    ::_exit(::write(result[1], &raised, sizeof(raised)) == sizeof(raised) ? 0 : 1);
  }
  int64_t raised = -2;
  EXPECT_EQ(::read(result[0], &raised, sizeof(raised)), ssize_t{sizeof(raised)});
  ::waitpid(child, nullptr, 0);
  ::close(result[0]);
  ::close(result[1]);
  return raised;
}

TEST(DescriptorLimit, IsRaisedToWhatIsAllowed) {
  EXPECT_EQ(Raised(64, 256), 256);
  EXPECT_EQ(Raised(256, 256), 256);
}

TEST(DescriptorLimit, IsRaisedToEnoughAndNeverLowered) {
  rlimit own{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &own), 0);
  if (own.rlim_max < 70'000) GTEST_SKIP() << "only " << own.rlim_max << " descriptors are allowed";
  EXPECT_EQ(Raised(1024, own.rlim_max), 65'536);
  EXPECT_EQ(Raised(70'000, own.rlim_max), 70'000);
}

}  // namespace
}  // namespace retroinfer::common
