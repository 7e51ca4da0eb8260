// What is measured is what generation computes, bit by bit, and what Hugging Face computes, to
// rounding.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu_worker/model/golden_model.h"
#include "tests/support/in_process_worker.h"
#include "tests/support/small_worker.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::GoldenModel;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;
using test_support::SmallWorker;

using Tokens = std::vector<int32_t>;
using Scores = std::map<int32_t, std::vector<OutputToken>>;

InProcessWorkerOptions SmallModel(int32_t max_batch) {
  InProcessWorkerOptions options = SmallWorker();
  options.max_batch = max_batch;
  return options;
}

GenerationRequest Scoring(InProcessWorker& worker, Tokens prompt, std::vector<Tokens> continuations,
                          PolicyKind policy) {
  size_t longest = 0;
  for (const Tokens& tokens : continuations) longest = std::max(longest, tokens.size());
  GenerationRequest request =
      worker.Greedy(std::move(prompt), static_cast<int32_t>(longest), policy);
  request.continuations = std::move(continuations);
  request.sampling.num_logprobs = 2;
  return request;
}

Scores Measured(InProcessWorker& worker, const GenerationRequest& request) {
  const auto sink = worker.Submit(request);
  EXPECT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
  EXPECT_EQ(sink->Wait().reason, FinishReason::kLength);
  return sink->measured();
}

// The same bits: the same computation.
void ExpectSame(const std::vector<OutputToken>& got, const std::vector<OutputToken>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].token, want[i].token) << i;
    ASSERT_EQ(got[i].logprob, want[i].logprob) << i;
    ASSERT_EQ(got[i].rank, want[i].rank) << i;
    ASSERT_EQ(got[i].alternatives.size(), want[i].alternatives.size()) << i;
    for (size_t k = 0; k < got[i].alternatives.size(); ++k) {
      ASSERT_EQ(got[i].alternatives[k].token, want[i].alternatives[k].token) << i;
      ASSERT_EQ(got[i].alternatives[k].logprob, want[i].alternatives[k].logprob) << i;
    }
  }
}

class LocalEngineScoresTest : public testing::TestWithParam<PolicyKind> {
 protected:
  LocalEngineScoresTest() {
    InProcessWorkerOptions options = SmallModel(8);
    options.on_plan = [this](const SchedulerInput&, const StepPlan& plan) {
      for (const uint64_t id : plan.decode) {
        const auto rows = std::count(plan.decode.begin(), plan.decode.end(), id);
        most_rows_ = std::max<int64_t>(most_rows_, rows);
      }
    };
    worker_ = std::make_unique<InProcessWorker>(options);
  }
  Tokens Random(int64_t length, uint64_t seed) {
    return RandomPrompt(length, worker_->config().vocab_size, seed);
  }

  std::atomic<int64_t> most_rows_ = 0;
  std::unique_ptr<InProcessWorker> worker_;
};

// With wave the tokens go past two segments that go live.
TEST_P(LocalEngineScoresTest, WhatGreedyGeneratesIsMeasuredAsItWasGenerated) {
  GenerationRequest generate = worker_->Greedy(Random(3000, 1), 2300, GetParam());
  generate.sampling.num_logprobs = 2;
  const auto sink = worker_->Submit(generate);
  ASSERT_TRUE(sink->Wait().status.ok());
  const std::vector<OutputToken> drawn = sink->measured()[0];
  EXPECT_EQ(most_rows_, 1);
  const Scores scores =
      Measured(*worker_, Scoring(*worker_, generate.prompt, {sink->tokens()}, GetParam()));
  ASSERT_EQ(scores.size(), 1u);
  ExpectSame(scores.at(0), drawn);
  for (const OutputToken& token : scores.at(0)) EXPECT_EQ(token.rank, 1);
  EXPECT_GT(most_rows_, 1) << "no tokens have shared a step";
}

// Tokens that greedy would not take, forced through another door: a bias on one of them.
TEST_P(LocalEngineScoresTest, OtherTokensAreMeasuredAsABiasForcesThem) {
  GenerationRequest generate = worker_->Greedy(Random(2500, 2), 200, GetParam());
  generate.sampling.num_logprobs = 2;
  generate.sampling.logit_bias = {{7, 100.0f}};
  const auto sink = worker_->Submit(generate);
  ASSERT_TRUE(sink->Wait().status.ok());
  ASSERT_EQ(sink->tokens(), Tokens(200, 7));
  const Scores scores =
      Measured(*worker_, Scoring(*worker_, generate.prompt, {Tokens(200, 7)}, GetParam()));
  ExpectSame(scores.at(0), sink->measured()[0]);
  EXPECT_GT(scores.at(0).back().rank, 1);
}

TEST_P(LocalEngineScoresTest, TokensThatShareAStepAreMeasuredAsOneByOne) {
  InProcessWorker one_by_one(SmallModel(1));
  const Tokens prompt = Random(2900, 3), continuation = Random(1400, 4);
  const Scores want = Measured(one_by_one, Scoring(one_by_one, prompt, {continuation}, GetParam()));
  const Scores got = Measured(*worker_, Scoring(*worker_, prompt, {continuation}, GetParam()));
  ExpectSame(got.at(0), want.at(0));
  EXPECT_GT(most_rows_, 1);
}

TEST_P(LocalEngineScoresTest, ContinuationsThatShareAPrefillAreMeasuredAsAlone) {
  const Tokens prompt = Random(3000, 5);
  std::vector<Tokens> continuations;
  for (const int64_t length : {40, 1, 3, 25, 1, 40}) {
    continuations.push_back(Random(length, 60 + static_cast<uint64_t>(length)));
  }
  ASSERT_TRUE(worker_->engine().CanMeasureTogether({.policy = GetParam()}, 3000, 40));
  const uint64_t before = worker_->engine().stats().prompt_tokens;
  const Scores together = Measured(*worker_, Scoring(*worker_, prompt, continuations, GetParam()));
  EXPECT_EQ(worker_->engine().stats().prompt_tokens - before, 3000u);
  ASSERT_EQ(together.size(), continuations.size());
  for (size_t i = 0; i < continuations.size(); ++i) {
    const Scores alone =
        Measured(*worker_, Scoring(*worker_, prompt, {continuations[i]}, GetParam()));
    ExpectSame(together.at(static_cast<int32_t>(i)), alone.at(0));
  }
  EXPECT_TRUE(worker_->WaitUntilIdle());
}

TEST_P(LocalEngineScoresTest, NeitherGenerationNorScoringIsChangedByTheOther) {
  GenerationRequest generate = worker_->Greedy(Random(2400, 6), 300, GetParam());
  generate.sampling.num_logprobs = 2;
  GenerationRequest score = Scoring(*worker_, Random(2600, 7), {Random(500, 8)}, GetParam());
  score.num_prompt_logprobs = 1;
  const auto alone = worker_->Submit(generate);
  ASSERT_TRUE(alone->Wait().status.ok());
  const Scores scores = Measured(*worker_, score);
  std::vector<std::shared_ptr<CollectingSink>> generating, scoring;
  for (int i = 0; i < 3; ++i) {
    generate.request_id = absl::StrCat("generate ", i);
    score.request_id = absl::StrCat("score ", i);
    generating.push_back(worker_->Submit(generate));
    scoring.push_back(worker_->Submit(score));
  }
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(generating[i]->Wait().status.ok());
    ASSERT_TRUE(scoring[i]->Wait().status.ok());
    ExpectSame(generating[i]->measured()[0], alone->measured()[0]);
    const Scores got = scoring[i]->measured();
    ExpectSame(got.at(0), scores.at(0));
    ExpectSame(got.at(OutputDelta::kOfPrompt), scores.at(OutputDelta::kOfPrompt));
  }
  EXPECT_TRUE(worker_->WaitUntilIdle());
}

TEST_P(LocalEngineScoresTest, AnAbortEndsItAndFreesEverything) {
  GenerationRequest request = Scoring(*worker_, Random(3000, 9), {Random(4000, 10)}, GetParam());
  request.num_prompt_logprobs = 0;
  for (const size_t wanted : {size_t{1}, size_t{3000}}) {  // within the prompt, and behind it
    const auto sink = worker_->Submit(request);
    while (sink->tokens().size() < wanted) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_TRUE(worker_->engine().Abort(request.request_id));
    EXPECT_EQ(sink->Wait().reason, FinishReason::kCancelled);
    EXPECT_LT(sink->tokens().size(), 6999u);
    EXPECT_TRUE(worker_->WaitUntilIdle());
  }
}

// Of a prompt that is measured no row comes from the cache, and all rows are left there.
TEST_P(LocalEngineScoresTest, AMeasuredPromptIsFoundByOthers) {
  for (const int64_t length : {1000, 5000}) {
    SCOPED_TRACE(length);
    const Tokens prompt = Random(length, static_cast<uint64_t>(length));
    GenerationRequest score = Scoring(*worker_, prompt, {Random(70, 9)}, GetParam());
    const Scores alone = Measured(*worker_, score);  // a cold run, for its own salt
    score.num_prompt_logprobs = 2;
    score.cache_salt = "warm";
    Scores measured;
    for (int i = 0; i < 2;
         ++i) {  // the second one finds what the first one has left, and ignores it
      score.request_id = absl::StrCat("score-", length, "-", i);
      const auto sink = worker_->Submit(score);
      ASSERT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
      EXPECT_EQ(sink->Wait().cached_tokens, 0);
      measured = sink->measured();
      EXPECT_EQ(std::ssize(measured[OutputDelta::kOfPrompt]), length - 1);
      ExpectSame(measured.at(0), alone.at(0));
      ASSERT_TRUE(worker_->WaitUntilIdle());
    }
    GenerationRequest next = Scoring(*worker_, prompt, {Random(70, 9)}, GetParam());
    next.cache_salt = "warm";
    const auto warm = worker_->Submit(next);
    ASSERT_TRUE(warm->Wait().status.ok()) << warm->Wait().status;
    const int64_t blocks = (length - 1 - kSinkTokens) / kDenseBlockTokens;
    EXPECT_EQ(warm->Wait().cached_tokens, blocks * kDenseBlockTokens);
    ExpectSame(warm->measured().at(0), alone.at(0));
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, LocalEngineScoresTest,
                         testing::Values(PolicyKind::kFull, PolicyKind::kWave),
                         [](const auto& info) { return std::string(PolicyName(info.param)); });

// Of a prompt alone nothing is kept: it needs no block.
TEST(LocalEnginePromptScoresTest, APromptIsMeasuredWithoutKv) {
  InProcessWorkerOptions options = SmallModel(4);
  std::atomic<int64_t> most_blocks = 0;
  options.on_plan = [&](const SchedulerInput& input, const StepPlan&) {
    for (const RequestDescription& request : input.requests) {
      most_blocks = std::max<int64_t>(most_blocks, request.dense_blocks + request.meta_blocks);
    }
  };
  InProcessWorker worker(options);
  GenerationRequest request = worker.Greedy(RandomPrompt(5000, worker.config().vocab_size, 1), 0);
  request.num_prompt_logprobs = 3;
  const auto sink = worker.Submit(request);
  ASSERT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
  EXPECT_EQ(sink->Wait().completion_tokens, 0);
  const std::vector<OutputToken> scores = sink->measured()[OutputDelta::kOfPrompt];
  ASSERT_EQ(scores.size(), 4999u);
  for (size_t i = 0; i < scores.size(); ++i) {
    ASSERT_EQ(scores[i].token, request.prompt[i + 1]);
    ASSERT_GE(scores[i].rank, 1);
    ASSERT_EQ(scores[i].alternatives.size(), 3u);
    ASSERT_LE(scores[i].logprob, scores[i].alternatives[0].logprob);
  }
  EXPECT_EQ(most_blocks, 0);
  request.prompt.resize(1);  // has nothing to measure
  const auto short_one = worker.Submit(request);
  EXPECT_TRUE(short_one->Wait().status.ok());
  EXPECT_TRUE(short_one->tokens().empty());
}

// Scores of generation's own prompt come first.
TEST(LocalEnginePromptScoresTest, AGeneratedTokenComesBehindItsPrompt) {
  InProcessWorker worker(SmallModel(4));
  GenerationRequest request = worker.Greedy(RandomPrompt(300, worker.config().vocab_size, 2), 5);
  const Tokens alone = worker.Generate(request);
  request.num_prompt_logprobs = 0;
  const auto sink = worker.Submit(request);
  ASSERT_TRUE(sink->Wait().status.ok());
  const Tokens all = sink->tokens();
  ASSERT_EQ(all.size(), 299u + 5);
  EXPECT_TRUE(std::equal(all.begin(), all.begin() + 299, request.prompt.begin() + 1));
  EXPECT_EQ(Tokens(all.begin() + 299, all.end()), alone);
  EXPECT_EQ(sink->Wait().completion_tokens, 5);
}

class GoldenScoresTest : public testing::TestWithParam<std::string> {};

double LogprobOf(std::span<const float> logits, int32_t token) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  return logits[static_cast<size_t>(token)] - std::log(sum);
}
int32_t RankOf(std::span<const float> logits, int32_t token) {
  const float logit = logits[static_cast<size_t>(token)];
  return 1 + static_cast<int32_t>(
                 std::count_if(logits.begin(), logits.end(), [&](float x) { return x > logit; }));
}

TEST_P(GoldenScoresTest, AreThoseOfThePlainModel) {
  const GoldenModel golden(GetParam());
  InProcessWorkerOptions options;
  options.model_folder = test_support::GoldenModelFolder(GetParam());
  options.max_model_len = 256;
  options.precision = ComputePrecision::kF32;
  options.kv_format = kF32Kv;
  InProcessWorker worker(options);
  if (worker.device().info().backend != "cpu") GTEST_SKIP() << "a GPU computes in bf16";
  GenerationRequest request = Scoring(worker, golden.prompt, {golden.forced}, PolicyKind::kFull);
  request.num_prompt_logprobs = 0;
  const Scores scores = Measured(worker, request);
  const std::vector<OutputToken>& prompt = scores.at(OutputDelta::kOfPrompt);
  const std::vector<OutputToken>& forced = scores.at(0);
  ASSERT_EQ(prompt.size(), golden.prompt.size() - 1);
  ASSERT_EQ(forced.size(), golden.forced.size());
  size_t same_ranks = 0, compared = 0;
  const auto compare = [&](const OutputToken& got, std::span<const float> logits) {
    EXPECT_NEAR(got.logprob, LogprobOf(logits, got.token), 2e-3);
    same_ranks += got.rank == RankOf(logits, got.token) ? 1 : 0;
    ++compared;
  };
  for (size_t row = 0; row < golden.prefill_positions.size(); ++row) {
    const auto at = static_cast<size_t>(golden.prefill_positions[row]);
    compare(at < prompt.size() ? prompt[at] : forced[0], golden.PrefillLogits(row));
  }
  for (size_t i = 0; i + 1 < golden.forced.size(); ++i) {
    compare(forced[i + 1], golden.DecodeLogits(i));
  }
  EXPECT_GT(compared, 20u);
  EXPECT_GE(same_ranks + 2, compared) << "of " << compared;  // equal logits, but for rounding
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenScoresTest,
                         testing::ValuesIn(test_support::GoldenModelNames()), [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace retroinfer
