#include "text/constraint/decimal.h"

#include <gtest/gtest.h>

namespace retroinfer::constraint {
namespace {

Decimal Of(std::string_view text) {
  const auto decimal = Decimal::Parse(text);
  EXPECT_TRUE(decimal.has_value()) << text;
  return decimal.value_or(Decimal{});
}

TEST(DecimalTest, SpellingsOfOneNumberAreEqual) {
  EXPECT_EQ(Of("100"), Of("1e2"));
  EXPECT_EQ(Of("0.5"), Of("5e-1"));
  EXPECT_EQ(Of("12.50"), Of("0.125E+2"));
  EXPECT_EQ(Of("-0.0"), Of("0"));
  EXPECT_EQ(Of("1.5e1").whole, "15");
  EXPECT_EQ(Of("-0.05").fraction, "05");
}

TEST(DecimalTest, Compares) {
  const char* const ascending[] = {"-100.5", "-100", "-99", "-0.1", "0",  "0.01", "0.1",
                                   "0.11",   "1",    "9",   "9.99", "10", "1e20"};
  for (size_t i = 0; i < std::size(ascending); ++i) {
    for (size_t j = 0; j < std::size(ascending); ++j) {
      const int order = Compare(Of(ascending[i]), Of(ascending[j]));
      EXPECT_EQ(order < 0, i < j) << ascending[i] << " " << ascending[j];
      EXPECT_EQ(order > 0, i > j);
    }
  }
}

TEST(DecimalTest, RefusesWhatIsNoNumberOrTooLong) {
  for (const char* text : {"", "-", "a", "1a", "1.a", ".5", "1e", "1e500", "1e41", "1e-41"}) {
    EXPECT_FALSE(Decimal::Parse(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace retroinfer::constraint
