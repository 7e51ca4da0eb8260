// Prompts whose rows attend to chosen blocks of keys: the same tokens and log-probabilities in any
// passes, beside any others and behind whatever is found in the store, and no KV in common with
// exact prompts.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu_worker/engine/local_engine.h"
#include "tests/support/in_process_worker.h"
#include "tests/support/small_worker.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;
using test_support::SmallWorker;

constexpr int64_t kDenseBefore = 300;
constexpr int64_t kAlways = kSinkTokens + 1;  // the sink, and the last token

InProcessWorkerOptions SmallModel() {
  InProcessWorkerOptions options = SmallWorker(8192);
  options.sparse = {.threshold = 0.3f, .dense_before = kDenseBefore};
  return options;
}

class SparsePrefillTest : public testing::Test {
 protected:
  explicit SparsePrefillTest(InProcessWorkerOptions options = SmallModel())
      : worker_(std::move(options)) {}

  std::vector<int32_t> Tokens(int64_t count, uint64_t seed) {
    return RandomPrompt(count, worker_.config().vocab_size, seed);
  }
  GenerationRequest Request(std::vector<int32_t> prompt, int32_t max_tokens, std::string salt,
                            PrefillKind prefill = PrefillKind::kSparse) {
    GenerationRequest request = worker_.Greedy(std::move(prompt), max_tokens, policy_);
    request.attention.prefill = prefill;
    request.cache_salt = std::move(salt);
    request.sampling.num_logprobs = 0;
    return request;
  }
  std::shared_ptr<CollectingSink> Run(GenerationRequest request) {
    auto sink = worker_.Submit(std::move(request));
    EXPECT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
    return sink;
  }
  std::shared_ptr<CollectingSink> RunCold(std::vector<int32_t> prompt, int32_t max_tokens) {
    auto sink = Run(Request(std::move(prompt), max_tokens, "cold " + std::to_string(++num_cold_)));
    EXPECT_EQ(sink->Wait().cached_tokens, 0);
    return sink;
  }
  static void ExpectSame(const CollectingSink& got, const CollectingSink& want) {
    EXPECT_EQ(got.tokens(), want.tokens());
    EXPECT_EQ(got.logprobs(), want.logprobs());
    EXPECT_FALSE(got.logprobs().empty());
  }

  InProcessWorker worker_;
  PolicyKind policy_ = PolicyKind::kWave;
  int num_cold_ = 0;
};

TEST_F(SparsePrefillTest, IsNotExact) {
  const auto prompt = Tokens(1500, 3);
  const auto sparse = RunCold(prompt, 4);
  const auto exact = Run(Request(prompt, 4, "exact", PrefillKind::kExact));
  EXPECT_NE(sparse->logprobs(), exact->logprobs());
}

TEST_F(SparsePrefillTest, SharesNoKvWithExactPrompts) {
  const auto prompt = Tokens(1500, 3);
  const auto exact = Run(Request(prompt, 4, "both", PrefillKind::kExact));
  const auto sparse = Run(Request(prompt, 4, "both"));
  EXPECT_EQ(sparse->Wait().cached_tokens, 0);
  ExpectSame(*sparse, *RunCold(prompt, 4));
  const auto again = Run(Request(prompt, 4, "both", PrefillKind::kExact));
  EXPECT_GT(again->Wait().cached_tokens, 1400);
  ExpectSame(*again, *exact);
}

// Of such a prompt no row would choose: what is found is exact, and is left to exact ones.
TEST_F(SparsePrefillTest, AShortPromptIsExact) {
  const auto prompt = Tokens(kDenseBefore, 3);
  const auto sparse = Run(Request(prompt, 4, "short"));
  const auto exact = Run(Request(prompt, 4, "short", PrefillKind::kExact));
  EXPECT_GT(exact->Wait().cached_tokens, 200);
  ExpectSame(*exact, *sparse);
}

// Lengths around ends of units; what goes on behind a prompt finds its whole units alone.
TEST_F(SparsePrefillTest, WhatIsFoundChangesNothing) {
  for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull}) {
    policy_ = policy;
    for (const int64_t length : {1000, 1027, 1028, 1029, 1100, 3300}) {
      SCOPED_TRACE(testing::Message() << PolicyName(policy) << ", " << length << " tokens");
      const std::string salt = std::string(PolicyName(policy)) + std::to_string(length);
      const auto prompt = Tokens(length, 5);
      const auto first = Run(Request(prompt, 3, salt));
      EXPECT_EQ(first->Wait().cached_tokens, 0);
      const auto again = Run(Request(prompt, 3, salt));
      EXPECT_GE(again->Wait().cached_tokens, (length - kAlways) / 64 * 64);
      ExpectSame(*again, *first);
      auto longer = prompt;
      const auto more = Tokens(333, 6);
      longer.insert(longer.end(), more.begin(), more.end());
      const auto behind = Run(Request(longer, 3, salt));
      EXPECT_EQ(behind->Wait().cached_tokens, (length - kSinkTokens) / 64 * 64);
      ExpectSame(*behind, *RunCold(longer, 3));
    }
  }
}

// The prompts are read at once: together, or one beside the other.
TEST_F(SparsePrefillTest, OthersBesideItChangeNothing) {
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::shared_ptr<CollectingSink>> alone, together;
  for (const int64_t length : {700, 500, 1000, 450}) {
    prompts.push_back(Tokens(length, static_cast<uint64_t>(length)));
    alone.push_back(RunCold(prompts.back(), 5));
  }
  for (const auto& prompt : prompts) {
    together.push_back(worker_.Submit(Request(prompt, 5, "together")));
    worker_.Submit(Request(Tokens(333, 9), 5, "together", PrefillKind::kExact));
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_TRUE(together[i]->Wait().status.ok());
    ExpectSame(*together[i], *alone[i]);
  }
}

TEST_F(SparsePrefillTest, PassesOfAnySizeChangeNothing) {
  const auto prompt = Tokens(2500, 3);
  const auto want = RunCold(prompt, 5);
  // Never more than the least of a pass.
  InProcessWorkerOptions options = SmallModel();
  options.inter_token_target = absl::Nanoseconds(1);
  InProcessWorker other(options);
  const auto got = other.Submit(Request(prompt, 5, "small passes"));
  EXPECT_TRUE(got->Wait().status.ok());
  ExpectSame(*got, *want);
}

// The log-probabilities of the prompt, and the token behind it, are of the prompt as it is
// computed.
TEST_F(SparsePrefillTest, MeasuresAPrompt) {
  const auto prompt = Tokens(1100, 3);
  const auto plain = RunCold(prompt, 3);
  const auto measure = [&](PrefillKind prefill) {
    auto request = Request(prompt, 3, "measured", prefill);
    request.num_prompt_logprobs = 0;
    return Run(std::move(request));
  };
  const auto sparse = measure(PrefillKind::kSparse), exact = measure(PrefillKind::kExact);
  const auto of_prompt = static_cast<int64_t>(prompt.size()) - 1;
  const std::vector<float> all = sparse->logprobs();
  ASSERT_EQ(std::ssize(all), of_prompt + 3);
  EXPECT_EQ(std::vector<float>(all.begin() + of_prompt, all.end()), plain->logprobs());
  const auto begin = [&](const auto& sink) {
    const std::vector<float> of_sink = sink->logprobs();
    return std::vector<float>(of_sink.begin(), of_sink.begin() + kDenseBefore - 1);
  };
  EXPECT_EQ(begin(sparse), begin(exact));
  EXPECT_NE(sparse->logprobs(), exact->logprobs());
}

TEST_F(SparsePrefillTest, AConversationGoesOnWithWhatWasGenerated) {
  for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull}) {
    policy_ = policy;
    std::vector<std::vector<float>> held;
    for (const std::string salt : {"held", "held again"}) {
      auto text = Tokens(1100, 3);
      for (uint64_t turn = 0; turn < 4; ++turn) {
        auto request = Request(text, 90, std::string(PolicyName(policy)) + salt);
        request.reuse = KvReuse::kGenerated;
        const auto sink = Run(std::move(request));
        if (turn > 0) {
          EXPECT_EQ(sink->Wait().prompt_tokens - sink->Wait().cached_tokens, 75 + kAlways);
        }
        held.push_back(sink->logprobs());
        const auto answer = sink->tokens(), user = Tokens(75, 50 + turn);
        text.insert(text.end(), answer.begin(), answer.end());
        text.insert(text.end(), user.begin(), user.end());
      }
    }
    for (size_t turn = 0; turn < 4; ++turn) EXPECT_EQ(held[turn], held[turn + 4]);
  }
}

TEST_F(SparsePrefillTest, IsRefusedWithStreaming) {
  policy_ = PolicyKind::kStreaming;
  const absl::Status refused =
      worker_.engine().Submit(Request(Tokens(1000, 3), 3, ""), std::make_shared<CollectingSink>());
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
}

}  // namespace
}  // namespace retroinfer
