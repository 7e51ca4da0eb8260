// Scoring over gRPC against both services: what is said of a token is what generating it says.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

namespace v1 = generation::v1;
using Ids = std::vector<int32_t>;

struct Scores {
  grpc::Status status;
  std::vector<v1::ScoredToken> prompt;
  std::map<int, std::vector<v1::ScoredToken>> continuations;
  v1::ScoreFinished finished;
};

class ScoreServicesTest : public testing::TestWithParam<v1::AttentionPolicy> {
 protected:
  static void SetUpTestSuite() {
    ServiceOptions options;
    options.worker_arguments = {"--max-model-len", "6000", "--dense-below", "2048"};
    processes_ = new ServiceProcesses(options);
    processes_->StartBoth();
  }
  static void TearDownTestSuite() {
    delete processes_;
    processes_ = nullptr;
  }

  static v1::ScoreRequest Request(const Ids& context, const std::vector<Ids>& continuations,
                                  v1::AttentionPolicy policy) {
    v1::ScoreRequest request;
    request.mutable_token_ids()->mutable_ids()->Assign(context.begin(), context.end());
    for (const Ids& ids : continuations) {
      request.add_continuations()->mutable_token_ids()->mutable_ids()->Assign(ids.begin(),
                                                                              ids.end());
    }
    request.mutable_attention()->set_policy(policy);
    return request;
  }
  static Scores Run(const v1::ScoreRequest& request) {
    grpc::ClientContext context;
    const auto reader = processes_->worker_stub().Score(&context, request);
    Scores scores;
    v1::ScoreResponse event;
    while (reader->Read(&event)) {
      if (event.has_finished()) scores.finished = event.finished();
      const v1::ScoredTokens& tokens = event.has_prompt() ? event.prompt() : event.continuation();
      auto& to = event.has_prompt() ? scores.prompt : scores.continuations[tokens.continuation()];
      to.insert(to.end(), tokens.tokens().begin(), tokens.tokens().end());
    }
    scores.status = reader->Finish();
    EXPECT_TRUE(scores.status.ok()) << scores.status.error_message();
    return scores;
  }
  static double Metric(const std::string& series) {
    const std::string text = processes_->WorkerMetrics();
    const size_t at = text.find(absl::StrCat("\nretroinfer_", series, " "));
    return at == std::string::npos ? -1 : std::stod(text.substr(text.find(' ', at + 1)));
  }
  static void ExpectSame(const std::vector<v1::ScoredToken>& got,
                         const std::vector<v1::ScoredToken>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].SerializeAsString(), want[i].SerializeAsString()) << i;
    }
  }

  static ServiceProcesses* processes_;
};
ServiceProcesses* ScoreServicesTest::processes_ = nullptr;

TEST_P(ScoreServicesTest, AreWhatGeneratingReports) {
  const Ids context = RandomTokens(3000, 1);
  v1::GenerateRequest generate = SampledRequest(context, 200, 7, GetParam());
  generate.mutable_sampling()->set_logprobs(2);
  grpc::ClientContext call;
  const auto reader = processes_->worker_stub().Generate(&call, generate);
  v1::GenerateResponse event;
  Ids drawn;
  std::vector<v1::PositionLogprobs> positions;
  while (reader->Read(&event)) {
    drawn.insert(drawn.end(), event.output().token_ids().begin(), event.output().token_ids().end());
    positions.insert(positions.end(), event.output().logprobs().begin(),
                     event.output().logprobs().end());
  }
  ASSERT_TRUE(reader->Finish().ok());
  ASSERT_EQ(drawn.size(), 200u);
  v1::ScoreRequest request = Request(context, {drawn}, GetParam());
  request.set_logprobs(2);
  const double before = Metric("scored_tokens_total");
  const double calls_before = Metric("requests_by_kind_total{kind=\"score\"}");
  const Scores scores = Run(request);
  ASSERT_EQ(scores.continuations.at(0).size(), 200u);
  int others = 0;
  for (size_t i = 0; i < drawn.size(); ++i) {
    const v1::ScoredToken& token = scores.continuations.at(0)[i];
    ASSERT_EQ(token.token_id(), drawn[i]);
    ASSERT_EQ(token.logprob(), positions[i].logprob()) << i;
    ASSERT_EQ(token.rank(), positions[i].rank()) << i;
    ASSERT_EQ(token.is_greedy(), token.alternatives(0).token_id() == drawn[i]) << i;
    ASSERT_EQ(token.alternatives(1).logprob(), positions[i].alternatives(1).logprob()) << i;
    others += token.is_greedy() ? 0 : 1;
  }
  EXPECT_GT(others, 0) << "all were greedy's";
  EXPECT_EQ(Metric("scored_tokens_total"), before + 200);
  EXPECT_EQ(Metric("requests_by_kind_total{kind=\"score\"}"), calls_before + 1);
}

// Under wave these need sequences of their own, which find the context in the cache.
TEST_P(ScoreServicesTest, LongContinuationsOfOneCallAreAsInCallsOfTheirOwn) {
  const Ids context = RandomTokens(3500, 2);
  const std::vector<Ids> continuations = {RandomTokens(750, 3), RandomTokens(20, 4),
                                          RandomTokens(800, 5)};
  v1::ScoreRequest request = Request(context, continuations, GetParam());
  request.set_prompt_logprobs(0);
  const Scores together = Run(request);
  ASSERT_EQ(together.continuations.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    const Scores alone = Run(Request(context, {continuations[static_cast<size_t>(i)]}, GetParam()));
    ExpectSame(together.continuations.at(i), alone.continuations.at(0));
    if (GetParam() == v1::ATTENTION_POLICY_WAVE) {
      EXPECT_GT(alone.finished.cached_tokens(), 1000);
    }
  }
  EXPECT_EQ(together.prompt.size(), 3500u);
  EXPECT_EQ(together.finished.scored_tokens(), 1570);
  const Scores prompt = Run([&] {
    v1::ScoreRequest only = Request(context, {}, GetParam());
    only.set_prompt_logprobs(0);
    return only;
  }());
  ExpectSame(prompt.prompt, together.prompt);
}

TEST_P(ScoreServicesTest, ACancelledCallHoldsNothing) {
  v1::ScoreRequest request = Request(RandomTokens(3000, 6), {RandomTokens(2500, 7)}, GetParam());
  request.set_prompt_logprobs(0);
  grpc::ClientContext context;
  const auto reader = processes_->worker_stub().Score(&context, request);
  v1::ScoreResponse event;
  ASSERT_TRUE(reader->Read(&event));
  context.TryCancel();
  while (reader->Read(&event)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (Metric("requests_running") + Metric("requests_waiting") != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, ScoreServicesTest,
                         testing::Values(v1::ATTENTION_POLICY_FULL, v1::ATTENTION_POLICY_WAVE));

}  // namespace
}  // namespace retroinfer::test_support
