#include "common/files/lfs_pointer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace retroinfer::common {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kPointer[] =
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:fdf756fa7fcbe7404d5c60e26bff1a0c8b8aa1f72ced49e7dd0210fe288fb7fe\n"
    "size 988097824\n";

TEST(LfsPointerTest, APointerIsRefusedWithWhatToDo) {
  const absl::Status status = RefuseLfsPointer(kPointer, "/m/model.safetensors");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("/m/model.safetensors is a pointer of Git LFS to a file of 988097824 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("git lfs pull"));
}

TEST(LfsPointerTest, AStrangeSizeIsNotTold) {
  for (const char* const size : {"", "size", "size many", "size -1", "size 1e99"}) {
    const absl::Status status =
        RefuseLfsPointer(std::string("version https://git-lfs.github.com/spec/v2\n") + size, "f");
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("bytes"))) << size;
  }
}

TEST(LfsPointerTest, OtherBytesPass) {
  for (const char* const bytes :
       {"", "version", "{\"version\": \"https://git-lfs\"}", " version "}) {
    EXPECT_TRUE(RefuseLfsPointer(bytes, "f").ok()) << bytes;
  }
}

}  // namespace
}  // namespace retroinfer::common
