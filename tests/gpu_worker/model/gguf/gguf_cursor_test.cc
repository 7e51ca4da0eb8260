#include "gpu_worker/model/gguf/gguf_cursor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "tests/gpu_worker/model/gguf/gguf_text.h"

namespace retroinfer {
namespace {

using test_support::GgufRaw;
using test_support::GgufString;
using ::testing::HasSubstr;

GgufCursor CursorOf(const std::string& text) {
  return GgufCursor(std::as_bytes(std::span(text)), "file");
}

TEST(GgufCursorTest, ReadsOneAfterTheOther) {
  const std::string text = GgufRaw(uint32_t{7}) + GgufString("name") + GgufRaw(uint64_t{9});
  GgufCursor cursor = CursorOf(text);
  EXPECT_EQ(*cursor.U32("a"), 7u);
  EXPECT_EQ(*cursor.String(4, "b"), "name");
  EXPECT_EQ(cursor.remaining(), 8u);
  EXPECT_EQ(*cursor.U64("c"), 9u);
  EXPECT_EQ(cursor.remaining(), 0u);
}

TEST(GgufCursorTest, SaysWhatTheFileEndsIn) {
  const std::string text = "abc";
  GgufCursor cursor = CursorOf(text);
  const auto value = cursor.U32("the version");
  EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(value.status().message()),
              HasSubstr("file: ends within the version, at byte 3; is the file complete?"));
  EXPECT_EQ(cursor.offset(), 0u);
}

TEST(GgufCursorTest, LengthsBeyondTheFileOrALimitAreRefused) {
  const std::string far = GgufRaw(std::numeric_limits<uint64_t>::max()) + "abc";
  GgufCursor cursor = CursorOf(far);
  EXPECT_THAT(
      std::string(cursor.String(std::numeric_limits<uint64_t>::max(), "x").status().message()),
      HasSubstr("ends within x"));
  const std::string five = GgufString("12345");
  cursor = CursorOf(five);
  EXPECT_THAT(std::string(cursor.String(4, "a name").status().message()),
              HasSubstr("a name has 5 bytes; at most 4 are accepted"));
}

}  // namespace
}  // namespace retroinfer
