#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/text/tokenizer/tokenizer_fixtures.h"
#include "text/tokenizer/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace retroinfer {
namespace {

TEST(TokenizerThreadsTest, ManyThreadsShareOneTokenizer) {
  const auto tokenizer =
      GoldenTokenizer("qwen", {.chat_template = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
                                                "{{ m.content|trim }}<|im_end|>\n{% endfor %}"});
  const ChatTemplate chat_template = ChatTemplate::Create(*tokenizer);
  ASSERT_EQ(chat_template.problem(), "");
  const std::string text =
      "Threads don't share 12345 caches: \u00E9 wordy \u65E5\u672C <|im_end|>\n";
  const std::vector<ChatMessage> messages = {{"user", text}};
  const auto expected = tokenizer->Encode(text);
  const auto expected_chat = chat_template.Encode(messages);
  ASSERT_TRUE(expected.ok() && expected_chat.ok());
  std::vector<std::thread> threads;
  std::atomic<int> num_different = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        const auto ids = tokenizer->Encode(text);
        num_different += !ids.ok() || *ids != *expected;
        const auto chat = chat_template.Encode(messages);
        num_different += !chat.ok() || *chat != *expected_chat;
        num_different += tokenizer->Decode(*expected, true) != text;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_different, 0);
}

}  // namespace
}  // namespace retroinfer
