#include "text/constraint/spec_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/constraint/constraint_fixtures.h"

namespace retroinfer::constraint {
namespace {

using testing::HasSubstr;

ConstraintSpec WithThoughts(ConstraintSpec spec, std::string open, std::string close) {
  spec.thoughts = Thoughts{std::move(open), std::move(close)};
  return spec;
}

TEST(SpecGrammarTest, ThoughtsMayComeBefore) {
  const ConstraintSpec spec = WithThoughts(Choices({"yes"}), "<think>", "</think>");
  EXPECT_TRUE(Accepts(spec, "yes"));
  EXPECT_TRUE(Accepts(spec, "<think></think>yes"));
  EXPECT_TRUE(Accepts(spec, "<think>no\n</thin </think>\n\nyes"));
  EXPECT_FALSE(Accepts(spec, "<think>no yes"));
  EXPECT_FALSE(Accepts(spec, "<think></think>\n\n\n\n\n\n\n\n\nyes"));  // nine
  EXPECT_FALSE(Accepts(spec, "thoughts</think>yes"));
}

TEST(SpecGrammarTest, ThoughtsThatThePromptOpenedMustCome) {
  const ConstraintSpec spec = WithThoughts(Choices({"yes"}), "", "</think>");
  EXPECT_TRUE(Accepts(spec, "so</think>yes"));
  EXPECT_TRUE(Accepts(spec, "</think> yes"));
  EXPECT_FALSE(Accepts(spec, "yes"));
}

TEST(SpecGrammarTest, ASpecialTagIsThatToken) {
  Matcher matcher(MustCompile(WithThoughts(Choices({"a"}), "", "<|call|>"), BpeVocabulary()));
  for (const char byte : std::string_view("x<|call|>")) {
    ASSERT_TRUE(matcher.Accept(static_cast<uint8_t>(byte)));
  }
  EXPECT_TRUE(matcher.Accept('a'));
  EXPECT_FALSE(matcher.CanEnd());
  EXPECT_TRUE(matcher.Accept(kBpeSpecial));
  EXPECT_TRUE(matcher.Accept('a'));
  EXPECT_TRUE(matcher.MustEnd());
}

TEST(SpecGrammarTest, RefusesSizesAndTexts) {
  EXPECT_THAT(Refusal(Choices({})), HasSubstr("1 to 1024 texts, has 0"));
  EXPECT_THAT(Refusal(Choices({"a", ""})), HasSubstr("choices[1]"));
  EXPECT_THAT(Refusal(Choices({"\xFF"})), HasSubstr("UTF-8"));
  EXPECT_THAT(Refusal(Choices(std::vector<std::string>(1025, "a"))), HasSubstr("has 1025"));
  EXPECT_THAT(Refusal(Regex(std::string(300'000, 'a'))), HasSubstr("has 300000 bytes"));
  EXPECT_THAT(Refusal(Choices({std::string(200'000, 'a'), std::string(200'000, 'b')})),
              HasSubstr("has 400000 bytes"));
  EXPECT_THAT(Refusal(WithThoughts(Choices({"a"}), "<", "")), HasSubstr("thoughts.close"));
  EXPECT_THAT(Refusal(WithThoughts(Choices({"a"}), std::string(300, 'a'), "b")),
              HasSubstr("thoughts.open"));
}

}  // namespace
}  // namespace retroinfer::constraint
