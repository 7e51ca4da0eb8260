#include "common/config/socket_dir.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"

namespace retroinfer::common {
namespace {

TEST(SocketDirTest, TheDefaultIsOfThisUser) {
  ASSERT_EQ(::setenv("XDG_RUNTIME_DIR", "/run/user/7", 1), 0);
  EXPECT_EQ(DefaultSocketDir(), "/run/user/7/retroinfer");
  ASSERT_EQ(::setenv("XDG_RUNTIME_DIR", "relative", 1), 0);
  EXPECT_EQ(DefaultSocketDir(), absl::StrCat("/tmp/retroinfer-", ::geteuid()));
  ASSERT_EQ(::unsetenv("XDG_RUNTIME_DIR"), 0);
  EXPECT_EQ(DefaultSocketDir(), absl::StrCat("/tmp/retroinfer-", ::geteuid()));
}

TEST(SocketDirTest, AFolderThatOthersMayEnterGetsAPrivateOneInside) {
  char path[] = "/tmp/rt_sockets_XXXXXX";
  const std::string folder = ::mkdtemp(path);
  const std::string inside = absl::StrCat(folder, "/retroinfer-", ::geteuid());
  EXPECT_EQ(SocketDirOf(folder), folder);
  // 0777: a Kubernetes emptyDir; 02777: with an fsGroup; 01777: /tmp.
  for (const mode_t mode : {0777, 02777, 01777, 0755, 0710, 0701}) {
    ASSERT_EQ(::chmod(folder.c_str(), mode), 0);
    EXPECT_EQ(SocketDirOf(folder), inside) << mode;
    EXPECT_EQ(SocketDirOf(folder + "/"), inside) << mode;
  }
  for (const mode_t mode : {0700, 02700}) {
    ASSERT_EQ(::chmod(folder.c_str(), mode), 0);
    EXPECT_EQ(SocketDirOf(folder), folder) << mode;
  }
  // What the store has made is found under its own name, too.
  ASSERT_EQ(::mkdir(inside.c_str(), 0700), 0);
  EXPECT_EQ(SocketDirOf(inside), inside);
  std::filesystem::remove_all(folder);
}

TEST(SocketDirTest, WhatIsNotThereIsTheStoresToMake) {
  EXPECT_EQ(SocketDirOf("/no/such/folder"), "/no/such/folder");
  EXPECT_EQ(SocketDirOf(""), "");
  EXPECT_EQ(SocketDirOf("/proc/self/exe"), "/proc/self/exe");  // a file: the store refuses it
}

}  // namespace
}  // namespace retroinfer::common
