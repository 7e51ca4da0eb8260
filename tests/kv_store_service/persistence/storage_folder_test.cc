#include "kv_store_service/persistence/storage_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

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
      << "retroinfer durable segments\nversion 3\ncrc32c 39acd50b\n";
  const absl::Status status = StorageFolder::Open(temp.path()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find("format 3"), absl::string_view::npos) << status;
}

// What is in it is right in format 2, too, which the program before this one refuses.
TEST(StorageFolderTest, AFolderOfFormatOneBecomesOneOfFormatTwo) {
  TempFolder temp;
  ASSERT_TRUE(StorageFolder::Open(temp.path()).ok());
  std::ofstream(temp.path() + "/FORMAT")
      << "retroinfer durable segments\nversion 1\ncrc32c 1ee9e5e5\n";
  const auto folder = StorageFolder::Open(temp.path());
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_FALSE((*folder)->format_was_damaged());
  std::ifstream file(temp.path() + "/FORMAT");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(ParseFormatVersion(text), 2u);
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

// Whatever is under one of its names: refused at once, with the name, and left as it is.
TEST(StorageFolderTest, WhatIsNoRegularFileIsRefused) {
  TempFolder temp;
  {
    const auto folder = StorageFolder::Open(temp.path());
    ASSERT_TRUE(folder.ok());
    std::filesystem::create_directory((*folder)->database_path());
    (*folder)->LeaveCleanMark();
  }
  const std::string victim = temp.path() + "/../victim";
  std::ofstream(victim) << "keep";
  using Make = void (*)(const std::string& path, const std::string& victim);
  const std::pair<const char*, Make> kinds[] = {
      {"is a FIFO", [](const std::string& path, auto&) { mkfifo(path.c_str(), 0600); }},
      {"is a folder", [](const std::string& path, auto&) { mkdir(path.c_str(), 0700); }},
      {"is a socket",
       [](const std::string& path, auto&) { mknod(path.c_str(), S_IFSOCK | 0600, 0); }},
      {"is a symbolic link",
       [](const std::string& path, const std::string& to) {
         (void)!symlink(to.c_str(), path.c_str());
       }},
  };
  for (const char* name : {"LOCK", "FORMAT", "FORMAT.next", "COUNTS", "CLEAN", "db/CURRENT",
                           "db/000004.log", "db/LOG", "db/whatever"}) {
    const std::string path = temp.path() + "/" + name;
    const bool was_there = std::filesystem::exists(path);
    if (was_there) std::filesystem::rename(path, temp.path() + "/../aside");
    for (const auto& [what, make] : kinds) {
      make(path, victim);
      const absl::Status status = StorageFolder::Open(temp.path()).status();
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << name << " " << status;
      EXPECT_NE(status.message().find(absl::StrCat(path, " ", what)), absl::string_view::npos)
          << status;
      ASSERT_EQ(std::remove(path.c_str()), 0);
    }
    if (was_there) std::filesystem::rename(temp.path() + "/../aside", path);
  }
  std::ifstream file(victim);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "keep");
  EXPECT_TRUE(StorageFolder::Open(temp.path()).ok());
}

TEST(StorageFolderTest, TheDatabaseMustBeAFolderItself) {
  TempFolder temp;
  ASSERT_TRUE(StorageFolder::Open(temp.path()).ok());
  const std::string elsewhere = temp.path() + "/../elsewhere";
  std::filesystem::create_directory(elsewhere);
  std::filesystem::create_directory_symlink(elsewhere, temp.path() + "/db");
  EXPECT_TRUE(absl::IsFailedPrecondition(StorageFolder::Open(temp.path()).status()));
  // What was set aside before is only ever removed, and a link is removed, not what it leads to.
  std::ofstream(elsewhere + "/keep") << "keep";
  std::filesystem::rename(temp.path() + "/db", temp.path() + "/damaged");
  const auto folder = StorageFolder::Open(temp.path());
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_LT((*folder)->PhysicalBytes(), 100'000u);
  ASSERT_TRUE((*folder)->RemoveDamaged().ok());
  EXPECT_TRUE(std::filesystem::exists(elsewhere + "/keep"));
}

TEST(StorageFolderTest, ALinkToTheWholeFolderIsTheUsersWish) {
  TempFolder temp;
  ASSERT_TRUE(StorageFolder::Open(temp.path()).ok());
  const std::string link = temp.path() + "/../link";
  std::filesystem::create_directory_symlink(temp.path(), link);
  EXPECT_TRUE(StorageFolder::Open(link).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
