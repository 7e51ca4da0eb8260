#include "gpu_worker/model/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <utility>

#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::TempFolder;

std::string Text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFileTest, ShowsTheBytes) {
  TempFolder folder;
  const std::string content("a\0b", 3);
  auto file = MappedFile::Open(folder.Write("f", content));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(Text(*file), content);
}

TEST(MappedFileTest, MovesKeepTheMapping) {
  TempFolder folder;
  auto file = MappedFile::Open(folder.Write("f", "abc"));
  ASSERT_TRUE(file.ok());
  const std::byte* address = file->bytes().data();
  MappedFile moved = *std::move(file);
  MappedFile assigned;
  assigned = std::move(moved);
  EXPECT_EQ(assigned.bytes().data(), address);
  EXPECT_EQ(Text(assigned), "abc");
}

TEST(MappedFileTest, AnEmptyFileIsAnEmptySpan) {
  TempFolder folder;
  auto file = MappedFile::Open(folder.Write("f", ""));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->bytes().empty());
}

TEST(MappedFileTest, AMissingFileIsNotFound) {
  TempFolder folder;
  const auto file = MappedFile::Open(folder.File("absent"));
  EXPECT_EQ(file.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(file.status().message().find("absent"), absl::string_view::npos);
}

TEST(MappedFileTest, FoldersAndPipesAreRefusedWithoutBlocking) {
  TempFolder folder;
  EXPECT_EQ(MappedFile::Open(folder.path()).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo(folder.File("pipe").c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::Open(folder.File("pipe")).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace retroinfer
