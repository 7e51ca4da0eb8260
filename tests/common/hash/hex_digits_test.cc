#include "common/hash/hex_digits.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace retroinfer::common {
namespace {

TEST(BytesOfHexDigitsTest, TakesDigitsOfEitherCaseHighOneFirst) {
  EXPECT_EQ(BytesOfHexDigits("00ff7aA7"), std::string("\x00\xff\x7a\xa7", 4));
  EXPECT_EQ(BytesOfHexDigits(""), "");
}

TEST(BytesOfHexDigitsTest, RefusesWhatIsNotWholeBytesOfDigits) {
  for (const char* text :
       {"0", "abc", "0g", "g0", "-1", "+1", " 1", "1 ", "0x", "1.", "\xff\xff"}) {
    EXPECT_EQ(BytesOfHexDigits(text), std::nullopt) << text;
  }
  EXPECT_EQ(BytesOfHexDigits(std::string("1\0", 2)), std::nullopt);
}

}  // namespace
}  // namespace retroinfer::common
