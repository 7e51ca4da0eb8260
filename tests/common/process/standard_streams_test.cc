#include "common/process/standard_streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace retroinfer::common {
namespace {

// Runs `check` in a process whose three streams are closed; returns its exit code.
int WithoutStreams(int (*check)()) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(fd);
    ::_exit(check());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(StandardStreams, LaterFilesDoNotGetTheirNumbers) {
  EXPECT_EQ(WithoutStreams([] { return ::open("/", O_RDONLY) == STDIN_FILENO ? 0 : 1; }), 0);
  EXPECT_EQ(WithoutStreams([] {
              OpenStandardStreams();
              return ::open("/", O_RDONLY) > STDERR_FILENO ? 0 : 1;
            }),
            0);
}

TEST(StandardStreams, AResultThatNobodyGetsIsAnErrorAndALogIsNot) {
  EXPECT_EQ(WithoutStreams([] {
              OpenStandardStreams();
              char byte = 'x';
              if (::read(STDIN_FILENO, &byte, 1) >= 0 || errno != EBADF) return 1;
              if (::write(STDOUT_FILENO, &byte, 1) >= 0 || errno != EBADF) return 2;
              return ::write(STDERR_FILENO, &byte, 1) == 1 ? 0 : 3;
            }),
            0);
}

TEST(StandardStreams, OpenStreamsStay) {
  struct stat before {};
  struct stat after {};
  ASSERT_EQ(::fstat(STDOUT_FILENO, &before), 0);
  OpenStandardStreams();
  ASSERT_EQ(::fstat(STDOUT_FILENO, &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
}

}  // namespace
}  // namespace retroinfer::common
