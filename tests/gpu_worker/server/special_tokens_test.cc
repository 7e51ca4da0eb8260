#include "gpu_worker/server/special_tokens.h"

#include <gtest/gtest.h>

#include "common/status/error_reason.h"
#include "tests/text/tokenizer/tokenizer_fixtures.h"

namespace retroinfer {
namespace {

class SpecialTokensTest : public ::testing::Test {
 protected:
  SpecialTokensTest() {
    TokenizerSpec spec;
    spec.model = TinyModel({});
    spec.added_tokens = {{.id = 256, .content = "[TOOL_CALLS]", .special = true},
                         {.id = 257, .content = "<tool_call>", .special = false}};
    tokenizer_ = *Tokenizer::Create(spec, {});
  }

  generation::v1::SamplingOptions options_;
  SamplingParams sampling_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(SpecialTokensTest, NamesAreThoseOfSpecialTokens) {
  for (const char* name : {"[TOOL_CALLS]", "<tool_call>", "a", "[ARGS]", ""}) {
    options_.add_shown_special_tokens(name);
  }
  ASSERT_TRUE(ReadSpecialTokens(*tokenizer_, options_, &sampling_).ok());
  EXPECT_EQ(sampling_.shown_special_ids, std::vector<int32_t>{256});
  EXPECT_TRUE(sampling_.skip_special_tokens);
  options_.set_skip_special_tokens(false);
  ASSERT_TRUE(ReadSpecialTokens(*tokenizer_, options_, &sampling_).ok());
  EXPECT_FALSE(sampling_.skip_special_tokens);
}

TEST_F(SpecialTokensTest, TheirNumberAndLengthAreBounded) {
  options_.add_shown_special_tokens(std::string(257, 'a'));
  absl::Status status = ReadSpecialTokens(*tokenizer_, options_, &sampling_);
  EXPECT_EQ(common::ReasonOf(status).reason, "INVALID_SAMPLING") << status;
  options_.Clear();
  for (int i = 0; i < 17; ++i) options_.add_shown_special_tokens(std::string(1, 'a'));
  status = ReadSpecialTokens(*tokenizer_, options_, &sampling_);
  EXPECT_EQ(common::ReasonOf(status).reason, "INVALID_SAMPLING") << status;
}

}  // namespace
}  // namespace retroinfer
