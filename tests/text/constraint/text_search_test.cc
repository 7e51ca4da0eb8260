#include "text/constraint/text_search.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "tests/text/constraint/grammar_texts.h"

namespace retroinfer::constraint {
namespace {

TEST(TextSearchTest, FindsTheFirstOccurrence) {
  // Over a small alphabet tags begin again inside of themselves.
  std::mt19937 random(5);
  const auto draw = [&random](size_t length_max) {
    std::string text;
    for (size_t i = random() % (length_max + 1); i > 0; --i) {
      text += random() % 3 == 0 ? "é" : random() % 2 == 0 ? "a" : "b";
    }
    return text;
  };
  for (int round = 0; round < 60; ++round) {
    const std::string tag = absl::StrCat("a", draw(5));
    const Network until = NetworkOf(TextUntil(tag));
    const Network without = NetworkOf(TextWithout(tag));
    for (int i = 0; i < 40; ++i) {
      const std::string text = i % 2 == 0 ? draw(12) : draw(6) + tag;
      const size_t found = text.find(tag);
      EXPECT_EQ(Has(until, text), found != std::string::npos && found + tag.size() == text.size())
          << tag << " in " << text;
      EXPECT_EQ(Has(without, text), found == std::string::npos) << tag << " in " << text;
    }
  }
}

TEST(TextSearchTest, OtherTextIsAnyCharacter) {
  const Network network = NetworkOf(TextUntil("</think>"));
  EXPECT_TRUE(Has(network, "\n\"\\😀</thin</think></think>") == false);
  EXPECT_TRUE(Has(network, "\n\"\\😀</thin</think>"));
  EXPECT_FALSE(Has(network, "\xFF</think>"));
}

TEST(TextSearchTest, StateZeroIsFlagged) {
  EXPECT_EQ(TextUntil("<a>")->states[0].text_set, TextSet::kNoAngle);
  EXPECT_EQ(TextUntil("<a>")->states[1].text_set, std::nullopt);
  EXPECT_EQ(TextUntil("[a]")->states[0].text_set, TextSet::kNoBracket);
  EXPECT_EQ(TextUntil("\n")->states[0].text_set, TextSet::kJsonText);
  EXPECT_EQ(TextUntil("e")->states[0].text_set, std::nullopt);
}

}  // namespace
}  // namespace retroinfer::constraint
