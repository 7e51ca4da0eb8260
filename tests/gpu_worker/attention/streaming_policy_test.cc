#include "gpu_worker/attention/streaming_policy.h"

#include <gtest/gtest.h>

#include "tests/support/backends.h"

namespace retroinfer {
namespace {

using namespace test_support;

// Block by block: the window begins a block later whenever a block is full.
TEST(StreamingWindowBeginTest, HoldsTheWindowInWholeBlocks) {
  EXPECT_EQ(StreamingWindowBegin(0, 64), 4);
  EXPECT_EQ(StreamingWindowBegin(4 + 127, 64), 4);
  EXPECT_EQ(StreamingWindowBegin(4 + 128, 64), 4 + 64);
  EXPECT_EQ(StreamingWindowBegin(4 + 191, 64), 4 + 64);
  EXPECT_EQ(StreamingWindowBegin(1'000'004, 4096), 4 + (1'000'000 / 64 - 64) * 64);
  for (const int32_t window : {64, 65, 100, 128, 1000}) {
    for (int64_t position = 0; position < 3000; ++position) {
      const int64_t begin = StreamingWindowBegin(position, window);
      const int64_t tokens = position + 1 - begin;
      ASSERT_GE(begin, 4);
      ASSERT_EQ((begin - 4) % 64, 0);
      if (begin > 4) {
        ASSERT_GE(tokens, window) << position;
        ASSERT_LT(tokens, window + 2 * 64) << position;
      }
    }
  }
}

class StreamingPolicyTest : public testing::TestWithParam<BackendParam> {
 protected:
  SequenceKv Sequence(int64_t prompt_tokens) const {
    SequenceKv sequence;
    sequence.settings.streaming_window = 128;
    sequence.prompt_tokens = prompt_tokens;
    return sequence;
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  std::unique_ptr<KvMemory> memory_ =
      *KvMemory::Create(*backend_->device, {.geometry = {2, 1, 64, kBf16Kv},
                                            .dense_blocks = 10,
                                            .meta_blocks = 0,
                                            .max_sequences = 2,
                                            .max_model_len = 4096});
  std::unique_ptr<StreamingPolicy> policy_ = *StreamingPolicy::Create(
      *backend_->device, backend_->ops->attention(), *backend_->stream, *memory_, 4, 2);
};

TEST_P(StreamingPolicyTest, NeedsTheSameForAnyLength) {
  AttentionSettings settings;
  settings.streaming_window = 128;
  EXPECT_EQ(policy_->Need(settings, 1, 4).dense_blocks, 1);
  EXPECT_EQ(policy_->Need(settings, 1, 5).dense_blocks, 2);
  EXPECT_EQ(policy_->Need(settings, 100, 100'000).dense_blocks, 1 + 3);
  EXPECT_EQ(policy_->Need(settings, 1'000'000, 1'000'100).dense_blocks, 1 + 3);
  EXPECT_TRUE(policy_->Need(settings, 1'000'000, 1'000'100).segment_tokens.empty());
  EXPECT_EQ(policy_->Need(settings, 1'000'000, 1'000'100).lane_tokens, 4 + 4 * 64);
  EXPECT_EQ(policy_->Need(settings, 50, 100).lane_tokens, 50);
}

TEST_P(StreamingPolicyTest, PartsFollowEachOtherAndFitTheirLane) {
  for (const int64_t lane : {260, 300, 333, 1000, 100'000}) {
    SequenceKv sequence = Sequence(20'000);
    int64_t parts = 0;
    while (sequence.num_tokens < sequence.prompt_tokens) {
      const PromptPart part = policy_->NextPart(sequence, lane);
      ASSERT_EQ(part.begin, sequence.num_tokens);
      ASSERT_GT(part.end, part.begin);
      ASSERT_LE(part.end - part.begin, StreamingPolicy::kPartTokens);
      ASSERT_LE(part.num_context + part.end - part.begin, lane);
      ASSERT_EQ(part.num_context, part.begin == 0 ? 0 : 4 + part.begin - sequence.window_begin);
      // A token's row differs from its position by whole blocks of keys.
      ASSERT_EQ((part.begin - part.num_context) % 128, 0);
      sequence.num_tokens = part.end;
      sequence.window_begin = StreamingWindowBegin(part.end, 128);
      ++parts;
    }
    EXPECT_EQ(sequence.num_tokens, 20'000);
    EXPECT_GE(parts, 20'000 / StreamingPolicy::kPartTokens);
  }
}

TEST_P(StreamingPolicyTest, ATokenSeesWhatItsWindowHolds) {
  for (const int32_t tokens : {64, 65, 128, 1000}) {
    SequenceKv sequence = Sequence(20'000);
    sequence.settings.streaming_window = tokens;
    const AttentionWindow window = policy_->WindowOf(sequence);
    EXPECT_EQ(window.always_seen, kSinkTokens);
    for (int64_t position = 0; position < 3000; ++position) {
      ASSERT_EQ(window.FirstSeen(position), StreamingWindowBegin(position, tokens)) << position;
    }
  }
}

TEST_P(StreamingPolicyTest, AShortPromptIsOnePart) {
  const PromptPart part = policy_->NextPart(Sequence(3), 260);
  EXPECT_EQ(part.begin, 0);
  EXPECT_EQ(part.end, 3);
  EXPECT_EQ(part.num_context, 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, StreamingPolicyTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
