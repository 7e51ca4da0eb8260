#include "kv_store_service/persistence/storage_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/kv_store_service/persistence/sample_segments.h"

namespace retroinfer::kvstore {
namespace {

using testing::TempFolder;

mode_t ModeOf(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 ? info.st_mode & 0777 : 0;
}

TEST(StorageFolderTest, IsPrivate) {
  TempFolder temp;
  std::filesystem::create_directory(temp.path());
  chmod(temp.path().c_str(), 0755);
  ASSERT_TRUE(StorageFolder::Open(temp.path()).ok());
  EXPECT_EQ(ModeOf(temp.path()), mode_t{0700});
  ASSERT_TRUE(StorageFolder::Open(temp.path() + "/a/b").ok());
  EXPECT_EQ(ModeOf(temp.path() + "/a/b"), mode_t{0700});
}

TEST(StorageFolderTest, HasOneUserAtATime) {
  TempFolder temp;
  auto first = StorageFolder::Open(temp.path());
  ASSERT_TRUE(first.ok());
  const absl::Status second = StorageFolder::Open(temp.path()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_NE(second.message().find(absl::StrCat("in use by process ", getpid(), ":")),
            absl::string_view::npos)
      << second;
  first->reset();
  EXPECT_TRUE(StorageFolder::Open(temp.path()).ok());
}

TEST(StorageFolderTest, RefusesANewerFormat) {
  TempFolder temp;
  ASSERT_TRUE(StorageFolder::Open(temp.path()).ok());
  std::ofstream(temp.path() + "/FORMAT")
      << "retroinfer durable segments\nversion 2\ncrc32c 2a0e4d7c\n";
  const absl::Status status = StorageFolder::Open(temp.path()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find("format 2"), absl::string_view::npos) << status;
}

TEST(StorageFolderTest, RepairsADamagedFormat) {
  TempFolder temp;
  ASSERT_TRUE(StorageFolder::Open(temp.path()).ok());
  std::ofstream(temp.path() + "/FORMAT") << "garbage";
  EXPECT_TRUE((*StorageFolder::Open(temp.path()))->format_was_damaged());
  EXPECT_FALSE((*StorageFolder::Open(temp.path()))->format_was_damaged());
}

TEST(StorageFolderTest, TheCleanMarkIsTakenOnce) {
  TempFolder temp;
  const auto folder = StorageFolder::Open(temp.path());
  EXPECT_TRUE((*folder)->TakeCleanMark());  // new
  std::filesystem::create_directory((*folder)->database_path());
  EXPECT_FALSE((*folder)->TakeCleanMark());
  (*folder)->LeaveCleanMark();
  EXPECT_TRUE((*folder)->TakeCleanMark());
  EXPECT_FALSE((*folder)->TakeCleanMark());
}

TEST(StorageFolderTest, SetsADatabaseAsideAndMeasures) {
  TempFolder temp;
  const auto folder = StorageFolder::Open(temp.path());
  ASSERT_TRUE(folder.ok());
  const uint64_t before = (*folder)->PhysicalBytes();
  std::filesystem::create_directory((*folder)->database_path());
  std::ofstream((*folder)->database_path() + "/x") << std::string(100'000, 'x');
  EXPECT_GE((*folder)->PhysicalBytes(), before + 100'000);
  ASSERT_TRUE((*folder)->SetDatabaseAside().ok());
  EXPECT_TRUE((*folder)->HasDamaged());
  EXPECT_FALSE(std::filesystem::exists((*folder)->database_path()));
  ASSERT_TRUE((*folder)->RemoveDamaged().ok());
  EXPECT_FALSE((*folder)->HasDamaged());
  EXPECT_LE((*folder)->PhysicalBytes(), before + 4096);
}

TEST(StorageFolderTest, AsksTheFileSystemForDirectReads) {
  TempFolder temp;
  const auto folder = StorageFolder::Open(temp.path());
  (*folder)->SupportsDirectReads();  // either answer is right
  std::filesystem::remove(temp.path() + "/FORMAT");
  EXPECT_FALSE((*folder)->SupportsDirectReads());
}

TEST(StorageFolderTest, KnowsWhatFitsOnTheDisk) {
  TempFolder temp;
  const auto folder = StorageFolder::Open(temp.path());
  EXPECT_TRUE((*folder)->CheckFreeSpace(1, 1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted((*folder)->CheckFreeSpace(1, uint64_t{1} << 60)));
}

TEST(StorageFolderTest, AFileInItsPlaceIsAnError) {
  TempFolder temp;
  std::ofstream(temp.path()) << "x";
  EXPECT_FALSE(StorageFolder::Open(temp.path()).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
