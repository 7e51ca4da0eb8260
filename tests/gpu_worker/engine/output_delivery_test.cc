#include "gpu_worker/engine/output_delivery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/support/byte_tokenizer.h"
#include "tests/support/executor_harness.h"

namespace retroinfer {
namespace {

using testing::ElementsAre;

// What a client is told, in order.
class RecordingSink final : public GenerationSink {
 public:
  void OnProgress(const PrefillProgress& progress) override {
    processed.push_back(progress.processed_tokens);
  }
  void OnOutput(const OutputDelta& delta) override {
    text += delta.text;
    for (const OutputToken& token : delta.tokens) {
      tokens.push_back(token.token);
      continuations.push_back(delta.continuation);
    }
    num_deltas++;
  }
  void OnFinish(const GenerationResult& told) override { results.push_back(told); }

  std::vector<int64_t> processed;
  std::string text;
  std::vector<int32_t> tokens, continuations;
  int num_deltas = 0;
  std::vector<GenerationResult> results;
};

class OutputDeliveryTest : public testing::Test {
 protected:
  // A request that decodes, as the engine has it.
  std::unique_ptr<LiveRequest> Live(GenerationRequest request) {
    auto live = std::make_unique<LiveRequest>();
    live->request = std::move(request);
    live->request.request_id = "r";
    live->request.prompt = {1, 2, 3};
    Sequence& sequence = *sequences_.emplace_back(std::make_unique<Sequence>());
    live->sequence = &sequence;
    sequence.kv.sequence_id = sequences_.size();
    sequence.kv.prompt = live->request.prompt;
    sink_ = std::make_shared<RecordingSink>();
    EXPECT_TRUE(inbox_->Submit({live->request, sink_, absl::Now()}).ok());
    inbox_->Take(absl::ZeroDuration());
    PrepareOutput(*live, sink_, *tokenizer_, {});
    if (!live->request.continuations.empty()) live->forced.emplace(live->request.continuations);
    live->sequence->num_prompt_logprobs = live->request.num_prompt_logprobs;
    live->sequence->kv.prompt_tokens = 3;
    live->sequence->kv.total_tokens = 3 + live->request.sampling.max_tokens;
    live->phase = RequestPhase::kDecoding;
    live->first_token = absl::Now();
    return live;
  }
  static GenerationRequest Generating(int32_t max_tokens) {
    GenerationRequest request;
    request.sampling.max_tokens = max_tokens;
    request.sampling.num_logprobs = 0;
    return request;
  }
  // Waits until the client is told.
  void Tell() {
    delivery_.Flush();
    output_.Drain();
  }
  static DrawnToken Drawn(int32_t token) { return {.token = {token, -1, {}}, .allowed = {}}; }
  bool IsIdFree() {
    GenerationRequest request;
    request.request_id = "r";
    request.prompt = {1};
    return inbox_->Submit({request, sink_, absl::Now()}).ok();
  }

  test_support::ExecutorHarness harness_{test_support::AvailableBackends().front().create()};
  std::unique_ptr<Tokenizer> tokenizer_ = MakeByteTokenizer();
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>(Inbox::Limits{});
  EngineStatsBoard stats_{{.device = harness_.backend().device.get(),
                           .memory = &harness_.executor().memory(),
                           .cache = harness_.executor().parts().cache.get(),
                           .store = &harness_.store(),
                           .segments = harness_.executor().parts().segments.get()}};
  SegmentExchange exchange_{harness_.store(), inbox_, nullptr, harness_.geometry(),
                            stats_.counters()};
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<uint64_t> dropped_, rewound_;  // what the executor was told
  std::shared_ptr<RecordingSink> sink_;
  int num_published_ = 0;
  OutputThread output_;
  OutputDelivery delivery_{
      {.store = &harness_.store(),
       .exchange = &exchange_,
       .carry_out =
           [this](StepCommand command) {
             dropped_.insert(dropped_.end(), command.drop.begin(), command.drop.end());
             rewound_.insert(rewound_.end(), command.rewind.begin(), command.rewind.end());
           },
       .inbox = inbox_.get(),
       .output = &output_,
       .stats = &stats_,
       .publish = [this] { ++num_published_; }}};
};

TEST_F(OutputDeliveryTest, DrawnTokensAreToldUntilTheLast) {
  const auto live = Live(Generating(3));
  for (const int32_t token : {'a', 'b'}) delivery_.Emit(*live, Drawn(token));
  Tell();
  EXPECT_EQ(sink_->text, "ab");
  EXPECT_EQ(live->next_token, 'b');
  EXPECT_TRUE(sink_->results.empty());
  delivery_.Emit(*live, Drawn('c'));
  Tell();
  EXPECT_EQ(sink_->text, "abc");
  ASSERT_EQ(sink_->results.size(), 1u);
  EXPECT_EQ(sink_->results[0].reason, FinishReason::kLength);
  EXPECT_EQ(sink_->results[0].completion_tokens, 3);
  EXPECT_EQ(live->phase, RequestPhase::kEnded);
  EXPECT_THAT(dropped_, ElementsAre(1));
  EXPECT_EQ(num_published_, 1);
  EXPECT_TRUE(IsIdFree());
  EXPECT_EQ(stats_.counters().generation_tokens, 3u);
}

TEST_F(OutputDeliveryTest, AStopEndsARequestAndOnlyOnce) {
  GenerationRequest request = Generating(30);
  request.sampling.stop = {"bc"};
  const auto live = Live(std::move(request));
  for (const int32_t token : {'a', 'b', 'c'}) delivery_.Emit(*live, Drawn(token));
  Tell();
  ASSERT_EQ(sink_->results.size(), 1u);
  EXPECT_EQ(sink_->results[0].reason, FinishReason::kStop);
  EXPECT_EQ(sink_->results[0].matched_stop, "bc");
  EXPECT_EQ(sink_->text, "a");
  delivery_.End(*live, FinishReason::kCancelled);
  Tell();
  EXPECT_EQ(sink_->results.size(), 1u);
}

TEST_F(OutputDeliveryTest, AConstraintEndsARequest) {
  const auto met = Live(Generating(30));
  DrawnToken last = Drawn('a');
  last.must_end = true;
  delivery_.Emit(*met, last);
  Tell();
  EXPECT_EQ(sink_->text, "a");
  ASSERT_EQ(sink_->results.size(), 1u);
  EXPECT_EQ(sink_->results[0].reason, FinishReason::kStop);
  const auto broken = Live(Generating(30));
  DrawnToken wrong = Drawn('b');
  wrong.allowed = absl::InternalError("no such token");
  delivery_.Emit(*broken, wrong);
  Tell();
  EXPECT_EQ(sink_->text, "");
  ASSERT_EQ(sink_->results.size(), 1u);
  EXPECT_EQ(sink_->results[0].reason, FinishReason::kError);
  EXPECT_THAT(dropped_, ElementsAre(1, 2));
}

TEST_F(OutputDeliveryTest, NoTokenIsToldThatMayComeFromMemoryOfOthers) {
  const auto live = Live(Generating(30));
  delivery_.Emit(*live, Drawn('a'));
  Tell();
  harness_.store().TakeMemory();
  delivery_.Emit(*live, Drawn('b'));
  Tell();
  EXPECT_EQ(sink_->text, "a");
  ASSERT_EQ(sink_->results.size(), 1u);
  EXPECT_EQ(sink_->results[0].reason, FinishReason::kError);
  EXPECT_EQ(sink_->results[0].status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(OutputDeliveryTest, ContinuationsAreToldOneAfterTheOther) {
  GenerationRequest request = Generating(2);
  request.continuations = {{5, 6}, {7}, {8, 9}};
  const auto live = Live(std::move(request));
  live->forced->SetFirsts({{5, -1, {}}, {7, -1, {}}, {8, -1, {}}});
  live->phase = RequestPhase::kSettling;
  delivery_.EmitFirst(*live);
  Tell();
  EXPECT_THAT(sink_->tokens, ElementsAre(5));
  live->phase = RequestPhase::kDecoding;
  delivery_.Emit(*live, Drawn(6));
  Tell();
  // The second one has no step of its own, and the third begins where the prompt ends.
  EXPECT_THAT(sink_->tokens, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(sink_->continuations, ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(rewound_, ElementsAre(1));
  delivery_.Emit(*live, Drawn(9));
  Tell();
  EXPECT_THAT(sink_->tokens, ElementsAre(5, 6, 7, 8, 9));
  ASSERT_EQ(sink_->results.size(), 1u);
  EXPECT_EQ(sink_->results[0].completion_tokens, 5);
  EXPECT_EQ(stats_.counters().scored_tokens, 5u);
}

TEST_F(OutputDeliveryTest, WhatFollowsAPromptWaitsForItsMeasuredRows) {
  GenerationRequest request = Generating(5);
  request.num_prompt_logprobs = 0;
  const auto live = Live(std::move(request));
  live->first = Drawn('x');
  const std::vector<OutputToken> rows = {{2, -1, {}}};
  live->sequence->prompt_rows_measured = 1;
  delivery_.EmitPrompt(*live, rows);
  Tell();
  EXPECT_THAT(sink_->tokens, ElementsAre(2));
  live->sequence->prompt_rows_measured = 2;
  delivery_.EmitPrompt(*live, rows);
  Tell();
  EXPECT_THAT(sink_->tokens, ElementsAre(2, 2, 'x'));
  EXPECT_THAT(sink_->continuations, ElementsAre(OutputDelta::kOfPrompt, OutputDelta::kOfPrompt, 0));
  EXPECT_EQ(stats_.counters().scored_prompt_tokens, 2u);
}

TEST_F(OutputDeliveryTest, ProgressIsToldToWhoWantsItWhenItChanges) {
  const auto quiet = Live(Generating(5));
  delivery_.ReportProgress(*quiet, 100);
  Tell();
  EXPECT_TRUE(sink_->processed.empty());
  inbox_->Forget("r");
  GenerationRequest request = Generating(5);
  request.return_progress = true;
  const auto live = Live(std::move(request));
  for (const int64_t done : {0, 0, 64, 64, 128}) delivery_.ReportProgress(*live, done);
  Tell();
  EXPECT_THAT(sink_->processed, ElementsAre(0, 64, 128));
}

}  // namespace
}  // namespace retroinfer
