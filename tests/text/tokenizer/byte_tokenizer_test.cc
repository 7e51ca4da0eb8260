#include "text/tokenizer/byte_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/tokenizer/chat_template.h"

namespace retroinfer {
namespace {

using ::testing::ElementsAre;

TEST(ByteTokenizerTest, EveryByteIsAToken) {
  const auto tokenizer = CreateByteTokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), kByteTokenizerTokens);
  const auto ids = tokenizer->Encode("h\xc3\xa9 <|endoftext|>");
  ASSERT_TRUE(ids.ok()) << ids.status();
  ASSERT_EQ(ids->size(), 17u);
  EXPECT_THAT(std::vector<int32_t>(ids->begin(), ids->begin() + 4),
              ElementsAre('h', 0xc3, 0xa9, ' '));
  EXPECT_EQ(tokenizer->Decode(*ids, false), "h\xc3\xa9 <|endoftext|>");
}

TEST(ByteTokenizerTest, LargerIdsHaveNoText) {
  const auto tokenizer = CreateByteTokenizer();
  const std::vector<int32_t> ids = {'a', 256, 100'000, 'b'};
  EXPECT_EQ(tokenizer->Decode(ids, false), "ab");
}

TEST(ByteTokenizerTest, HasNoChatTemplate) {
  const auto tokenizer = CreateByteTokenizer();
  const std::vector<ChatMessage> messages = {{"user", "Hi"}};
  EXPECT_EQ(ChatTemplate::Create(*tokenizer).Encode(messages).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace retroinfer
