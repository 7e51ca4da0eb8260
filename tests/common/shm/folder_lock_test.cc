#include "common/shm/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace retroinfer::common {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FolderLockTest : public ::testing::Test {
 protected:
  FolderLockTest() {
    std::string pattern = (fs::temp_directory_path() / "retroinfer-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~FolderLockTest() override { fs::remove_all(folder_); }
  std::string folder_;
};

TEST_F(FolderLockTest, ARoleIsForOneAndTheOtherIsTold) {
  const std::string me = "a_program (process " + std::to_string(::getpid()) + ")";
  EXPECT_EQ(FolderLock::Holder(folder_, "role"), std::nullopt);
  {
    const auto lock = FolderLock::Take(folder_, "role", "a_program");
    ASSERT_TRUE(lock.ok()) << lock.status();
    EXPECT_EQ(FolderLock::Holder(folder_, "role"), me);
    const auto second = FolderLock::Take(folder_, "role", "second");
    EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(std::string(second.status().message()), HasSubstr(me + " uses " + folder_));
    EXPECT_TRUE(FolderLock::Take(folder_, "other", "second").ok());
  }
  EXPECT_EQ(FolderLock::Holder(folder_, "role"), std::nullopt);
  EXPECT_TRUE(FolderLock::Take(folder_, "role", "second").ok());
}

TEST_F(FolderLockTest, AKilledProcessLeavesNoLock) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = FolderLock::Take(folder_, "role", "child");
    if (!lock.ok()) ::_exit(1);
    while (true) ::pause();
  }
  while (!FolderLock::Holder(folder_, "role").has_value()) ::usleep(1000);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(FolderLock::Holder(folder_, "role"), std::nullopt);
}

TEST_F(FolderLockTest, LinksAndFoldersInItsPlaceAreErrors) {
  fs::create_symlink(folder_ + "/target", folder_ + "/link.lock");
  EXPECT_FALSE(FolderLock::Take(folder_, "link", "p").ok());
  EXPECT_FALSE(fs::exists(folder_ + "/target"));
  ASSERT_EQ(::mkfifo((folder_ + "/fifo.lock").c_str(), 0600), 0);
  EXPECT_FALSE(FolderLock::Take(folder_, "fifo", "p").ok());
  EXPECT_EQ(FolderLock::Holder(folder_, "fifo"), std::nullopt);
  fs::create_directory(folder_ + "/dir.lock");
  EXPECT_FALSE(FolderLock::Take(folder_, "dir", "p").ok());
}

TEST_F(FolderLockTest, TheFolderIsPrivate) {
  const std::string made = folder_ + "/made";
  EXPECT_TRUE(PrepareSocketFolder(made).ok());
  EXPECT_EQ(fs::status(made).permissions(), fs::perms::owner_all);
  EXPECT_TRUE(PrepareSocketFolder(made).ok());
  fs::permissions(made, fs::perms::owner_all | fs::perms::group_exec);
  EXPECT_EQ(PrepareSocketFolder(made).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(PrepareSocketFolder("relative").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PrepareSocketFolder(folder_ + "/no/such").code(), absl::StatusCode::kNotFound);
  fs::create_directory_symlink(made, folder_ + "/linked");
  EXPECT_EQ(PrepareSocketFolder(folder_ + "/linked").code(), absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace retroinfer::common
