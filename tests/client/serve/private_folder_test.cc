#include "client/serve/private_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"

namespace retroinfer::client {
namespace {

namespace fs = std::filesystem;

class PrivateFolderTest : public ::testing::Test {
 protected:
  PrivateFolderTest() {
    std::string pattern = (fs::temp_directory_path() / "retroinfer-XXXXXX").string();
    parent_ = ::mkdtemp(pattern.data());
    ::setenv("TMPDIR", parent_.c_str(), 1);
  }
  ~PrivateFolderTest() override {
    ::unsetenv("TMPDIR");
    fs::remove_all(parent_);
  }
  // Makes a folder in another process, which ends by `signal`, or by itself if that is 0. Returns
  // whether the folder is gone soon after.
  static bool IsRemovedAfter(int signal) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      auto folder = PrivateFolder::Create("test");
      if (!folder.ok()) ::_exit(1);
      std::ofstream(folder->path() + "/file") << "x";
      const std::string& path = folder->path();
      if (::write(ends[1], path.data(), path.size()) < 0) ::_exit(1);
      if (signal == 0) ::_exit(0);
      ::kill(::getpid(), signal);
      ::pause();
    }
    ::close(ends[1]);
    char buffer[4096];
    const ssize_t size = ::read(ends[0], buffer, sizeof(buffer));
    EXPECT_GT(size, 0);
    const std::string path(buffer, static_cast<size_t>(std::max<ssize_t>(size, 0)));
    ::waitpid(child, nullptr, 0);
    // No process of it holds a copy of the other end.
    EXPECT_EQ(::read(ends[0], buffer, sizeof(buffer)), 0);
    ::close(ends[0]);
    for (int i = 0; i < 1000 && fs::exists(path); ++i) absl::SleepFor(absl::Milliseconds(10));
    return !path.empty() && !fs::exists(path);
  }

  fs::path parent_;
};

TEST_F(PrivateFolderTest, IsForTheOwnerAloneAndGoesWithAllThatIsInIt) {
  std::string path;
  {
    auto made = PrivateFolder::Create("test");
    ASSERT_TRUE(made.ok()) << made.status();
    PrivateFolder folder = *std::move(made);
    path = folder.path();
    EXPECT_TRUE(absl::StartsWith(path, (parent_ / "test-").string()));
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
    fs::create_directory(path + "/below");
    std::ofstream(path + "/below/file") << "x";
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(PrivateFolderTest, GoesHoweverTheProcessEnds) {
  for (const int signal : {0, SIGINT, SIGTERM, SIGKILL}) {
    EXPECT_TRUE(IsRemovedAfter(signal)) << "signal " << signal;
  }
}

TEST_F(PrivateFolderTest, TwoDoNotWaitForEachOther) {
  std::optional<PrivateFolder> first = *PrivateFolder::Create("test");
  const auto second = PrivateFolder::Create("test");
  ASSERT_TRUE(second.ok());
  const std::string path = first->path();
  first.reset();  // would not return
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::exists(second->path()));
}

TEST_F(PrivateFolderTest, APlaceThatIsTooLongForSocketsIsNotUsed) {
  ::setenv("TMPDIR", ("/" + std::string(90, 'x')).c_str(), 1);
  const auto folder = PrivateFolder::Create("test");
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_TRUE(absl::StartsWith(folder->path(), "/tmp/test-"));
}

TEST_F(PrivateFolderTest, APlaceThatIsNotThereIsAnError) {
  ::setenv("TMPDIR", "/no/such/place", 1);
  const absl::Status status = PrivateFolder::Create("test").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(status.message(), "TMPDIR"));
}

}  // namespace
}  // namespace retroinfer::client
