#include "client/generate/scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/worker_harness.h"

namespace retroinfer::client {
namespace {

using ::testing::ElementsAre;

TEST(ScorerTest, ScoresTheTokensOfAWindow) {
  WorkerHarness worker;
  InterruptWatcher interrupts;
  const auto connection = Connection::Open({.address = worker.address()});
  ASSERT_TRUE(connection.ok());
  Scorer scorer(**connection, "affinity", false, &interrupts);
  generation::v1::GetModelInfoResponse info;
  ASSERT_TRUE(scorer.GetModelInfo(&info).ok());
  EXPECT_EQ(info.model_name(), "fake-model");
  std::vector<int32_t> tokens;
  ASSERT_TRUE(scorer.Tokenize("abcdefgh", &tokens).ok());
  ASSERT_EQ(tokens.size(), 8u);

  generation::v1::ScoreRequest request;
  request.set_logprobs(1);
  const ScoreWindow window{.begin = 1, .first = 4, .end = 6};
  SetWindow(tokens, window, &request);
  SetWindow(tokens, window, &request);  // replaces the first
  std::vector<TokenScore> scores(1);
  ASSERT_TRUE(scorer.Score(request, window, &scores).ok());
  EXPECT_THAT(worker.engine().last_request().prompt, ElementsAre('b', 'c', 'd'));
  ASSERT_EQ(scores.size(), 3u) << "appended";
  EXPECT_EQ(scores[1].context, 3);
  EXPECT_EQ(scores[2].context, 4);
  EXPECT_EQ(scores[1].logprob, -float{'e'});
  EXPECT_EQ(scores[1].greedy, 'e');
}

TEST(ScorerTest, FewerTokensThanAskedForAreAnError) {
  WorkerHarness worker;
  InterruptWatcher interrupts;
  const auto connection = Connection::Open({.address = worker.address()});
  ASSERT_TRUE(connection.ok());
  Scorer scorer(**connection, "", false, &interrupts);
  generation::v1::ScoreRequest request;
  SetWindow({1, 2, 3, 4}, {.begin = 0, .first = 2, .end = 3}, &request);
  std::vector<TokenScore> scores;
  const grpc::Status status = scorer.Score(request, {.begin = 0, .first = 2, .end = 4}, &scores);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(), "the server has ended the call after 1 of 2 tokens");
}

}  // namespace
}  // namespace retroinfer::client
