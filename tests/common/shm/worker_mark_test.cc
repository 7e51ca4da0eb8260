#include "common/shm/worker_mark.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

namespace retroinfer::common {
namespace {

class WorkerMarkTest : public testing::Test {
 protected:
  WorkerMarkTest() {
    char path[] = "/tmp/rt_mark_XXXXXX";
    folder_ = ::mkdtemp(path);
  }
  ~WorkerMarkTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

TEST_F(WorkerMarkTest, IsHeldAsLongAsOneWorkerHoldsIt) {
  EXPECT_EQ(WorkerMark::IsHeld(folder_), std::nullopt);
  EXPECT_TRUE(absl::IsNotFound(WorkerMark::Hold(folder_).status()));
  ASSERT_TRUE(WorkerMark::Make(folder_).ok());
  ASSERT_TRUE(WorkerMark::Make(folder_).ok());
  EXPECT_EQ(WorkerMark::IsHeld(folder_), false);
  {
    const auto first = WorkerMark::Hold(folder_);
    ASSERT_TRUE(first.ok()) << first.status();
    {
      const auto second = WorkerMark::Hold(folder_);
      ASSERT_TRUE(second.ok()) << second.status();
      EXPECT_EQ(WorkerMark::IsHeld(folder_), true);
    }
    EXPECT_EQ(WorkerMark::IsHeld(folder_), true);
  }
  EXPECT_EQ(WorkerMark::IsHeld(folder_), false);
}

TEST_F(WorkerMarkTest, EachWorkerHasItsOwnPlace) {
  ASSERT_TRUE(WorkerMark::Make(folder_).ok());
  const uint64_t first = WorkerMark::PlaceOf("\xff\xff\xff\xff\xff\xff\xff\xff 1");
  const uint64_t second = WorkerMark::PlaceOf("another token");
  ASSERT_NE(first, second);
  {
    const auto mark = WorkerMark::Hold(folder_, first);
    ASSERT_TRUE(mark.ok()) << mark.status();
    EXPECT_EQ(WorkerMark::IsHeld(folder_, first), true);
    EXPECT_EQ(WorkerMark::IsHeld(folder_, second), false);
    EXPECT_EQ(WorkerMark::IsHeld(folder_), true);
  }
  EXPECT_EQ(WorkerMark::IsHeld(folder_, first), false);
}

TEST_F(WorkerMarkTest, EndsWithTheProcessThatHeldIt) {
  ASSERT_TRUE(WorkerMark::Make(folder_).ok());
  int held[2], die[2];
  ASSERT_EQ(::pipe(held), 0);
  ASSERT_EQ(::pipe(die), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto mark = WorkerMark::Hold(folder_);
    char byte = mark.ok() ? 'y' : 'n';
    (void)!::write(held[1], &byte, 1);
    ::close(die[1]);
    (void)!::read(die[0], &byte, 1);
    ::_exit(0);
  }
  char byte = 'n';
  ASSERT_EQ(::read(held[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  EXPECT_EQ(WorkerMark::IsHeld(folder_), true);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(WorkerMark::IsHeld(folder_), false);
  for (const int fd : {held[0], held[1], die[0], die[1]}) ::close(fd);
}

}  // namespace
}  // namespace retroinfer::common
