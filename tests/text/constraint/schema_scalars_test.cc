#include "text/constraint/schema_scalars.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/constraint/grammar_texts.h"

namespace retroinfer::constraint {
namespace {

using testing::HasSubstr;

class SchemaScalarsTest : public testing::Test {
 protected:
  Network Of(absl::StatusOr<ExpressionPtr> expression) {
    EXPECT_TRUE(expression.ok()) << expression.status();
    grammar_.root = grammar_.Add("root", *std::move(expression));
    return NetworkOf(grammar_);
  }
  absl::StatusOr<ExpressionPtr> String(const StringDemands& string) {
    return CompileString(string, "#", json_, limits_);
  }

  const Limits limits_;
  Grammar grammar_;
  JsonSyntax json_{grammar_};
};

TEST_F(SchemaScalarsTest, AFormatWithLengths) {
  const Network network = Of(String({.min_length = 9, .max_length = 9, .formats = {"ipv4"}}));
  EXPECT_TRUE(Has(network, "\"127.0.0.1\""));
  EXPECT_FALSE(Has(network, "\"127.0.0.11\""));
}

TEST_F(SchemaScalarsTest, LengthsThatThePatternHasAnyway) {
  const Network network = Of(String({.max_length = 10, .patterns = {"^[a-z]{2}$"}}));
  EXPECT_TRUE(Has(network, "\"ab\""));
  EXPECT_FALSE(Has(network, "\"abc\""));
}

TEST_F(SchemaScalarsTest, RefusesWhatCannotBeTogether) {
  EXPECT_THAT(std::string(String({.patterns = {"a", "b"}}).status().message()),
              HasSubstr("more than one"));
  EXPECT_THAT(std::string(String({.patterns = {"("}}).status().message()),
              HasSubstr("\"pattern\": offset 1"));
  NumberDemands quarters;
  quarters.multiples_of = {*Decimal::Parse("0.25")};
  EXPECT_THAT(std::string(CompileNumber(quarters, kNumberTypes, "#", json_).status().message()),
              HasSubstr("multipleOf"));
}

TEST_F(SchemaScalarsTest, MultiplesOfFractionsAndOfSeveralNumbers) {
  NumberDemands number;
  number.multiples_of = {*Decimal::Parse("1.5"), *Decimal::Parse("4")};
  const Network network = Of(CompileNumber(number, kIntegerType, "#", json_));
  for (int value = -50; value <= 50; ++value) {
    EXPECT_EQ(Has(network, std::to_string(value)), value % 12 == 0) << value;
  }
}

}  // namespace
}  // namespace retroinfer::constraint
