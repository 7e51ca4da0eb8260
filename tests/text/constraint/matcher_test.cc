#include "text/constraint/matcher.h"

#include <gtest/gtest.h>

#include "tests/text/constraint/constraint_fixtures.h"

namespace retroinfer::constraint {
namespace {

// Takes each byte as its token.
bool AcceptBytes(Matcher& matcher, std::string_view text) {
  for (const char byte : text) {
    if (!matcher.Accept(static_cast<uint8_t>(byte))) return false;
  }
  return true;
}

TEST(MatcherTest, FollowsATextToItsEnd) {
  Matcher matcher(MustCompile(Choices({"yes", "yesterday", "no"})));
  EXPECT_FALSE(matcher.CanEnd());
  EXPECT_FALSE(matcher.Accept(kByteEnd));
  EXPECT_FALSE(matcher.Accept('x'));
  EXPECT_TRUE(AcceptBytes(matcher, "yes"));
  EXPECT_TRUE(matcher.CanEnd());
  EXPECT_FALSE(matcher.MustEnd());
  const std::vector<uint32_t> mask = MaskOf(matcher, *ByteVocabulary());
  for (int32_t token = 0; token < kByteLogits; ++token) {
    EXPECT_EQ(IsSet(mask, token), token == 't' || token == kByteEnd) << token;
  }
  EXPECT_EQ(mask.back() >> (kByteLogits % 32), 0u);
  EXPECT_TRUE(AcceptBytes(matcher, "terday"));
  EXPECT_TRUE(matcher.MustEnd());
  EXPECT_TRUE(matcher.Accept(kByteEnd));
  EXPECT_TRUE(matcher.status().ok());
}

TEST(MatcherTest, ACopyGoesOnByItself) {
  Matcher matcher(MustCompile(Choices({"ab", "ac"})));
  ASSERT_TRUE(matcher.Accept('a'));
  Matcher copy = matcher;
  EXPECT_TRUE(copy.Accept('b'));
  EXPECT_TRUE(copy.MustEnd());
  EXPECT_FALSE(matcher.CanEnd());
  EXPECT_TRUE(matcher.Accept('c'));
}

TEST(MatcherTest, TokensOfSeveralBytesAndSpecialTokens) {
  const auto constraint =
      MustCompile(GrammarText("root ::= \"ab\" %special \"<|call|>\" \"<tool>\" | \"<|call|>\""),
                  BpeVocabulary());
  Matcher matcher(constraint);
  const auto tokenizer = BpeTokenizer();
  const std::vector<uint32_t> mask = MaskOf(matcher, *BpeVocabulary());
  EXPECT_TRUE(IsSet(mask, *tokenizer->TokenId("ab")));
  EXPECT_FALSE(IsSet(mask, *tokenizer->TokenId("abc")));
  EXPECT_TRUE(IsSet(mask, '<'));
  EXPECT_FALSE(IsSet(mask, kBpeSpecial));  // the text of a special token is no special token
  ASSERT_TRUE(matcher.Accept(*tokenizer->TokenId("ab")));
  EXPECT_FALSE(matcher.Accept('<'));
  EXPECT_FALSE(matcher.Accept(0xFF));  // the byte before a special token's text
  ASSERT_TRUE(matcher.Accept(kBpeSpecial));
  EXPECT_TRUE(IsSet(MaskOf(matcher, *BpeVocabulary()), kBpeTag));
  ASSERT_TRUE(matcher.Accept(kBpeTag));
  EXPECT_TRUE(matcher.MustEnd());
}

TEST(MatcherTest, TokensThatAreNoneAreNeverTaken) {
  Matcher matcher(MustCompile(GrammarText("root ::= .*"), BpeVocabulary()));
  for (const int32_t token : {-1, 499, 503, 511, 512, 1 << 30}) {
    EXPECT_FALSE(matcher.Accept(token)) << token;
  }
  const std::vector<uint32_t> mask = MaskOf(matcher, *BpeVocabulary());
  EXPECT_FALSE(IsSet(mask, 499));
  EXPECT_FALSE(IsSet(mask, 511));
  EXPECT_FALSE(IsSet(mask, 0xFF));
  EXPECT_TRUE(IsSet(mask, 'a'));
}

TEST(MatcherTest, WhatTakesTooManyReadingsSaysSoAndEnds) {
  const Limits limits = {.fill_steps_max = 10};
  const auto constraint =
      MustCompile(GrammarText("root ::= [a-z]{1,400}"), BpeVocabulary(), limits);
  Matcher matcher(constraint);
  Matcher fresh = matcher;
  const std::vector<uint32_t> mask = MaskOf(matcher, *BpeVocabulary());
  // The walk is too short to be looked at, or it is cut off: both leave something to draw.
  if (matcher.status().ok()) {
    EXPECT_TRUE(IsSet(mask, 'a'));
  } else {
    EXPECT_EQ(common::ReasonOf(matcher.status()).reason, "CONSTRAINT_TOO_COMPLEX");
    EXPECT_TRUE(IsSet(mask, kBpeEnd));
    EXPECT_FALSE(IsSet(mask, 'a'));
    EXPECT_TRUE(matcher.Accept(kBpeEnd));
    EXPECT_FALSE(matcher.Accept('a'));
  }
  EXPECT_TRUE(fresh.Accept('a'));
}

TEST(MatcherTest, TooManyPositionsAreNoWayOn) {
  // Each reading of the text is a position; of "a" all alternatives are left.
  std::string grammar = "root ::= \"b\"";
  for (int i = 0; i < 50; ++i) {
    grammar += " | \"a\" [a-z] [a-c] [" + std::string(1, static_cast<char>('a' + i % 26)) + "-z]{" +
               std::to_string(i + 2) + "}";
  }
  const Limits limits = {.positions_max = 40};
  Matcher matcher(MustCompile(GrammarText(grammar), ByteVocabulary(), limits));
  (void)MaskOf(matcher, *ByteVocabulary());
  EXPECT_EQ(matcher.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(matcher.Accept(kByteEnd));
}

}  // namespace
}  // namespace retroinfer::constraint
