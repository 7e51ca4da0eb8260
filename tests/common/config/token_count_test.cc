#include "common/config/token_count.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace retroinfer::common {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;

TEST(TokenCountTest, ReadsNumbersAndUnits) {
  EXPECT_EQ(*ParseTokenCount("0", 0, kMost), 0);
  EXPECT_EQ(*ParseTokenCount("131072", 0, kMost), 131072);
  EXPECT_EQ(*ParseTokenCount("128K", 0, kMost), 131072);
  EXPECT_EQ(*ParseTokenCount("128k", 0, kMost), 131072);
  EXPECT_EQ(*ParseTokenCount("1M", 0, kMost), 1 << 20);
  EXPECT_EQ(*ParseTokenCount("1.5k", 0, kMost), 1536);
}

TEST(TokenCountTest, RefusesEverythingElse) {
  for (const char* text : {"", "K", "-1", "1.2.3", ".5K", "5.K", "1e9", "8 K", "8KiB", "8G", "0x10",
                           "nan", "inf", "1\n", "0.3", "1.0001K"}) {
    const auto tokens = ParseTokenCount(text, 0, kMost);
    EXPECT_EQ(tokens.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(tokens.status().message()), testing::HasSubstr("128K")) << text;
  }
}

TEST(TokenCountTest, MessagesOfTheRangeAreShort) {
  for (const char* text : {"100", "2000M", "999999999999999999999999999999"}) {
    const auto tokens = ParseTokenCount(text, 1024, kMost);
    EXPECT_THAT(std::string(tokens.status().message()),
                testing::HasSubstr("is not from 1024 to 1073741824 tokens"));
  }
  const std::string digits(100'000, '9');
  EXPECT_LT(ParseTokenCount(digits, 0, kMost).status().message().size(), 200u);
}

}  // namespace
}  // namespace retroinfer::common
