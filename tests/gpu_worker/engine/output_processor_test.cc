#include "gpu_worker/engine/output_processor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/byte_tokenizer.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;

class OutputProcessorTest : public ::testing::Test {
 protected:
  OutputProcessorTest() { sampling_.max_tokens = 100; }

  void Start() {
    processor_ = std::make_unique<OutputProcessor>(*tokenizer_, sampling_, eos_);
    text_.clear();
    tokens_.clear();
  }
  bool Append(int32_t token) {
    const bool end = processor_->Append({token, NAN, {}});
    Take();
    return end;
  }
  // Appends one token for each byte until one ends the request; returns the bytes taken.
  size_t AppendBytes(const std::string& bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (Append(static_cast<uint8_t>(bytes[i]))) return i + 1;
    }
    return bytes.size();
  }
  void Flush() {
    processor_->Flush();
    Take();
  }
  void Take() {
    const OutputDelta delta = processor_->TakeDelta();
    text_ += delta.text;
    for (const OutputToken& token : delta.tokens) tokens_.push_back(token.token);
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = MakeByteTokenizer();
  const std::vector<int32_t> eos_ = {kByteTokenizerEndOfText, kByteTokenizerImEnd};
  SamplingParams sampling_;
  std::unique_ptr<OutputProcessor> processor_;
  std::string text_;
  std::vector<int32_t> tokens_;
};

TEST_F(OutputProcessorTest, EmitsWholeCharactersOnly) {
  Start();
  EXPECT_FALSE(Append(0xC3));
  EXPECT_EQ(text_, "");
  EXPECT_FALSE(Append(0xA9));
  EXPECT_EQ(text_, "é");
  EXPECT_THAT(tokens_, ElementsAre(0xC3, 0xA9));
}

TEST_F(OutputProcessorTest, AnUnfinishedCharacterIsReplacedAtTheEnd) {
  Start();
  AppendBytes("a\xE2\x82");
  Flush();
  EXPECT_EQ(text_, "a\xEF\xBF\xBD");
}

TEST_F(OutputProcessorTest, EveryEosTokenEnds) {
  for (const int32_t eos : eos_) {
    Start();
    AppendBytes("hi");
    EXPECT_TRUE(Append(eos));
    Flush();
    EXPECT_EQ(text_, "hi");
    EXPECT_EQ(processor_->matched_token(), eos);
    EXPECT_THAT(tokens_, ElementsAre('h', 'i', eos));
  }
}

TEST_F(OutputProcessorTest, IgnoreEosGoesOn) {
  sampling_.ignore_eos = true;
  Start();
  EXPECT_FALSE(Append(kByteTokenizerEndOfText));
  AppendBytes("x");
  EXPECT_EQ(text_, "x");
  EXPECT_EQ(processor_->matched_token(), -1);
}

TEST_F(OutputProcessorTest, SpecialTokensAreTextOnlyWhenAskedFor) {
  Start();
  Append(kByteTokenizerImStart);
  EXPECT_EQ(text_, "");
  sampling_.skip_special_tokens = false;
  Start();
  Append(kByteTokenizerImStart);
  EXPECT_EQ(text_, "<|im_start|>");
}

TEST_F(OutputProcessorTest, StopTokensEndWithoutTheirText) {
  sampling_.stop_token_ids = {'!'};
  Start();
  AppendBytes("hey");
  EXPECT_TRUE(Append('!'));
  Flush();
  EXPECT_EQ(text_, "hey");
  EXPECT_EQ(processor_->matched_token(), '!');

  sampling_.include_stop_str_in_output = true;
  Start();
  EXPECT_EQ(AppendBytes("hey!more"), 4u);
  Flush();
  EXPECT_EQ(text_, "hey!");
}

TEST_F(OutputProcessorTest, StopStringsMatchAcrossTokens) {
  sampling_.stop = {"\n\n", "User:"};
  Start();
  EXPECT_EQ(AppendBytes("one\ntwo Use User: three"), 17u);
  Flush();
  EXPECT_EQ(text_, "one\ntwo Use ");
  EXPECT_EQ(processor_->matched_stop(), "User:");
  EXPECT_EQ(processor_->matched_token(), -1);
  EXPECT_EQ(tokens_.size(), 17u);
}

TEST_F(OutputProcessorTest, IncludedStopStringsAreTextToo) {
  sampling_.stop = {"END"};
  sampling_.include_stop_str_in_output = true;
  Start();
  EXPECT_EQ(AppendBytes("x ENEND"), 7u);
  Flush();
  EXPECT_EQ(text_, "x ENEND");
}

TEST_F(OutputProcessorTest, TextHeldBackComesWhenTheRequestEndsOtherwise) {
  sampling_.stop = {"User:"};
  Start();
  AppendBytes("ask the Use");
  EXPECT_EQ(text_, "ask the ");
  EXPECT_TRUE(Append(kByteTokenizerImEnd));
  Flush();
  EXPECT_EQ(text_, "ask the Use");
}

TEST_F(OutputProcessorTest, StopStringsOfManyByteCharactersMatch) {
  sampling_.stop = {"。終"};
  Start();
  EXPECT_EQ(AppendBytes("東京。終わり"), std::string("東京。終").size());
  Flush();
  EXPECT_EQ(text_, "東京");
}

TEST_F(OutputProcessorTest, NothingEndsBeforeMinTokens) {
  sampling_.min_tokens = 4;
  sampling_.stop = {"ab"};
  sampling_.stop_token_ids = {'!'};
  Start();
  EXPECT_FALSE(Append('a'));
  EXPECT_FALSE(Append('b'));  // complete before the fourth token
  EXPECT_FALSE(Append('!'));
  EXPECT_FALSE(Append(kByteTokenizerEndOfText));
  EXPECT_EQ(text_, "ab!");
  EXPECT_TRUE(Append('!'));
  EXPECT_EQ(processor_->matched_token(), '!');
}

TEST_F(OutputProcessorTest, AStopStringMayEndAtTheMinTokensthToken) {
  sampling_.min_tokens = 2;
  sampling_.stop = {"ab"};
  Start();
  EXPECT_FALSE(Append('a'));
  EXPECT_TRUE(Append('b'));
  EXPECT_EQ(text_, "");
}

TEST_F(OutputProcessorTest, LogprobsTravelWithTheirTokens) {
  Start();
  processor_->Append({'a', -0.5f, {{'a', -0.5f}, {'b', -2.0f}}});
  const OutputDelta delta = processor_->TakeDelta();
  ASSERT_EQ(delta.tokens.size(), 1u);
  EXPECT_FLOAT_EQ(delta.tokens[0].logprob, -0.5f);
  ASSERT_EQ(delta.tokens[0].alternatives.size(), 2u);
  EXPECT_TRUE(processor_->TakeDelta().tokens.empty());
}

}  // namespace
}  // namespace retroinfer
