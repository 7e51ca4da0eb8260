#include "client/serve/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/time/clock.h"

namespace retroinfer::client {
namespace {

bool IsAlive(pid_t pid) { return ::kill(pid, 0) == 0; }

TEST(ChildProcess, TellsHowItEnded) {
  auto child = ChildProcess::Start({"/bin/sh", "-c", "exit 3"});
  ASSERT_TRUE(child.ok());
  const auto end = child->Wait(absl::Seconds(10));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->exit_code, 3);
  EXPECT_EQ(end->ToString(), "exit code 3");
  EXPECT_TRUE(child->Poll().has_value());
}

TEST(ChildProcess, StopAsksFirstAndThenKills) {
  auto polite = ChildProcess::Start({"/bin/sleep", "100"});
  ASSERT_TRUE(polite.ok());
  EXPECT_FALSE(polite->Poll().has_value());
  EXPECT_EQ(polite->Stop(absl::Seconds(10)).signal, SIGTERM);

  auto deaf = ChildProcess::Start({"/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"});
  ASSERT_TRUE(deaf.ok());
  absl::SleepFor(absl::Milliseconds(200));  // until the trap is set
  const ProcessEnd end = deaf->Stop(absl::Milliseconds(100));
  EXPECT_EQ(end.ToString(), "signal 9 (Killed)");
}

TEST(ChildProcess, TheDestructorKills) {
  pid_t pid = 0;
  {
    auto child = ChildProcess::Start({"/bin/sleep", "100"});
    ASSERT_TRUE(child.ok());
    pid = child->pid();
    EXPECT_TRUE(IsAlive(pid));
    ChildProcess moved = *std::move(child);
    EXPECT_TRUE(IsAlive(pid));
  }
  EXPECT_FALSE(IsAlive(pid));
}

TEST(ChildProcess, AMissingProgramIsAnError) {
  EXPECT_EQ(ChildProcess::Start({"/no/such/program"}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ChildProcess::Start({"/etc/passwd"}).status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST(ChildProcess, OurVariablesDoNotReachIt) {
  ::setenv("RETROINFER_LISTEN", "somewhere", 1);
  auto child =
      ChildProcess::Start({"/bin/sh", "-c", "test -z \"$RETROINFER_LISTEN\" -a -n \"$PATH\""});
  ::unsetenv("RETROINFER_LISTEN");
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->Wait(absl::Seconds(10))->exit_code, 0);
}

TEST(ChildProcess, BothStreamsGoToTheOutput) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  auto child = ChildProcess::Start({"/bin/sh", "-c", "echo one; echo two >&2"}, ends[1]);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->Wait(absl::Seconds(10))->exit_code, 0);
  char text[16];
  ASSERT_EQ(::read(ends[0], text, sizeof(text)), 8);
  EXPECT_EQ(std::string(text, 8), "one\ntwo\n");
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(ChildProcess, DiesWithItsParent) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    auto child = ChildProcess::Start({"/bin/sleep", "100"});
    const pid_t pid = child.ok() ? child->pid() : 0;
    if (::write(ends[1], &pid, sizeof(pid)) != sizeof(pid)) ::_exit(1);
    ::kill(::getpid(), SIGKILL);
  }
  pid_t pid = 0;
  ASSERT_EQ(::read(ends[0], &pid, sizeof(pid)), static_cast<ssize_t>(sizeof(pid)));
  ASSERT_GT(pid, 0);
  // The orphan may stay a zombie where nobody reaps it: look at its state.
  const auto gone = [pid] {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string ignored, name, state;
    return !(file >> ignored >> name >> state) || state == "Z" || state == "X";
  };
  for (int i = 0; i < 1000 && !gone(); ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_TRUE(gone());
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace retroinfer::client
