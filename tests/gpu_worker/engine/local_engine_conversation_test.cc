// What a conversation's next turn finds: all that the last one had, generated tokens included.
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

constexpr int64_t kDenseBelow = 2048;

InProcessWorkerOptions SmallModel() {
  InProcessWorkerOptions options = SmallWorker(20480);
  options.wave_index.dense_below = kDenseBelow;
  return options;
}

class ConversationTest : public testing::Test {
 protected:
  ConversationTest() : worker_(SmallModel()) {}

  std::vector<int32_t> Tokens(int64_t count, uint64_t seed) {
    return RandomPrompt(count, worker_.config().vocab_size, seed);
  }
  GenerationRequest Request(std::vector<int32_t> prompt, int32_t max_tokens) {
    GenerationRequest request = worker_.Greedy(std::move(prompt), max_tokens, policy_);
    request.cache_salt = salt_;
    request.reuse = reuse_;
    request.sampling.num_logprobs = 0;
    return request;
  }
  std::shared_ptr<CollectingSink> Run(GenerationRequest request) {
    auto sink = worker_.Submit(std::move(request));
    EXPECT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
    return sink;
  }
  // The next turn: the conversation so far, then `added` tokens of the user's. Returns how many
  // tokens were computed.
  int64_t Turn(int64_t added, int32_t max_tokens) {
    const std::vector<int32_t> user = Tokens(added, ++seed_);
    text_.insert(text_.end(), user.begin(), user.end());
    last_ = Run(Request(text_, max_tokens));
    const std::vector<int32_t> answer = last_->tokens();
    text_.insert(text_.end(), answer.begin(), answer.end());
    return last_->Wait().prompt_tokens - last_->Wait().cached_tokens;
  }

  InProcessWorker worker_;
  PolicyKind policy_ = PolicyKind::kWave;
  KvReuse reuse_ = KvReuse::kGenerated;
  std::string salt_;
  uint64_t seed_ = 0;
  std::vector<int32_t> text_;  // the conversation so far
  std::shared_ptr<CollectingSink> last_;
};

// The sink, and the answer's last token, which has no KV yet.
constexpr int64_t kAlways = kSinkTokens + 1;

TEST_F(ConversationTest, ATurnComputesItsNewTokensAlone) {
  for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull}) {
    SCOPED_TRACE(std::string(PolicyName(policy)));
    policy_ = policy;
    salt_ = std::string(PolicyName(policy));
    text_.clear();
    // Short, then with segments of generated tokens, then over several multiples of 8192.
    EXPECT_EQ(Turn(500, 90), 500);
    EXPECT_EQ(Turn(30, 100), 30 + kAlways);
    EXPECT_EQ(Turn(700, 10), 700 + kAlways);
    EXPECT_EQ(Turn(100, 1500), 100 + kAlways);
    EXPECT_EQ(Turn(40, 1200), 40 + kAlways);
    EXPECT_EQ(Turn(3000, 100), 3000 + kAlways);
    EXPECT_EQ(Turn(2500, 100), 2500 + kAlways);
    for (int turn = 0; turn < 6; ++turn) EXPECT_EQ(Turn(900, 150), 900 + kAlways) << turn;
    EXPECT_EQ(Turn(20, 20), 20 + kAlways);
    EXPECT_GT(std::ssize(text_), 15000);
  }
  EXPECT_TRUE(worker_.WaitUntilIdle());
  EXPECT_EQ(worker_.store().free_pages(), worker_.store().arena_pages());
}

TEST_F(ConversationTest, ATurnThatIsAskedForAgainGetsTheSameTokens) {
  Turn(2500, 400);
  const std::vector<int32_t> before = text_;
  Turn(200, 50);
  const auto first = last_;
  EXPECT_GT(first->Wait().cached_generated_tokens, 300);
  text_ = before;
  --seed_;
  Turn(200, 50);
  EXPECT_EQ(last_->tokens(), first->tokens());
  EXPECT_EQ(last_->logprobs(), first->logprobs());
}

TEST_F(ConversationTest, AConversationThatIsHeldAgainGetsTheSameTokens) {
  const auto hold = [&](std::string salt) {
    salt_ = std::move(salt);
    text_.clear();
    seed_ = 0;
    std::vector<int32_t> tokens;
    for (const int64_t added : {1800, 70, 900, 300, 30}) {
      Turn(added, 250);
      const std::vector<int32_t> answer = last_->tokens();
      tokens.insert(tokens.end(), answer.begin(), answer.end());
    }
    return tokens;
  };
  EXPECT_EQ(hold("one"), hold("two"));
}

TEST_F(ConversationTest, WithExactKvAnAnswerIsComputedAgain) {
  reuse_ = KvReuse::kExact;
  Turn(2500, 400);
  EXPECT_EQ(Turn(200, 50), 200 + 400 + kSinkTokens);
  EXPECT_EQ(last_->Wait().cached_generated_tokens, 0);
  // Nor does a request that would read generated KV find any.
  reuse_ = KvReuse::kGenerated;
  EXPECT_EQ(Turn(100, 50), 100 + 50 + kSinkTokens);
}

TEST_F(ConversationTest, ExactKvIsFoundBesideGeneratedKv) {
  std::vector<int32_t> prompt = Tokens(2500, 99);
  Run(Request(prompt, 400));
  reuse_ = KvReuse::kExact;
  const auto warm = Run(Request(prompt, 60));
  EXPECT_GT(warm->Wait().cached_tokens, 2400);
  salt_ = "cold";
  const auto cold = Run(Request(prompt, 60));
  EXPECT_EQ(cold->Wait().cached_tokens, 0);
  EXPECT_EQ(warm->tokens(), cold->tokens());
  EXPECT_EQ(warm->logprobs(), cold->logprobs());
}

TEST_F(ConversationTest, OtherSettingsFindNoGeneratedKv) {
  Turn(1000, 300);
  const std::vector<int32_t> text = text_;
  policy_ = PolicyKind::kFull;
  const auto full = Run(Request(text, 5));
  EXPECT_EQ(full->Wait().cached_tokens, 960);  // whole blocks of the prompt
  policy_ = PolicyKind::kWave;
  GenerationRequest wider = Request(text, 5);
  wider.attention.retrieval_ratio = 0.5;
  EXPECT_EQ(Run(std::move(wider))->Wait().cached_generated_tokens, 0);
  // The conversation goes on as it was held, though others have computed its text.
  const auto same = Run(Request(text, 5));
  EXPECT_EQ(same->Wait().cached_tokens, 1299 - int64_t{kSinkTokens});
  EXPECT_EQ(same->Wait().cached_generated_tokens, 1299 - 964);
}

TEST_F(ConversationTest, AnAnswerThatIsCutOffIsFoundAsFarAsItCame) {
  const std::vector<int32_t> prompt = Tokens(1500, 5);
  const GenerationRequest request = Request(prompt, 5000);
  const auto sink = worker_.Submit(request);
  while (sink->tokens().size() < 200) absl::SleepFor(absl::Milliseconds(1));
  worker_.engine().Abort(request.request_id);
  EXPECT_EQ(sink->Wait().reason, FinishReason::kCancelled);
  text_ = prompt;
  const std::vector<int32_t> answer = sink->tokens();
  text_.insert(text_.end(), answer.begin(), answer.end());
  EXPECT_EQ(Turn(50, 5), 50 + kAlways);
}

TEST_F(ConversationTest, APromptIsFoundWhileItsFirstRequestStillDecodes) {
  const std::vector<int32_t> prompt = Tokens(1500, 6);
  const GenerationRequest request = Request(prompt, 5000);
  const auto sink = worker_.Submit(request);
  while (sink->tokens().size() < 2) absl::SleepFor(absl::Milliseconds(1));
  std::vector<int32_t> other = prompt;
  other.push_back(1);
  EXPECT_GE(Run(Request(other, 5))->Wait().cached_tokens, 1500 - 64 - int64_t{kSinkTokens});
  worker_.engine().Abort(request.request_id);
  sink->Wait();
}

TEST_F(ConversationTest, BranchesOfAConversationDoNotMeet) {
  Turn(2400, 300);
  const std::vector<int32_t> root = text_;
  std::vector<std::vector<int32_t>> answers;
  for (const uint64_t branch : {100, 200}) {
    text_ = root;
    seed_ = branch;
    EXPECT_EQ(Turn(100, 200), 100 + kAlways);
    EXPECT_EQ(Turn(50, 100), 50 + kAlways);
    answers.push_back(last_->tokens());
  }
  text_ = root;
  seed_ = 100;
  Turn(100, 200);
  Turn(50, 100);
  EXPECT_EQ(last_->tokens(), answers[0]);
}

TEST_F(ConversationTest, WithoutRoomNothingIsSavedAndNothingFails) {
  InProcessWorkerOptions options = SmallModel();
  options.max_model_len = 4096;
  options.arena_bytes = size_t{8} << 20;  // a context's segments take nearly all of it
  InProcessWorker small(options);
  for (int round = 0; round < 4; ++round) {
    std::vector<int32_t> prompt =
        RandomPrompt(3500, small.config().vocab_size, static_cast<uint64_t>(round));
    GenerationRequest request = small.Greedy(std::move(prompt), 300, PolicyKind::kWave);
    request.reuse = KvReuse::kGenerated;
    const auto sink = small.Submit(std::move(request));
    EXPECT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
  }
  EXPECT_TRUE(small.WaitUntilIdle());
  EXPECT_EQ(small.store().free_pages(), small.store().arena_pages());
}

}  // namespace
}  // namespace retroinfer
