#include "gpu_worker/engine/output_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tests/support/byte_tokenizer.h"

namespace retroinfer {
namespace {

// Writes down what it is told; may hold the thread up at its first output.
class WritingSink final : public GenerationSink {
 public:
  void OnProgress(const PrefillProgress& progress) override {
    absl::StrAppend(&told, "p", progress.processed_tokens, " ");
  }
  void OnOutput(const OutputDelta& delta) override {
    if (holds && !held.HasBeenNotified()) {
      held.Notify();
      let_go.WaitForNotification();
    }
    absl::StrAppend(&told, delta.text, " ");
    num_tokens += delta.tokens.size();
  }
  void OnFinish(const GenerationResult& result) override {
    absl::StrAppend(&told, "f", result.completion_tokens);
  }

  std::string told;
  size_t num_tokens = 0;
  bool holds = false;
  absl::Notification held, let_go;
};

class OutputThreadTest : public testing::Test {
 protected:
  OutputThreadTest() { client_->sink = sink_; }

  void MakeText(const SamplingParams& sampling = {}, std::vector<int32_t> eos = {}) {
    client_->text.emplace(*tokenizer_, sampling, eos);
  }
  ClientEvent Token(int32_t token) const { return {client_, OutputToken{token, -1, {}}}; }
  ClientEvent End(int64_t tokens) const {
    auto result = std::make_unique<GenerationResult>();
    result->completion_tokens = tokens;
    return {client_, std::move(result)};
  }
  template <typename... Events>
  static void Post(OutputThread& thread, Events... events) {
    std::vector<ClientEvent> all;
    (all.push_back(std::move(events)), ...);
    thread.Post(all);
    EXPECT_TRUE(all.empty());
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = MakeByteTokenizer();
  const std::shared_ptr<WritingSink> sink_ = std::make_shared<WritingSink>();
  const std::shared_ptr<ClientOutput> client_ = std::make_shared<ClientOutput>();
};

TEST_F(OutputThreadTest, TokensBecomeTextInOrder) {
  MakeText();
  OutputThread thread;
  Post(thread, ClientEvent{client_, PrefillProgress{.processed_tokens = 7}}, Token('a'));
  Post(thread, Token('b'), Token('c'), End(3));
  thread.Drain();
  EXPECT_EQ(sink_->told, "p7 a b c f3");
  EXPECT_EQ(sink_->num_tokens, 3u);
  EXPECT_EQ(client_->sink, nullptr) << "nothing follows the end";
}

TEST_F(OutputThreadTest, AnEndTokenIsToldAndHasNoText) {
  MakeText({}, {'e'});
  OutputThread thread;
  Post(thread, Token('a'), Token('e'), End(2));
  thread.Drain();
  EXPECT_EQ(sink_->told, "a  f2");
  EXPECT_EQ(sink_->num_tokens, 2u);
}

TEST_F(OutputThreadTest, WhatIsReadyIsToldAsItIs) {
  OutputThread thread;
  Post(thread, ClientEvent{client_, OutputDelta{.text = "xyz", .tokens = {}}}, End(0));
  thread.Drain();
  EXPECT_EQ(sink_->told, "xyz f0");
}

TEST_F(OutputThreadTest, AFullQueueHoldsWhoPosts) {
  MakeText();
  sink_->holds = true;
  OutputThread thread(2);
  Post(thread, Token('a'));
  sink_->held.WaitForNotification();
  Post(thread, Token('b'), Token('c'));
  std::atomic<bool> is_posted = false;
  absl::Notification begun;
  std::thread poster([&] {
    begun.Notify();
    Post(thread, Token('d'));
    is_posted = true;
  });
  begun.WaitForNotification();
  EXPECT_FALSE(is_posted);
  sink_->let_go.Notify();
  poster.join();
  thread.Drain();
  EXPECT_EQ(sink_->told, "a b c d ");
}

TEST_F(OutputThreadTest, TheEndOfTheThreadTellsWhatIsLeft) {
  MakeText();
  {
    OutputThread thread;
    Post(thread, Token('a'), End(1));
  }
  EXPECT_EQ(sink_->told, "a f1");
}

}  // namespace
}  // namespace retroinfer
