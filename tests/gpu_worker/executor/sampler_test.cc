#include "gpu_worker/executor/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "text/constraint/constraint_compiler.h"
#include "text/constraint/token_vocabulary.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace retroinfer {
namespace {

constexpr int64_t kVocab = 50;
constexpr int32_t kMaxBatch = 4;

// What a sequence is sampled by.
struct Sampled {
  SamplingParams sampling;
  std::vector<int32_t> prompt;
};

class SamplerTest : public testing::TestWithParam<test_support::BackendParam> {
 protected:
  void SetUp() override {
    backend_ = GetParam().create();
    auto sampler = Sampler::Create(*backend_->device, backend_->ops->model(), *backend_->stream,
                                   kMaxBatch, kVocab);
    ASSERT_TRUE(sampler.ok()) << sampler.status();
    sampler_ = *std::move(sampler);
  }

  SamplingState State(const Sampled& request) {
    auto state = SamplingState::Create(*backend_->device, *backend_->stream, request.sampling,
                                       request.prompt, kEos, kVocab);
    EXPECT_TRUE(state.ok()) << state.status();
    return *std::move(state);
  }
  void SetLogits(const std::vector<std::vector<float>>& rows) {
    std::vector<float> flat;
    for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
    const MatrixView view = sampler_->logits(static_cast<int32_t>(rows.size()));
    ASSERT_TRUE(backend_->device
                    ->Upload(*backend_->stream, std::as_bytes(std::span(flat)),
                             {view.data, flat.size() * sizeof(float)})
                    .ok());
  }
  std::vector<OutputToken> Sample(std::vector<SamplingState*> states) {
    const auto tokens = sampler_->Sample(states);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return {tokens->begin(), tokens->end()};
  }

  static constexpr int32_t kEos[] = {7};
  std::unique_ptr<test_support::Backend> backend_;
  std::unique_ptr<Sampler> sampler_;
};

std::vector<float> Peaked(size_t first, size_t second) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[first] = 6.0f;
  logits[second] = 5.0f;
  return logits;
}

Sampled Greedy() {
  Sampled request;
  request.prompt = {1, 2, 3};
  request.sampling.temperature = 0;
  return request;
}

TEST_P(SamplerTest, RowsOfABatchKeepTheirOwnParameters) {
  Sampled greedy = Greedy();
  Sampled penalised = Greedy();
  penalised.prompt = {9};
  penalised.sampling.repetition_penalty = 2.0f;  // 6 / 2 < 5
  SamplingState a = State(greedy), b = State(penalised);
  SetLogits({Peaked(9, 11), Peaked(9, 11)});
  const std::vector<OutputToken> tokens = Sample({&a, &b});
  EXPECT_EQ(tokens[0].token, 9);
  EXPECT_EQ(tokens[1].token, 11);
}

TEST_P(SamplerTest, EndTokensAreHeldBackUntilMinTokens) {
  Sampled request = Greedy();
  request.sampling.min_tokens = 1;
  SamplingState state = State(request);
  SetLogits({Peaked(7, 11)});
  EXPECT_EQ(Sample({&state})[0].token, 11);
  ASSERT_TRUE(state.Count(11).ok());
  SetLogits({Peaked(7, 11)});
  EXPECT_EQ(Sample({&state})[0].token, 7);
}

TEST_P(SamplerTest, GeneratedTokensCountTowardsTheFrequencyPenalty) {
  Sampled request = Greedy();
  request.sampling.frequency_penalty = 0.6f;
  SamplingState state = State(request);
  std::vector<int32_t> drawn;
  for (int i = 0; i < 3; ++i) {
    SetLogits({Peaked(9, 11)});
    drawn.push_back(Sample({&state})[0].token);
    ASSERT_TRUE(state.Count(drawn.back()).ok());
  }
  EXPECT_EQ(drawn, (std::vector<int32_t>{9, 9, 11}));  // 6, 5.4 > 5 > 4.8
}

// Rows of one state that share a step draw what steps of one row each draw: seeds, penalties and
// min_tokens go on from row to row.
TEST_P(SamplerTest, RowsBehindEachOtherDrawWhatStepsOfOneRowDraw) {
  Sampled request = Greedy();
  request.sampling.temperature = 0.8f;
  request.sampling.repetition_penalty = 1.4f;
  request.sampling.frequency_penalty = 0.9f;
  request.sampling.presence_penalty = 0.6f;
  request.sampling.min_tokens = 2;
  request.sampling.stop_token_ids = {20, 21};
  request.sampling.logit_bias = {{20, 1.5f}};
  int drew_otherwise = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    request.sampling.seed = seed;
    std::vector<std::vector<float>> logits;
    for (int row = 0; row < 3; ++row) {
      logits.emplace_back(kVocab, 0.0f);
      for (size_t token = 20; token < 26; ++token) logits.back()[token] = 3.0f;
    }
    SamplingState one_by_one = State(request), together = State(request);
    std::vector<OutputToken> want;
    for (int row = 0; row < 3; ++row) {
      SetLogits({logits[0]});
      want.push_back(Sample({&one_by_one})[0]);
      ASSERT_TRUE(one_by_one.Count(want.back().token).ok());
    }
    SamplingState other = State(Greedy());
    std::vector<SamplingState*> states = {&other, &together, &together, &together};
    SetLogits({Peaked(1, 2), logits[0], logits[1], logits[2]});
    const std::vector<int32_t> fed = {9, 3, want[0].token, want[1].token};
    const auto got = sampler_->Sample(states, {}, fed);
    ASSERT_TRUE(got.ok()) << got.status();
    for (size_t row = 0; row < 3; ++row) {
      EXPECT_EQ((*got)[1 + row].token, want[row].token) << "seed " << seed << ", row " << row;
      EXPECT_EQ((*got)[1 + row].logprob, want[row].logprob);
      EXPECT_TRUE(sampler_->IsDrawn(1 + row));
    }
    SetLogits({Peaked(1, 2), logits[0], logits[1], logits[2]});
    const auto not_told = sampler_->Sample(states);
    ASSERT_TRUE(not_told.ok()) << not_told.status();
    drew_otherwise += (*not_told)[3].token != want[2].token ? 1 : 0;
  }
  EXPECT_GT(drew_otherwise, 5) << "the rows before make no difference here";
}

// Tokens of the prompt that share the step with the one that draws are not generated ones.
TEST_P(SamplerTest, GivenRowsInFrontOfTheOneThatDrawsCountForNothing) {
  Sampled request = Greedy();
  request.sampling.frequency_penalty = 2;
  request.sampling.min_tokens = 1;
  request.sampling.stop_token_ids = {9};
  SamplingState state = State(request);
  const std::vector<SamplingState*> states(kMaxBatch, &state);
  std::vector<int32_t> forced(kMaxBatch, 11), fed(kMaxBatch, 11);
  forced.back() = -1;
  SetLogits(std::vector<std::vector<float>>(kMaxBatch, Peaked(9, 11)));
  const auto got = sampler_->Sample(states, forced, fed);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ((*got)[0].token, 11);
  EXPECT_EQ(got->back().token, 11) << "9 is held back, and 11 was never drawn";
}

TEST_P(SamplerTest, ASeedGivesTheSameTokenInAnyBatch) {
  Sampled request = Greedy();
  request.sampling.temperature = 1.0f;
  request.sampling.seed = 42;
  const std::vector<float> flat(kVocab, 1.0f);
  std::set<int32_t> distinct;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    request.sampling.seed = seed;
    SamplingState alone = State(request), other = State(Greedy()), together = State(request);
    SetLogits({flat});
    const int32_t token = Sample({&alone})[0].token;
    SetLogits({Peaked(1, 2), flat});
    EXPECT_EQ(Sample({&other, &together})[1].token, token);
    distinct.insert(token);
  }
  EXPECT_GT(distinct.size(), 5u);
}

TEST_P(SamplerTest, ReportsTheAlternativesThatWereAskedFor) {
  Sampled request = Greedy();
  request.sampling.num_logprobs = 2;
  SamplingState state = State(request);
  SetLogits({Peaked(9, 11)});
  const OutputToken token = Sample({&state})[0];
  const double normaliser = std::log(std::exp(6.0) + std::exp(5.0) + (kVocab - 2));
  EXPECT_NEAR(token.logprob, 6.0 - normaliser, 1e-5);
  ASSERT_EQ(token.alternatives.size(), 2u);
  EXPECT_EQ(token.alternatives[0].token, 9);
  EXPECT_EQ(token.alternatives[1].token, 11);
  EXPECT_NEAR(token.alternatives[1].logprob, 5.0 - normaliser, 1e-5);
}

TEST_P(SamplerTest, LogprobsAreThoseOfTheModelWhateverWasAskedFor) {
  Sampled request = Greedy();
  request.prompt = {9};
  request.sampling.num_logprobs = 1;
  request.sampling.repetition_penalty = 3.0f;
  request.sampling.logit_bias = {{20, 90.0f}};
  SamplingState state = State(request);
  SetLogits({Peaked(9, 11)});
  const OutputToken token = Sample({&state})[0];
  const double normaliser = std::log(std::exp(6.0) + std::exp(5.0) + (kVocab - 2));
  EXPECT_EQ(token.token, 20);
  EXPECT_NEAR(token.logprob, 0.0 - normaliser, 1e-5);
  ASSERT_EQ(token.alternatives.size(), 1u);
  EXPECT_EQ(token.alternatives[0].token, 9);
  EXPECT_NEAR(token.alternatives[0].logprob, 6.0 - normaliser, 1e-5);
}

TEST_P(SamplerTest, BiasesHoldAlsoBehindMinTokens) {
  Sampled request = Greedy();
  request.sampling.min_tokens = 1;
  request.sampling.logit_bias = {{7, 30.0f}, {12, 20.0f}};
  SamplingState state = State(request);
  SetLogits({Peaked(7, 11)});
  EXPECT_EQ(Sample({&state})[0].token, 12) << "7 ends the text: a ban is stronger than a bias";
  ASSERT_TRUE(state.Count(12).ok());
  SetLogits({Peaked(7, 11)});
  EXPECT_EQ(Sample({&state})[0].token, 7);
}

TEST_P(SamplerTest, AsManyTokensAsTheApiTakesAreHeldBack) {
  Sampled request = Greedy();
  request.sampling.min_tokens = 1;
  for (int32_t token = 10; token < 26; ++token) request.sampling.stop_token_ids.push_back(token);
  request.sampling.stop_token_ids[3] = 7;  // an end token, too
  SamplingState state = State(request);
  std::vector<float> logits(kVocab, -1.0f);
  for (const int32_t token : request.sampling.stop_token_ids) {
    logits[static_cast<size_t>(token)] = 5.0f;
  }
  logits[30] = 0.0f;
  SetLogits({logits});
  EXPECT_EQ(Sample({&state})[0].token, 30);
}

// The tokens are the bytes of their ids, and one end token behind them.
class ConstrainedSamplerTest : public testing::TestWithParam<test_support::BackendParam> {
 protected:
  static constexpr int32_t kEnd = 256;
  static constexpr int64_t kTokens = 300;

  void SetUp() override {
    backend_ = GetParam().create();
    auto sampler = Sampler::Create(*backend_->device, backend_->ops->model(), *backend_->stream,
                                   kMaxBatch, kTokens);
    ASSERT_TRUE(sampler.ok()) << sampler.status();
    sampler_ = *std::move(sampler);
    std::vector<float> logits;
    for (int64_t i = 0; i < kMaxBatch * kTokens; ++i) {
      logits.push_back(static_cast<float>(i % kTokens) / 100);  // the last token is the likeliest
    }
    ASSERT_TRUE(backend_->device
                    ->Upload(*backend_->stream, std::as_bytes(std::span(logits)),
                             {sampler_->logits(kMaxBatch).data, logits.size() * sizeof(float)})
                    .ok());
  }
  SamplingState State(const std::string& regex, int32_t min_tokens = 0) {
    SamplingParams params{.temperature = 0};
    params.min_tokens = min_tokens;
    if (!regex.empty()) {
      auto compiled =
          compiler_.Compile({.form = constraint::ConstraintSpec::Form::kRegex, .text = regex});
      EXPECT_TRUE(compiled.ok()) << compiled.status();
      params.constraint = *std::move(compiled);
    }
    const std::vector<int32_t> prompt = {1}, ends = {kEnd};
    auto state =
        SamplingState::Create(*backend_->device, *backend_->stream, params, prompt, ends, kTokens);
    EXPECT_TRUE(state.ok()) << state.status();
    return *std::move(state);
  }
  // Draws for the states until each must end, at most `steps` times.
  std::vector<std::string> Write(std::vector<SamplingState*> states, int steps) {
    std::vector<std::string> texts(states.size());
    for (int step = 0; step < steps; ++step) {
      const auto tokens = sampler_->Sample(states);
      EXPECT_TRUE(tokens.ok()) << tokens.status();
      for (size_t i = 0; i < states.size(); ++i) {
        const int32_t token = (*tokens)[i].token;
        if (states[i]->MustEnd()) continue;
        EXPECT_TRUE(states[i]->Count(token).ok()) << token;
        if (token < 256) {
          texts[i].push_back(static_cast<char>(token));
        } else {
          absl::StrAppend(&texts[i], "<", token, ">");
        }
      }
    }
    return texts;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = CreateByteTokenizer();
  constraint::ConstraintCompiler compiler_{
      constraint::TokenVocabulary::Create(*tokenizer_, {kEnd}, kTokens)};
  std::unique_ptr<test_support::Backend> backend_;
  std::unique_ptr<Sampler> sampler_;
};

TEST_P(ConstrainedSamplerTest, RowsOfABatchFollowTheirOwnConstraints) {
  SamplingState digits = State("[a-f]x[0-9]{2}"), free = State(""), word = State("no|yes");
  const std::vector<std::string> texts = Write({&digits, &free, &word}, 4);
  EXPECT_EQ(texts[0], "fx99");
  EXPECT_EQ(texts[1], "<299><299><299><299>");
  EXPECT_EQ(texts[2], "yes");
  EXPECT_TRUE(digits.MustEnd());
  EXPECT_FALSE(free.MustEnd());
}

// An end token is drawn where the text may end but need not, and only there.
TEST_P(ConstrainedSamplerTest, AnEndTokenIsAllowedWhereTheTextMayEnd) {
  SamplingState state = State("a+");
  EXPECT_EQ(Write({&state}, 2)[0], "a<256>");
}

TEST_P(ConstrainedSamplerTest, MinTokensHoldTheEndBack) {
  SamplingState state = State("a+", 3);
  EXPECT_EQ(Write({&state}, 4)[0], "aaa<256>");
}

TEST_P(ConstrainedSamplerTest, ATokenThatIsNotAllowedIsAnError) {
  SamplingState state = State("ab");
  EXPECT_TRUE(state.Count('a').ok());
  const absl::Status status = state.Count('c');
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
}

// A state that is there twice, as rows of one sequence are, and batches that change in size.
TEST_P(ConstrainedSamplerTest, BatchesChange) {
  SamplingState a = State("[a-z]{9}"), b = State("[0-4]{9}"), free = State("");
  EXPECT_EQ(Write({&a}, 1), (std::vector<std::string>{"z"}));
  EXPECT_EQ(Write({&free}, 1), (std::vector<std::string>{"<299>"}));
  EXPECT_EQ(Write({&free, &b, &a}, 2), (std::vector<std::string>{"<299><299>", "44", "zz"}));
  EXPECT_EQ(Write({&a, &b}, 1), (std::vector<std::string>{"z", "4"}));
}

TEST_P(ConstrainedSamplerTest, RowsBehindEachOtherHaveTheirOwnMasks) {
  SamplingState state = State("ax[0-4]|b[5-9]y"), free = State("");
  std::vector<SamplingState*> states = {&state, &state, &state, &free};
  // Of the likeliest tokens that are allowed behind nothing, behind "a" and behind "ax".
  std::vector<int32_t> fed = {1, 'a', 'x', 2};
  auto tokens = sampler_->Sample(states, {}, fed);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ((*tokens)[0].token, 'b');
  EXPECT_EQ((*tokens)[1].token, 'x');
  EXPECT_EQ((*tokens)[2].token, '4');
  EXPECT_EQ((*tokens)[3].token, kTokens - 1);
  // A draft that is not allowed is not drawn, whatever its own row draws; the state is as it was.
  fed = {1, 'c', 'x', 2};
  tokens = sampler_->Sample(states, {}, fed);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ((*tokens)[0].token, 'b');
  EXPECT_EQ(Write({&state}, 3)[0], "b9y");
}

INSTANTIATE_TEST_SUITE_P(Backends, ConstrainedSamplerTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

TEST_P(SamplerTest, MeasuresTokensThatAreGiven) {
  SamplingState drawn = State(Greedy());
  Sampled penalised = Greedy();
  penalised.sampling.logit_bias = {{5, 100.0f}};
  penalised.sampling.num_logprobs = 1;
  SamplingState given = State(penalised);
  SetLogits({Peaked(3, 4), Peaked(3, 4), Peaked(3, 4)});
  SamplingState* const states[] = {&drawn, &given, &given};
  const int32_t forced[] = {-1, 4, 20};
  const auto result = sampler_->Sample(states, forced);
  ASSERT_TRUE(result.ok()) << result.status();
  const std::vector<OutputToken> tokens(result->begin(), result->end());
  EXPECT_EQ(tokens[0].token, 3);
  EXPECT_EQ(tokens[0].rank, 0) << "not asked for";
  EXPECT_EQ(tokens[1].token, 4);
  EXPECT_EQ(tokens[1].rank, 2) << "of the model's own distribution";
  EXPECT_EQ(tokens[2].token, 20);
  EXPECT_EQ(tokens[2].rank, 21) << "equal ones by their ids";
  const int32_t told[] = {3, 4, 20};
  const auto measured = sampler_->Measure(told, 2);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ((*measured)[0].rank, 1);
  EXPECT_EQ((*measured)[1].logprob, tokens[1].logprob);
  EXPECT_EQ((*measured)[2].logprob, tokens[2].logprob);
  EXPECT_EQ((*measured)[2].alternatives.size(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Backends, SamplerTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
