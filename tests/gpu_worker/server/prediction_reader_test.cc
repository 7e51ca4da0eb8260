#include "gpu_worker/server/prediction_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/byte_tokenizer.h"

namespace retroinfer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class PredictionReaderTest : public testing::Test {
 protected:
  void ExpectRefused(const std::string& text, const char* why) {
    const auto tokens = ReadPrediction(text, *tokenizer_, 4);
    EXPECT_EQ(tokens.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(tokens.status().message()), HasSubstr(why));
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = MakeByteTokenizer();
};

TEST_F(PredictionReaderTest, AreTheTokensOfTheTextAndNoMore) {
  EXPECT_EQ(ReadPrediction("abcd", *tokenizer_, 4).value(),
            tokenizer_->Encode("abcd", {.add_special = false}).value());
  EXPECT_THAT(ReadPrediction("", *tokenizer_, 4).value(), IsEmpty());
}

TEST_F(PredictionReaderTest, WhatIsLongerThanTheContextIsRefused) {
  ExpectRefused("abcde", "5");
  ExpectRefused(std::string(1 << 20, 'a'), "1048576 bytes");
}

TEST_F(PredictionReaderTest, WhatIsNoTextIsRefused) { ExpectRefused("\xff\xfe", "prediction: "); }

}  // namespace
}  // namespace retroinfer
