#include "common/files/regular_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace retroinfer::common {
namespace {

using testing::HasSubstr;

class RegularFileTest : public testing::Test {
 protected:
  RegularFileTest() {
    char path[] = "/tmp/rt_files_XXXXXX";
    folder_ = ::mkdtemp(path);
  }
  ~RegularFileTest() override { std::filesystem::remove_all(folder_); }
  std::string In(const std::string& name) const { return folder_ + "/" + name; }

  // All ways to open refuse what is at `path`, at once, and name it.
  void ExpectRefused(const std::string& path, const std::string& what) {
    for (const int flags : {O_RDONLY, O_RDWR, O_RDWR | O_CREAT, O_WRONLY | O_CREAT | O_TRUNC}) {
      const absl::Status status = OpenRegularFile(path, flags).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(path + " " + what));
    }
    EXPECT_TRUE(absl::IsFailedPrecondition(ReadRegularFile(path, 10).status()));
    EXPECT_TRUE(absl::IsFailedPrecondition(ReplaceRegularFile(path, "x")));
    EXPECT_TRUE(SomethingIsAt(path));
  }

  std::string folder_;
};

TEST_F(RegularFileTest, OpensReadsAndReplaces) {
  EXPECT_TRUE(absl::IsNotFound(OpenRegularFile(In("a"), O_RDONLY).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadRegularFile(In("a"), 10).status()));
  EXPECT_FALSE(SomethingIsAt(In("a")));
  ASSERT_TRUE(ReplaceRegularFile(In("a"), "0123456789").ok());
  ASSERT_TRUE(ReplaceRegularFile(In("a"), "abc").ok());
  EXPECT_EQ(*ReadRegularFile(In("a"), 3), "abc");
  EXPECT_TRUE(absl::IsResourceExhausted(ReadRegularFile(In("a"), 2).status()));
  struct stat info {};
  ASSERT_EQ(::stat(In("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_FALSE(SomethingIsAt(In("a.next")));
  EXPECT_TRUE(OpenRegularFile(In("b"), O_RDWR | O_CREAT).ok());
}

TEST_F(RegularFileTest, WhatAUserNamesMayBeALinkButNothingElse) {
  ASSERT_TRUE(ReplaceRegularFile(In("a"), "abc").ok());
  ASSERT_EQ(::symlink(In("a").c_str(), In("named").c_str()), 0);
  EXPECT_EQ(*ReadNamedFile(In("a"), 3), "abc");
  EXPECT_EQ(*ReadNamedFile(In("named"), 3), "abc");
  EXPECT_TRUE(absl::IsResourceExhausted(ReadNamedFile(In("a"), 2).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadNamedFile(In("none"), 2).status()));
  ASSERT_EQ(::mkfifo(In("waits").c_str(), 0600), 0);
  for (const std::string& path : {In("waits"), folder_, std::string("/dev/zero")}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadNamedFile(path, 2).status())) << path;
  }
}

TEST_F(RegularFileTest, RefusesAFifoAFolderASocketAndADevice) {
  ASSERT_EQ(::mkfifo(In("fifo").c_str(), 0600), 0);
  ExpectRefused(In("fifo"), "is a FIFO");
  std::filesystem::create_directory(In("folder"));
  ExpectRefused(In("folder"), "is a folder");
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, In("socket").c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ExpectRefused(In("socket"), "is a socket");
  ::close(listener);
  ExpectRefused("/dev/null", "is a device");
}

TEST_F(RegularFileTest, FollowsNoLinkAndWritesNoFileOfTwoNames) {
  std::ofstream(In("victim")) << "keep";
  std::filesystem::create_symlink(In("victim"), In("link"));
  ExpectRefused(In("link"), "is a symbolic link");
  std::filesystem::create_symlink(In("nowhere"), In("dangling"));
  ExpectRefused(In("dangling"), "is a symbolic link");
  std::filesystem::create_hard_link(In("victim"), In("hard"));
  for (const int flags : {O_RDWR, O_WRONLY | O_CREAT | O_TRUNC}) {
    const absl::Status status = OpenRegularFile(In("hard"), flags).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("has 2 names"));
  }
  EXPECT_EQ(*ReadRegularFile(In("hard"), 10), "keep");
  ASSERT_TRUE(ReplaceRegularFile(In("hard"), "new").ok());
  EXPECT_EQ(*ReadRegularFile(In("hard"), 10), "new");
  std::ifstream victim(In("victim"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(victim), {}), "keep");
  EXPECT_FALSE(SomethingIsAt(In("nowhere")));
}

TEST_F(RegularFileTest, ReplacingDoesNotWriteThroughWhatLiesWhereItsFileGoes) {
  std::ofstream(In("victim")) << "keep";
  std::filesystem::create_symlink(In("victim"), In("a.next"));
  EXPECT_TRUE(absl::IsFailedPrecondition(ReplaceRegularFile(In("a"), "x")));
  std::ifstream victim(In("victim"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(victim), {}), "keep");
}

TEST_F(RegularFileTest, TakesRoomForAMoment) {
  EXPECT_TRUE(RequireRoom(folder_, 100'000).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_FALSE(RequireRoom(folder_, uint64_t{1} << 60).ok());
  EXPECT_FALSE(RequireRoom(In("none"), 1).ok());
}

TEST_F(RegularFileTest, KnowsFolders) {
  std::filesystem::create_directory(In("folder"));
  std::filesystem::create_directory_symlink(In("folder"), In("link"));
  std::ofstream(In("file")) << "x";
  EXPECT_TRUE(RequireFolder(In("folder")).ok());
  EXPECT_TRUE(absl::IsNotFound(RequireFolder(In("none"))));
  EXPECT_TRUE(absl::IsFailedPrecondition(RequireFolder(In("link"))));
  EXPECT_THAT(std::string(RequireFolder(In("file")).message()), HasSubstr("is a regular file"));
}

}  // namespace
}  // namespace retroinfer::common
