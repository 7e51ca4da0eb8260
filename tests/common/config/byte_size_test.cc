#include "common/config/byte_size.h"

#include <gtest/gtest.h>

namespace retroinfer::common {
namespace {

TEST(ByteSizeTest, ReadsNumbersAndUnits) {
  EXPECT_EQ(*ParseByteSize("0"), 0u);
  EXPECT_EQ(*ParseByteSize("4096"), 4096u);
  EXPECT_EQ(*ParseByteSize("9223372036854775807"), 9223372036854775807u);
  EXPECT_EQ(*ParseByteSize("12B"), 12u);
  EXPECT_EQ(*ParseByteSize("8GiB"), 8ull << 30);
  EXPECT_EQ(*ParseByteSize("8 gib"), 8ull << 30);
  EXPECT_EQ(*ParseByteSize("2Gi"), 2ull << 30);
  EXPECT_EQ(*ParseByteSize("3k"), 3072u);
  EXPECT_EQ(*ParseByteSize("1.5MiB"), 3u << 19);
  EXPECT_EQ(*ParseByteSize("2TB"), 2'000'000'000'000u);
}

TEST(ByteSizeTest, RefusesEverythingElse) {
  for (const char* text :
       {"", "GiB", "-1", "1.2.3", ".5", "5.", "1e9", "8 G i B", "8XiB", "8GiBs",
        "9223372036854775808", "99999999999999999999", "8388608TiB", "0x10", "nan", "1\n"}) {
    EXPECT_EQ(ParseByteSize(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ByteSizeTest, WritesTheLargestUnit) {
  EXPECT_EQ(FormatByteSize(0), "0 B");
  EXPECT_EQ(FormatByteSize(1023), "1023 B");
  EXPECT_EQ(FormatByteSize(1024), "1.00 KiB");
  EXPECT_EQ(FormatByteSize(3ull << 29), "1.50 GiB");
  EXPECT_EQ(FormatByteSize(5000ull << 40), "5000.00 TiB");
}

}  // namespace
}  // namespace retroinfer::common
