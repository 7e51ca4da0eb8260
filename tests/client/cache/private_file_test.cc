#include "client/cache/private_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "client/command/connection.h"

namespace retroinfer::client {
namespace {

class PrivateFileTest : public testing::Test {
 protected:
  PrivateFileTest() { EXPECT_NE(::mkdtemp(folder_.data()), nullptr); }
  ~PrivateFileTest() override { std::filesystem::remove_all(folder_); }
  size_t NumFiles() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  std::string folder_ = (std::filesystem::temp_directory_path() / "private-XXXXXX").string();
};

TEST_F(PrivateFileTest, AppearsWhenItIsComplete) {
  const std::string path = folder_ + "/file";
  auto file = PrivateFile::Create(path, false);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Append("some ").ok());
  ASSERT_TRUE(file->Append("bytes").ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(*ReadWholeFile(path), "some bytes");
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(PrivateFile::Create(path, false).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(PrivateFile::Create(path, true).ok());
  EXPECT_EQ(*ReadWholeFile(path), "some bytes");
  EXPECT_EQ(NumFiles(), 1u);
}

TEST_F(PrivateFileTest, LeavesNothingBehind) {
  {
    auto file = PrivateFile::Create(folder_ + "/file", false);
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(NumFiles(), 1u);
  }
  EXPECT_EQ(NumFiles(), 0u);
  EXPECT_FALSE(PrivateFile::Create("/no/such/folder/file", false).ok());
}

}  // namespace
}  // namespace retroinfer::client
