#include "gpu_worker/ops/model/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "gpu_worker/ops/model/counter_random.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

struct Sampled {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<int32_t> top_tokens;
  std::vector<float> top_logprobs;
  std::vector<int32_t> ranks;
};

class SamplingTest : public testing::TestWithParam<BackendParam> {
 protected:
  // logits: [rows, vocab]. occurrences, biases, masks: one list for each row, or empty.
  Sampled Run(std::vector<SamplingRow> rows, const std::vector<float>& logits,
              const std::vector<std::vector<uint32_t>>& occurrences = {},
              const std::vector<std::vector<SamplingBias>>& biases = {},
              const std::vector<std::vector<uint32_t>>& masks = {}) {
    const size_t batch = rows.size(), vocab = logits.size() / batch;
    std::vector<DeviceBuffer> lists;
    std::vector<const SamplingBias*> list_pointers(batch, nullptr);
    for (size_t i = 0; i < biases.size(); ++i) {
      if (biases[i].empty()) continue;
      lists.push_back(data_.Upload(biases[i]));
      list_pointers[i] = lists.back().as<const SamplingBias>().device_data();
      rows[i].num_biases = static_cast<int32_t>(biases[i].size());
    }
    const DeviceBuffer list_buffer = data_.Upload(list_pointers);
    const auto matrix = data_.UploadMatrix(logits, static_cast<int64_t>(batch),
                                           static_cast<int64_t>(vocab), DType::kF32);
    const DeviceBuffer row_buffer = data_.Upload(rows);
    std::vector<DeviceBuffer> words;
    const auto upload = [&](const std::vector<std::vector<uint32_t>>& of_rows) {
      std::vector<const uint32_t*> pointers(batch, nullptr);
      for (size_t i = 0; i < of_rows.size(); ++i) {
        if (of_rows[i].empty()) continue;
        words.push_back(data_.Upload(of_rows[i]));
        pointers[i] = words.back().as<const uint32_t>().device_data();
      }
      return data_.Upload(pointers);
    };
    const DeviceBuffer pointer_buffer = upload(occurrences);
    const DeviceBuffer mask_buffer = upload(masks);
    const DeviceBuffer tokens = data_.Upload(std::vector<int32_t>(batch, -7));
    const DeviceBuffer logprobs = data_.Upload(std::vector<float>(batch, kNan));
    const DeviceBuffer top_tokens = data_.Upload(std::vector<int32_t>(batch * kMaxTopLogprobs, -7));
    const DeviceBuffer top_logprobs =
        data_.Upload(std::vector<float>(batch * kMaxTopLogprobs, kNan));
    const DeviceBuffer ranks = data_.Upload(std::vector<int32_t>(batch, -7));
    const DeviceBuffer scratch = data_.Allocate(
        SamplingScratchBytes(static_cast<int64_t>(batch), static_cast<int64_t>(vocab)));
    const absl::Status status = backend_->ops->model().Sampling(
        *backend_->stream, {.logits = matrix.view,
                            .rows = row_buffer.as<const SamplingRow>(),
                            .biases = list_buffer.as<const SamplingBias* const>(),
                            .occurrences = pointer_buffer.as<const uint32_t* const>(),
                            .masks = mask_buffer.as<const uint32_t* const>(),
                            .tokens = tokens.as<int32_t>(),
                            .logprobs = logprobs.as<float>(),
                            .top_tokens = top_tokens.as<int32_t>(),
                            .top_logprobs = top_logprobs.as<float>(),
                            .ranks = ranks.as<int32_t>(),
                            .scratch = scratch.bytes()});
    EXPECT_TRUE(status.ok()) << status;
    return {data_.Download<int32_t>(tokens), data_.Download<float>(logprobs),
            data_.Download<int32_t>(top_tokens), data_.Download<float>(top_logprobs),
            data_.Download<int32_t>(ranks)};
  }

  // Draws `count` tokens of one distribution: rows that differ in the position only.
  std::vector<int32_t> Draw(SamplingRow row, const std::vector<float>& logits, size_t count) {
    std::vector<int32_t> drawn;
    constexpr size_t kBatch = 250;
    std::vector<float> all;
    for (size_t i = 0; i < kBatch; ++i) all.insert(all.end(), logits.begin(), logits.end());
    while (drawn.size() < count) {
      std::vector<SamplingRow> rows(kBatch, row);
      for (size_t i = 0; i < kBatch; ++i) rows[i].position = row.position++;
      const auto tokens = Run(rows, all).tokens;
      drawn.insert(drawn.end(), tokens.begin(), tokens.end());
    }
    return drawn;
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(SamplingTest, GreedyTakesTheLowestOfTheLargest) {
  const Sampled got = Run({{.temperature = 0}, {.temperature = 0}}, {1, 5, 5, 2, -3, -1, -1, -9});
  EXPECT_EQ(got.tokens, (std::vector<int32_t>{1, 1}));
  const double sum = std::exp(1) + 2 * std::exp(5) + std::exp(2);
  EXPECT_NEAR(got.logprobs[0], 5 - std::log(sum), 1e-5);
}

TEST_P(SamplingTest, GreedyFindsTheLargestAtAllSizes) {
  for (const size_t vocab : {1, 31, 32, 33, 5000, 8192, 8193, 100'000}) {
    for (uint64_t seed = 0; seed < 3; ++seed) {
      const auto logits = RandomNormal(vocab, seed);
      const Sampled got = Run({{.temperature = 0, .num_top_logprobs = 5}}, logits);
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      EXPECT_EQ(got.tokens[0], best);
      EXPECT_EQ(got.top_tokens[0], best);
      double sum = 0;
      for (const float logit : logits) sum += std::exp(double{logit});
      EXPECT_NEAR(got.logprobs[0], logits[static_cast<size_t>(best)] - std::log(sum), 1e-5);
      if (vocab == 1) {
        EXPECT_EQ(got.top_tokens[1], -1);
      }
    }
  }
}

TEST_P(SamplingTest, TopLogprobsAreSorted) {
  const Sampled got = Run({{.temperature = 0, .num_top_logprobs = 3}}, {0, 3, 1, 3, 2});
  EXPECT_EQ(std::vector<int32_t>(got.top_tokens.begin(), got.top_tokens.begin() + 3),
            (std::vector<int32_t>{1, 3, 4}));
  EXPECT_EQ(got.top_logprobs[0], got.logprobs[0]);
  EXPECT_NEAR(got.top_logprobs[2], got.top_logprobs[0] - 1, 1e-6);
}

constexpr uint32_t kInPrompt = 0x80000000u;

TEST_P(SamplingTest, PenaltiesByHand) {
  const SamplingRow row = {.temperature = 0,
                           .repetition_penalty = 2,
                           .frequency_penalty = 0.5f,
                           .presence_penalty = 0.25f};
  struct Case {
    float logit;
    uint32_t occurrences;
    float penalised;
  };
  for (const Case& c :
       {Case{4, kInPrompt, 2}, Case{-1, 2, -3.25f}, Case{1, 0, 1}, Case{6, kInPrompt | 1, 2.25f}}) {
    // Another token, without penalty, is chosen just when its logit is above that.
    EXPECT_EQ(Run({row}, {c.logit, c.penalised - 0.01f}, {{c.occurrences, 0}}).tokens[0], 0);
    EXPECT_EQ(Run({row}, {c.logit, c.penalised + 0.01f}, {{c.occurrences, 0}}).tokens[0], 1);
  }
}

// Tokens of rows before count as if they were among the occurrences, to the bit.
TEST_P(SamplingTest, TokensAheadCountAsOccurrences) {
  SamplingRow counted = {.temperature = 0,
                         .repetition_penalty = 1.3f,
                         .frequency_penalty = 0.4f,
                         .presence_penalty = 0.3f};
  counted.num_top_logprobs = 5;
  SamplingRow ahead = counted;
  ahead.num_ahead = 4;
  std::copy_n(std::vector<int32_t>{2, 0, 2, 3, 4}.begin(), 5, ahead.ahead);  // the last is unused
  const std::vector<float> row = {1.5f, 0.7f, 2.9f, -0.4f, 1.1f};
  std::vector<float> logits;
  const auto draws = [&](const SamplingRow& by, std::vector<uint32_t> occurrences) {
    // The token that wins tells the order of two logits; one is raised step by step.
    std::vector<int32_t> winners;
    for (int raised = 0; raised < 400; ++raised) {
      logits = row;
      logits[1] += static_cast<float>(raised) * 0.01f - 2;
      winners.push_back(Run({by}, logits, {occurrences}).tokens[0]);
    }
    return winners;
  };
  const std::vector<int32_t> want = draws(counted, {kInPrompt | 1, 0, 3, 1, kInPrompt});
  EXPECT_EQ(draws(ahead, {kInPrompt, 0, 1, 0, kInPrompt}), want);
  EXPECT_NE(draws(counted, {kInPrompt, 0, 1, 0, kInPrompt}), want);
}

TEST_P(SamplingTest, BiasesByHand) {
  const SamplingRow greedy = {.temperature = 0};
  EXPECT_EQ(Run({greedy}, {1, 5, 2}, {}, {{{0, 4.5f}}}).tokens[0], 0);
  EXPECT_EQ(Run({greedy}, {1, 5, 2}, {}, {{{0, 3.5f}}}).tokens[0], 1);
  EXPECT_EQ(Run({greedy}, {1, 5, 2}, {}, {{{1, -3.5f}}}).tokens[0], 2);
  // Before penalties: (1 + 4) / 2 against 2.4 and 2.6.
  const SamplingRow halved = {.temperature = 0, .repetition_penalty = 2};
  EXPECT_EQ(Run({halved}, {1, 2.4f}, {{kInPrompt, 0}}, {{{0, 4}}}).tokens[0], 0);
  EXPECT_EQ(Run({halved}, {1, 2.6f}, {{kInPrompt, 0}}, {{{0, 4}}}).tokens[0], 1);
  // Tokens outside the vocabulary are ignored; rows keep to their own.
  const Sampled got = Run({greedy, greedy, greedy}, {1, 5, 1, 5, 1, 5}, {},
                          {{{0, 10}}, {}, {{-1, 50}, {2, 50}, {0, 1}}});
  EXPECT_EQ(got.tokens, (std::vector<int32_t>{0, 1, 1}));
}

TEST_P(SamplingTest, ManyBiasesOverALargeVocabulary) {
  // Over the borders of what a block of threads looks at, more entries than it has threads.
  constexpr size_t kVocab = 20'000;
  const auto logits = RandomNormal(kVocab, 7);
  std::vector<SamplingBias> biases;
  std::vector<float> biased = logits;
  for (size_t i = 0; i < 1024; ++i) {
    const size_t token = i * 19 + 3;
    const float bias = static_cast<float>(i % 7) - 3.0f;
    biases.push_back({static_cast<int32_t>(token), bias});
    biased[token] += bias;
  }
  const auto best = std::max_element(biased.begin(), biased.end()) - biased.begin();
  const auto model_best = std::max_element(logits.begin(), logits.end()) - logits.begin();
  ASSERT_NE(best, model_best) << "the biases change nothing";
  const Sampled got = Run({{.temperature = 0, .num_top_logprobs = 1}}, logits, {}, {biases});
  EXPECT_EQ(got.tokens[0], best);
  EXPECT_EQ(got.top_tokens[0], model_best);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  EXPECT_NEAR(got.logprobs[0], logits[static_cast<size_t>(best)] - std::log(sum), 1e-5);
}

TEST_P(SamplingTest, LogprobsAreOfTheModelsOwnDistribution) {
  const std::vector<float> logits = {4, -1, 1, 6};
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  const auto model_logprob = [&](int32_t token) {
    return logits[static_cast<size_t>(token)] - std::log(sum);
  };
  const std::vector<uint32_t> seen = {kInPrompt, 2, 0, kInPrompt | 1};
  for (const float temperature : {0.0f, 0.5f, 2.0f}) {
    const SamplingRow row = {.temperature = temperature,
                             .top_k = 2,
                             .top_p = 0.9f,
                             .repetition_penalty = 9,
                             .frequency_penalty = 2,
                             .presence_penalty = 1,
                             .seed = 5,
                             .num_top_logprobs = 4};
    const Sampled got = Run({row}, logits, {seen}, {{{2, 3}, {0, -INFINITY}}});
    EXPECT_EQ(got.tokens[0], 2) << "1 + 3, against less than 0";
    EXPECT_NEAR(got.logprobs[0], model_logprob(2), 1e-5) << temperature;
    for (size_t i = 0; i < 4; ++i) {
      const int32_t expected[] = {3, 0, 2, 1};
      EXPECT_EQ(got.top_tokens[i], expected[i]);
      EXPECT_NEAR(got.top_logprobs[i], model_logprob(expected[i]), 1e-5);
    }
  }
}

TEST_P(SamplingTest, BannedTokensAreNeverDrawn) {
  EXPECT_EQ(
      Run({{.temperature = 0}}, {1, 9, 8, 2}, {}, {{{1, -INFINITY}, {2, -INFINITY}}}).tokens[0], 3);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const SamplingRow row = {.top_k = 2, .seed = seed};
    EXPECT_NE(Run({row}, {1, 9, 0, 2}, {}, {{{1, -INFINITY}}}).tokens[0], 1);
  }
}

// A mask of the tokens for which `allows` is true.
template <typename Allows>
std::vector<uint32_t> MaskOf(size_t vocab, const Allows& allows) {
  std::vector<uint32_t> mask(static_cast<size_t>(SamplingMaskWords(static_cast<int64_t>(vocab))));
  for (size_t i = 0; i < vocab; ++i) {
    if (allows(i)) mask[i / 32] |= 1u << (i % 32);
  }
  return mask;
}

TEST_P(SamplingTest, AMaskAllowsTheTokensOfItsBits) {
  for (const size_t vocab : {1, 31, 32, 33, 8192, 8193, 100'000}) {
    const auto logits = RandomNormal(vocab, 3);
    std::vector<float> both(logits);
    both.insert(both.end(), logits.begin(), logits.end());
    const auto allows = [](size_t token) { return token % 7 == 0; };
    // Another row of the batch has no mask.
    const Sampled got = Run({{.temperature = 0, .wants_rank = 1}, {.temperature = 0}}, both, {}, {},
                            {MaskOf(vocab, allows), {}});
    size_t best = 0;
    for (size_t i = 0; i < vocab; i += 7) best = logits[i] > logits[best] ? i : best;
    EXPECT_EQ(got.tokens[0], static_cast<int32_t>(best));
    EXPECT_EQ(got.tokens[1], std::max_element(logits.begin(), logits.end()) - logits.begin());
    // What is reported is of the model's own distribution.
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit});
    EXPECT_NEAR(got.logprobs[0], logits[best] - std::log(sum), 1e-5);
    const auto larger = std::count_if(logits.begin(), logits.end(),
                                      [&](float logit) { return logit > logits[best]; });
    EXPECT_EQ(got.ranks[0], larger + 1);
  }
}

TEST_P(SamplingTest, DrawsUnderAMaskFollowWhatItLeaves) {
  constexpr size_t kVocab = 9000;
  const auto logits = RandomNormal(kVocab, 5);
  const std::vector<uint32_t> mask =
      MaskOf(kVocab, [](size_t token) { return token == 3 || token == 40 || token == 8999; });
  constexpr size_t kBatch = 100;
  std::vector<float> all;
  for (size_t i = 0; i < kBatch; ++i) all.insert(all.end(), logits.begin(), logits.end());
  const std::vector<SamplingRow> ways = {
      {.temperature = 1}, {.temperature = 1, .top_k = 50}, {.temperature = 1, .top_p = 0.999f}};
  for (const SamplingRow& way : ways) {
    std::vector<SamplingRow> rows(kBatch, way);
    std::map<int32_t, int> counts;
    for (int round = 0; round < 20; ++round) {
      for (size_t i = 0; i < kBatch; ++i) {
        rows[i].position = static_cast<int64_t>(i) + round * static_cast<int64_t>(kBatch);
      }
      for (const int32_t token :
           Run(rows, all, {}, {}, std::vector<std::vector<uint32_t>>(kBatch, mask)).tokens) {
        ++counts[token];
      }
    }
    ASSERT_LE(counts.size(), 3u);
    const double sum = std::exp(logits[3]) + std::exp(logits[40]) + std::exp(logits[8999]);
    for (const int32_t token : {3, 40, 8999}) {
      const double expected = 2000 * std::exp(logits[static_cast<size_t>(token)]) / sum;
      EXPECT_NEAR(counts[token], expected, 5 * std::sqrt(expected) + 1) << token;
    }
  }
}

TEST_P(SamplingTest, AMaskHoldsAgainstBiasesPenaltiesAndInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<uint32_t> mask = {0b0100};
  for (const float temperature : {0.0f, 1.0f}) {
    const SamplingRow row = {.temperature = temperature, .presence_penalty = -2};
    EXPECT_EQ(Run({row}, {infinity, 5, -60, 5}, {{0, 3, 0, 3}}, {{{1, 100}}}, {mask}).tokens[0], 2);
  }
}

// What a sampler draws then is not to be taken; what matters is that there is something to look at.
TEST_P(SamplingTest, AMaskThatAllowsNothingGivesTokenZero) {
  EXPECT_EQ(Run({{.temperature = 1}}, {1, 2, 3}, {}, {}, {{0}}).tokens[0], 0);
}

TEST_P(SamplingTest, DrawsFollowTheDistribution) {
  constexpr size_t kDraws = 20'000;
  const std::vector<float> logits = {0, 1, 2, -1, 0.5f};
  for (const float temperature : {0.7f, 1.0f, 2.0f}) {
    std::vector<double> weight;
    double sum = 0;
    for (const float logit : logits) sum += weight.emplace_back(std::exp(logit / temperature));
    std::vector<double> count(5);
    for (const int32_t token : Draw({.temperature = temperature, .seed = 5}, logits, kDraws)) {
      ++count[static_cast<size_t>(token)];
    }
    double chi_square = 0;
    for (size_t i = 0; i < 5; ++i) {
      const double expected = weight[i] / sum * kDraws;
      chi_square += (count[i] - expected) * (count[i] - expected) / expected;
    }
    EXPECT_LT(chi_square, 18.5) << "4 degrees of freedom, p = 0.001; temperature " << temperature;
  }
}

TEST_P(SamplingTest, CutsKeepExactlyTheRightTokens) {
  // Probabilities 0.4, 0.3, 0.2, 0.06, 0.04, in a shuffled order.
  const std::vector<double> probabilities = {0.06, 0.4, 0.04, 0.2, 0.3};
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)) + 3);
  struct Case {
    SamplingRow row;
    std::set<int32_t> kept;
  };
  const std::vector<Case> cases = {
      {{.top_k = 1}, {1}},
      {{.top_k = 3}, {1, 3, 4}},
      {{.top_k = 99}, {0, 1, 2, 3, 4}},
      {{.top_p = 0.39f}, {1}},
      {{.top_p = 0.65f}, {1, 4}},
      {{.top_p = 0.91f}, {0, 1, 3, 4}},
      {{.min_p = 0.45f}, {1, 3, 4}},
      {{.min_p = 1.0f}, {1}},
      // Among the first two, 0.4 is 0.57 of what is left.
      {{.top_k = 2, .top_p = 0.55f}, {1}},
      {{.top_k = 4, .top_p = 0.9f, .min_p = 0.6f}, {1, 4}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SamplingRow row = cases[i].row;
    row.seed = i;
    const auto drawn = Draw(row, logits, 1000);
    EXPECT_EQ(std::set<int32_t>(drawn.begin(), drawn.end()), cases[i].kept) << "case " << i;
  }
}

TEST_P(SamplingTest, TopPOverALargeVocabularyMatchesASort) {
  const auto logits = RandomNormal(4000, 9, 2.0f);
  std::vector<size_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  std::set<int32_t> kept;
  double reached = 0;
  for (const size_t token : order) {
    if (reached >= 0.8 * sum) break;
    reached += std::exp(double{logits[token]});
    kept.insert(static_cast<int32_t>(token));
  }
  EXPECT_GT(kept.size(), 256u) << "the first cut must not be enough";
  const auto drawn = Draw({.top_p = 0.8f, .seed = 3}, logits, 2000);
  for (const int32_t token : drawn) EXPECT_TRUE(kept.count(token)) << token;
  EXPECT_GT(std::set<int32_t>(drawn.begin(), drawn.end()).size(), 200u);
}

TEST_P(SamplingTest, ATokenDependsOnSeedAndPositionAlone) {
  const auto logits = RandomNormal(300, 4);
  std::vector<float> three;
  for (int i = 0; i < 3; ++i) three.insert(three.end(), logits.begin(), logits.end());
  const SamplingRow row = {.top_p = 0.95f, .seed = 42, .position = 17};
  const int32_t alone = Run({row}, logits).tokens[0];
  const auto batch = Run({{.seed = 1}, row, {.temperature = 0}}, three).tokens;
  EXPECT_EQ(batch[1], alone);
  std::set<int32_t> different;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SamplingRow other = row;
    other.seed = seed;
    different.insert(Run({other}, logits).tokens[0]);
  }
  EXPECT_GT(different.size(), 5u);
}

TEST_P(SamplingTest, SurvivesHostileLogits) {
  for (const float value : {kNan, -INFINITY, 0.0f}) {
    for (const float temperature : {0.0f, 1.0f, 1e-30f}) {
      const Sampled got = Run({{.temperature = temperature, .top_p = 0.5f, .num_top_logprobs = 2}},
                              std::vector<float>(40, value));
      EXPECT_GE(got.tokens[0], 0);
      EXPECT_LT(got.tokens[0], 40);
    }
  }
}

TEST_P(SamplingTest, APenaltyOfNextToNothingMakesATokenCertain) {
  for (const float top_p : {1.0f, 0.5f}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const SamplingRow row = {.top_p = top_p, .repetition_penalty = 1e-38f, .seed = seed};
      EXPECT_EQ(Run({row}, {3, 5, 4, 6}, {{0, 0, kInPrompt, 0}}).tokens[0], 2);
    }
  }
}

TEST(CounterRandomTest, IsUniformAndKeepsSeedsApart) {
  double sum = 0;
  std::set<double> values;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (int64_t position = 0; position < 100; ++position) {
      const double value = UniformAt(seed, position);
      ASSERT_GE(value, 0.0);
      ASSERT_LT(value, 1.0);
      sum += value;
      values.insert(value);
    }
  }
  EXPECT_NEAR(sum / 10'000, 0.5, 0.01);
  EXPECT_EQ(values.size(), 10'000u);
}

TEST_P(SamplingTest, ATokenThatIsGivenIsMeasuredAndRanked) {
  const std::vector<float> one = {1, 5, 5, 2, kNan, -1, -std::numeric_limits<float>::infinity()};
  std::vector<float> logits;
  std::vector<SamplingRow> rows;
  for (int32_t token = 0; token < 7; ++token) {
    logits.insert(logits.end(), one.begin(), one.end());
    // Whatever else the row says.
    rows.push_back({.temperature = 1.5f,
                    .seed = 9,
                    .num_top_logprobs = 1,
                    .forced_token = token,
                    .wants_rank = 1});
  }
  const Sampled got = Run(rows, logits);
  EXPECT_EQ(got.tokens, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(got.ranks[0], 4);
  EXPECT_EQ(got.ranks[1], 1) << "the lower id of equal ones is greedy's";
  EXPECT_EQ(got.ranks[2], 2);
  EXPECT_EQ(got.ranks[3], 3);
  EXPECT_EQ(got.ranks[5], 5);
  EXPECT_GE(got.ranks[4], 6);  // behind all that are possible
  EXPECT_GE(got.ranks[6], 6);
  const double sum = std::log(std::exp(1) + 2 * std::exp(5) + std::exp(2) + std::exp(-1));
  for (const size_t token : {0, 1, 2, 3, 5}) {
    EXPECT_NEAR(got.logprobs[token], one[token] - sum, 1e-5);
    EXPECT_EQ(got.top_tokens[token * kMaxTopLogprobs], 1);
  }
  EXPECT_EQ(got.logprobs[6], -std::numeric_limits<float>::infinity());
}

TEST_P(SamplingTest, RanksAreThoseOfASortedRow) {
  for (const size_t vocab : {1, 31, 33, 8193, 100'000}) {
    std::vector<float> logits = RandomNormal(vocab, 3);
    for (float& logit : logits) logit = std::round(logit * 20) / 20;  // so that many are equal
    const auto token = static_cast<int32_t>(vocab / 2);
    const float logit = logits[vocab / 2];
    int32_t before = 0;
    for (size_t i = 0; i < vocab; ++i) {
      before += logits[i] > logit || (logits[i] == logit && i < vocab / 2) ? 1 : 0;
    }
    const Sampled got = Run({{.temperature = 0, .forced_token = token, .wants_rank = 1}}, logits);
    EXPECT_EQ(got.ranks[0], before + 1);
    const Sampled drawn = Run({{.temperature = 0, .wants_rank = 1}}, logits);
    EXPECT_EQ(drawn.ranks[0], 1);
    EXPECT_EQ(Run({{.temperature = 0}}, logits).ranks[0], -7) << "not asked for";
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SamplingTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
