#include "gpu_worker/server/score_events.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

namespace v1 = generation::v1;

v1::GenerateResponse Output(int continuation, const std::vector<int32_t>& tokens) {
  v1::GenerateResponse event;
  event.set_request_id("r");
  event.set_index(continuation);
  for (const int32_t token : tokens) {
    event.mutable_output()->add_token_ids(token);
    v1::PositionLogprobs* const position = event.mutable_output()->add_logprobs();
    position->set_logprob(-static_cast<float>(token));
    position->set_rank(token);
    position->set_token_bytes("t");
    position->add_alternatives()->set_token_id(9);
  }
  return event;
}

TEST(ScoreEventsTest, TokensSayWhereTheyAreInTheirContinuation) {
  ScoreEvents events;
  const v1::ScoreResponse first = events.Next(Output(1, {1, 5}));
  EXPECT_EQ(first.request_id(), "r");
  EXPECT_EQ(first.continuation().continuation(), 1);
  EXPECT_EQ(first.continuation().first_token(), 0);
  ASSERT_EQ(first.continuation().tokens_size(), 2);
  EXPECT_TRUE(first.continuation().tokens(0).is_greedy());
  const v1::ScoredToken& token = first.continuation().tokens(1);
  EXPECT_EQ(token.token_id(), 5);
  EXPECT_EQ(token.logprob(), -5.0f);
  EXPECT_EQ(token.rank(), 5);
  EXPECT_FALSE(token.is_greedy());
  EXPECT_EQ(token.token_bytes(), "t");
  EXPECT_EQ(token.alternatives(0).token_id(), 9);
  EXPECT_EQ(events.Next(Output(0, {2})).continuation().first_token(), 0);
  EXPECT_EQ(events.Next(Output(1, {3})).continuation().first_token(), 2);
  EXPECT_EQ(events.Next(Output(1, {3})).continuation().first_token(), 3);
}

TEST(ScoreEventsTest, OtherEventsKeepWhatTheySay) {
  ScoreEvents events;
  v1::GenerateResponse event;
  event.mutable_progress()->set_total_tokens(7);
  EXPECT_EQ(events.Next(event).progress().total_tokens(), 7);
  event.mutable_prompt()->add_tokens()->set_token_id(3);
  EXPECT_EQ(events.Next(event).prompt().tokens(0).token_id(), 3);
  v1::Finished* const finished = event.mutable_finished();
  finished->set_reason(v1::FINISH_REASON_DEADLINE);
  finished->set_prompt_tokens(10);
  finished->set_cached_tokens(8);
  finished->set_completion_tokens(4);
  finished->set_kv_read_ratio(0.5);
  const v1::ScoreFinished out = events.Next(event).finished();
  EXPECT_EQ(out.reason(), v1::FINISH_REASON_DEADLINE);
  EXPECT_EQ(out.prompt_tokens(), 10);
  EXPECT_EQ(out.cached_tokens(), 8);
  EXPECT_EQ(out.scored_tokens(), 4);
  EXPECT_EQ(out.kv_read_ratio(), 0.5);
}

}  // namespace
}  // namespace retroinfer
