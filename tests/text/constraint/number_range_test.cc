#include "text/constraint/number_range.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/text/constraint/grammar_texts.h"

namespace retroinfer::constraint {
namespace {

std::optional<NumberBound> Bound(const char* text, bool is_exclusive = false) {
  return NumberBound{*Decimal::Parse(text), is_exclusive};
}

TEST(NumberRangeTest, AllIntegersBetweenTwoBounds) {
  for (const auto& [low, high] : {std::pair(-17, 123), std::pair(0, 9), std::pair(5, 1005),
                                  std::pair(-120, -3), std::pair(98, 100), std::pair(-1, 0)}) {
    for (const int step : {1, 3, 7}) {
      const auto numbers = NumbersIn({.min = Bound(std::to_string(low).c_str()),
                                      .max = Bound(std::to_string(high).c_str()),
                                      .is_integer = true,
                                      .multiple_of = step});
      ASSERT_TRUE(numbers.has_value());
      const Network network = NetworkOf(*numbers);
      for (int value = -1500; value <= 1500; ++value) {
        EXPECT_EQ(Has(network, std::to_string(value)),
                  value >= low && value <= high && value % step == 0)
            << value << " in " << low << ".." << high << " by " << step;
      }
      EXPECT_FALSE(Has(network, "-0"));
      EXPECT_FALSE(Has(network, "007"));
      EXPECT_FALSE(Has(network, ""));
    }
  }
}

TEST(NumberRangeTest, FractionsAreComparedDigitByDigit) {
  const auto numbers = NumbersIn({.min = Bound("-0.25"), .max = Bound("12.05", true)});
  ASSERT_TRUE(numbers.has_value());
  const Network network = NetworkOf(*numbers);
  for (const char* const text :
       {"-0.25", "-0.250", "-0.1", "0", "0.0", "0.99999", "12", "12.0", "12.04999", "9.9", "3"}) {
    EXPECT_TRUE(Has(network, text)) << text;
  }
  for (const char* const text :
       {"-0.26", "-0.2500001", "-0", "-0.0", "-1", "12.05", "12.050", "12.1", "13", "1.", "."}) {
    EXPECT_FALSE(Has(network, text)) << text;
  }
}

TEST(NumberRangeTest, OneBoundAlone) {
  const auto large = NumbersIn({.min = Bound("100", true), .is_integer = true});
  EXPECT_TRUE(Has(*large, "101"));
  EXPECT_TRUE(Has(*large, "123456789012345678"));
  EXPECT_FALSE(Has(*large, "100"));
  EXPECT_FALSE(Has(*large, "-101"));
  const auto negative = NumbersIn({.max = Bound("-2.5")});
  EXPECT_TRUE(Has(*negative, "-2.5"));
  EXPECT_TRUE(Has(*negative, "-1000.25"));
  EXPECT_FALSE(Has(*negative, "-2.49"));
  EXPECT_FALSE(Has(*negative, "2.5"));
}

TEST(NumberRangeTest, DigitsBehindThePoint) {
  const auto cents = NumbersIn({.min = Bound("0"), .fraction_digits_max = 2});
  EXPECT_TRUE(Has(*cents, "1.25"));
  EXPECT_FALSE(Has(*cents, "1.255"));
  EXPECT_FALSE(Has(*NumbersIn({.fraction_digits_max = 0}), "1.0"));
}

TEST(NumberRangeTest, EmptyAndTooLarge) {
  const auto none = NumbersIn({.min = Bound("5"), .max = Bound("4"), .is_integer = true});
  ASSERT_TRUE(none.has_value());
  Grammar grammar;
  grammar.root = grammar.Add("root", *none);
  EXPECT_FALSE(BuildNetwork(grammar, 16, {}).ok());
  EXPECT_FALSE(NumbersIn({.is_integer = true, .multiple_of = 999'983}).has_value());
}

}  // namespace
}  // namespace retroinfer::constraint
