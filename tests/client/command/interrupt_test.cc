#include "client/command/interrupt.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/synchronization/notification.h"

namespace retroinfer::client {
namespace {

TEST(InterruptWatcher, CallsBackForEachSignal) {
  InterruptWatcher watcher;
  for (const int wanted : {SIGINT, SIGTERM}) {
    absl::Notification came;
    int signal = 0;
    watcher.SetCallback([&](int number) {
      signal = number;
      came.Notify();
    });
    ::kill(::getpid(), wanted);
    ASSERT_TRUE(came.WaitForNotificationWithTimeout(absl::Seconds(10)));
    watcher.SetCallback(nullptr);
    EXPECT_EQ(signal, wanted);
    EXPECT_EQ(watcher.last_signal(), wanted);
    EXPECT_EQ(watcher.ExitCode(), 128 + wanted);
  }
}

TEST(InterruptWatcher, TakesOtherSignalsWhereAsked) {
  InterruptWatcher watcher({SIGHUP});
  absl::Notification came;
  watcher.SetCallback([&](int number) {
    if (number == SIGHUP) came.Notify();
  });
  ::kill(::getpid(), SIGHUP);
  ASSERT_TRUE(came.WaitForNotificationWithTimeout(absl::Seconds(60)));
  EXPECT_EQ(watcher.last_signal(), 0);
}

TEST(InterruptWatcher, RestoresTheSignalMask) {
  const auto blocked = [] {
    sigset_t mask;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    return sigismember(&mask, SIGINT) == 1;
  };
  ASSERT_FALSE(blocked());
  {
    InterruptWatcher watcher;
    EXPECT_TRUE(blocked());
  }
  EXPECT_FALSE(blocked());
}

TEST(InterruptWatcher, WithoutACallbackASignalEndsTheProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    InterruptWatcher watcher;
    ::kill(::getpid(), SIGINT);
    ::sleep(10);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
}

}  // namespace
}  // namespace retroinfer::client
