#include "gpu_worker/engine/live_request.h"

#include <gtest/gtest.h>

#include "tests/support/byte_tokenizer.h"

namespace retroinfer {
namespace {

TEST(LiveRequestTest, AResultTellsOnlyWhatHasHappened) {
  const auto tokenizer = MakeByteTokenizer();
  Sequence sequence;
  LiveRequest live;
  live.sequence = &sequence;
  live.request.sampling.seed = 9;
  PrepareOutput(live, nullptr, *tokenizer, {});
  const std::vector<int32_t> prompt(3000, 1);
  sequence.kv.prompt = prompt;
  live.submitted = absl::Now() - absl::Seconds(10);
  const GenerationResult waiting = ResultOf(live, FinishReason::kCancelled, absl::OkStatus());
  EXPECT_EQ(waiting.reason, FinishReason::kCancelled);
  EXPECT_GE(waiting.queue_time, absl::Seconds(10));
  EXPECT_EQ(waiting.prefill_time, absl::ZeroDuration());
  EXPECT_EQ(waiting.time_to_first_token, absl::ZeroDuration());
  EXPECT_EQ(waiting.seed, 9u);

  sequence.kv.cached_end = kSinkTokens + 2048;
  live.prefill_begun = live.submitted + absl::Seconds(1);
  live.first_token = live.submitted + absl::Seconds(3);
  live.last_token = live.submitted + absl::Seconds(7);
  live.num_generated = 5;
  live.kv_bytes_read = 1;
  live.kv_bytes_full = 4;
  live.unseen.Add(std::nullopt);
  EXPECT_FALSE(ResultOf(live, FinishReason::kLength, absl::OkStatus()).unseen.has_value());
  live.unseen.Add(0.1);
  live.unseen.Add(0.3);
  const GenerationResult done = ResultOf(live, FinishReason::kLength, absl::OkStatus());
  EXPECT_EQ(done.prompt_tokens, 3000);
  EXPECT_EQ(done.cached_tokens, 2048);
  EXPECT_EQ(done.completion_tokens, 5);
  EXPECT_EQ(done.queue_time, absl::Seconds(1));
  EXPECT_EQ(done.prefill_time, absl::Seconds(2));
  EXPECT_EQ(done.time_to_first_token, absl::Seconds(3));
  EXPECT_EQ(done.decode_time, absl::Seconds(4));
  EXPECT_DOUBLE_EQ(done.kv_read_ratio, 0.25);
  ASSERT_TRUE(done.unseen.has_value());
  EXPECT_DOUBLE_EQ(done.unseen->mean, 0.2);
  EXPECT_DOUBLE_EQ(done.unseen->largest, 0.3);
  live.kv_bytes_read = 5;  // all of the KV, and the index
  EXPECT_DOUBLE_EQ(ResultOf(live, FinishReason::kLength, absl::OkStatus()).kv_read_ratio, 1);
}

TEST(LiveRequestTest, CountsWhatWaitsAndWhatRuns) {
  Sequence sequence;
  LiveRequests live;
  const absl::Time begin = absl::Now();
  const auto add = [&](RequestPhase phase, int seconds, bool began) {
    auto request = std::make_unique<LiveRequest>();
    request->sequence = &sequence;
    request->phase = phase;
    request->submitted = begin + absl::Seconds(seconds);
    if (began) request->prefill_begun = begin + absl::Seconds(seconds + 1);
    live.push_back(std::move(request));
  };
  EXPECT_EQ(CountRequests(live).oldest_waiting, absl::InfiniteFuture());
  add(RequestPhase::kEnded, 0, false);
  add(RequestPhase::kDecoding, 1, true);
  add(RequestPhase::kSettling, 2, true);
  add(RequestPhase::kReading, 3, true);
  EXPECT_EQ(CountRequests(live).oldest_waiting, absl::InfiniteFuture());
  add(RequestPhase::kReady, 5, false);
  add(RequestPhase::kReserving, 4, false);
  add(RequestPhase::kWaiting, 6, false);
  const RequestCounts counts = CountRequests(live);
  EXPECT_EQ(counts.running, 4);
  EXPECT_EQ(counts.waiting, 2);
  EXPECT_EQ(counts.waiting_for_prefill, 1);
  EXPECT_EQ(counts.oldest_waiting, begin + absl::Seconds(4));
}

}  // namespace
}  // namespace retroinfer
