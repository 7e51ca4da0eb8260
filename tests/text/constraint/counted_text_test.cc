#include "text/constraint/counted_text.h"

#include <gtest/gtest.h>

#include "tests/text/constraint/grammar_texts.h"

namespace retroinfer::constraint {
namespace {

ExpressionPtr Letter(char32_t code) { return Characters({{code, code}}); }

TEST(CountedTextTest, TellsWhetherAllLengthsAreWithin) {
  const ExpressionPtr two_to_four = Repeat(Letter('a'), 2, 4);
  EXPECT_TRUE(AllWithin(*two_to_four, {.min = 2, .max = 4}));
  EXPECT_TRUE(AllWithin(*two_to_four, {}));
  EXPECT_FALSE(AllWithin(*two_to_four, {.min = 3}));
  EXPECT_FALSE(AllWithin(*two_to_four, {.max = 3}));
  EXPECT_FALSE(AllWithin(*Repeat(two_to_four, 0), {.max = 1000}));
  EXPECT_TRUE(AllWithin(*Alternatives({two_to_four, Letter('b')}), {.min = 1, .max = 4}));
  EXPECT_TRUE(AllWithin(*Sequence({two_to_four, two_to_four}), {.min = 4, .max = 8}));
}

TEST(CountedTextTest, KeepsTheTextsOfTheseLengths) {
  // (ab|c)*
  const ExpressionPtr words =
      Repeat(Alternatives({Sequence({Letter('a'), Letter('b')}), Letter('c')}), 0);
  const auto counted = TextOfLengths(*words, {.min = 2, .max = 3}, &Characters);
  ASSERT_TRUE(counted.has_value());
  EXPECT_EQ(TextsOf(*counted), (std::vector<std::string>{"ab", "abc", "cab", "cc", "ccc"}));
  const auto endless = TextOfLengths(*words, {.min = 2}, &Characters);
  ASSERT_TRUE(endless.has_value());
  EXPECT_TRUE(Has(*endless, "abababccc"));
  EXPECT_FALSE(Has(*endless, "c"));
}

TEST(CountedTextTest, RefusesTooManyStates) {
  const ExpressionPtr nested = Repeat(Repeat(Letter('a'), 0, 1000), 0, 1000);
  EXPECT_FALSE(TextOfLengths(*nested, {.max = 10}, &Characters).has_value());
  EXPECT_FALSE(
      TextOfLengths(*Repeat(Letter('a'), 0), {.max = 10'000'000}, &Characters).has_value());
}

}  // namespace
}  // namespace retroinfer::constraint
