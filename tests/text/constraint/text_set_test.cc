#include "text/constraint/text_set.h"

#include <gtest/gtest.h>

namespace retroinfer::constraint {
namespace {

TEST(TextSetTest, Characters) {
  const CodePointSet json = CharactersOf(TextSet::kJsonText);
  for (const char32_t code : {U'"', U'\\', U'\n', U'\0', U'\x1F'}) {
    EXPECT_FALSE(json.Contains(code)) << static_cast<uint32_t>(code);
  }
  for (const char32_t code : {U' ', U'<', U'[', U'\x7F', U'é', U'😀'}) {
    EXPECT_TRUE(json.Contains(code)) << static_cast<uint32_t>(code);
  }
  EXPECT_TRUE(CharactersOf(TextSet::kNoAngle).Contains('\n'));
  EXPECT_FALSE(CharactersOf(TextSet::kNoAngle).Contains('<'));
  EXPECT_FALSE(CharactersOf(TextSet::kNoBracket).Contains('['));
}

TEST(TextSetTest, ASetWithoutACharacterHasNoTokenWithIt) {
  for (char32_t code = 0; code < 0x3000; ++code) {
    const auto set = TextSetWithout(code);
    EXPECT_FALSE(set.has_value() && CharactersOf(*set).Contains(code));
  }
  EXPECT_EQ(TextSetWithout('a'), std::nullopt);
}

}  // namespace
}  // namespace retroinfer::constraint
