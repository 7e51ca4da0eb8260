// Requests of all kinds get from N ranks what they get from one, bit for bit, and all ranks have
// the same in their arenas.
#include "gpu_worker/ranks/rank_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <random>
#include <string>

#include "tests/support/commanded_options.h"
#include "tests/support/ranks_in_threads.h"
#include "tests/support/suspending.h"
#include "text/constraint/constraint_compiler.h"
#include "text/constraint/token_vocabulary.h"

namespace retroinfer {
namespace {

using namespace test_support;

constexpr PolicyKind kAll[] = {PolicyKind::kFull, PolicyKind::kWave, PolicyKind::kStreaming};

// What a request gave, to the last bit.
struct Gave {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<float> measured;
  std::string text;
  friend bool operator==(const Gave&, const Gave&) = default;
};

Gave WhatCame(CollectingSink& sink) {
  EXPECT_TRUE(sink.Wait().status.ok()) << sink.Wait().status;
  Gave gave{.tokens = sink.tokens(), .logprobs = sink.logprobs(), .text = sink.text()};
  for (const auto& [continuation, tokens] : sink.measured()) {
    for (const OutputToken& token : tokens) gave.measured.push_back(token.logprob);
  }
  return gave;
}

// What a run has done beside tokens.
struct Done {
  EngineStats stats;
  size_t commands = 0;
};

// What a test does with the engine of rank 0.
class Session {
 public:
  explicit Session(InProcessWorker& worker) : worker_(worker) {}

  InProcessWorker& worker() { return worker_; }
  GenerationRequest Request(int64_t prompt_tokens, int32_t max_tokens, uint64_t seed,
                            PolicyKind policy) {
    GenerationRequest request = worker_.Greedy(
        RandomPrompt(prompt_tokens, worker_.config().vocab_size, seed), max_tokens, policy);
    request.sampling.num_logprobs = 2;
    return request;
  }
  void Run(std::vector<GenerationRequest> requests) {
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (GenerationRequest& request : requests) {
      sinks.push_back(worker_.Submit(std::move(request)));
    }
    for (const auto& sink : sinks) gave_.push_back(WhatCame(*sink));
    EXPECT_TRUE(worker_.WaitUntilIdle());
  }
  const std::vector<Gave>& gave() const { return gave_; }

 private:
  InProcessWorker& worker_;
  std::vector<Gave> gave_;
};

// Suspends now and then whoever can be suspended, or feeds all drafts that there is room for.
struct Meddling {
  uint64_t suspend_one_in = 0;
  bool feeds_all_drafts = false;
  std::mt19937_64 random{17};

  void operator()(const SchedulerInput& input, StepPlan& plan) {
    int64_t free = input.free_suspended_blocks;
    for (const RequestDescription& request : input.requests) {
      if (suspend_one_in == 0 || request.suspended_blocks > free) continue;
      if (!MaySuspend(plan, request) || random() % suspend_one_in != 0) continue;
      free -= request.suspended_blocks;
      plan.suspend.push_back(request.id);
    }
    if (feeds_all_drafts) FeedDrafts(input, plan);
  }
  static void FeedDrafts(const SchedulerInput& input, StepPlan& plan) {
    const auto max_batch = static_cast<size_t>(CommandedOptions().max_batch);
    for (const RequestDescription& request : input.requests) {
      if (request.measures_given || request.draft_chance <= 0) continue;
      const auto rows = std::count(plan.decode.begin(), plan.decode.end(), request.id);
      if (rows == 0) continue;
      const auto missing = static_cast<size_t>(1 + request.more_rows - rows);
      plan.decode.insert(plan.decode.end(), std::min(missing, max_batch - plan.decode.size()),
                         request.id);
    }
  }
};

class RankGroupTest : public testing::Test {
 protected:
  // Runs `session` on one rank and on several, and compares.
  EngineStats Compare(const std::function<void(Session&)>& session) {
    std::vector<Gave> of_one;
    {
      RanksInThreads one(Options(), 1);
      Session run(one.worker());
      session(run);
      of_one = run.gave();
    }
    RanksInThreads ranks(Options(), num_ranks_);
    Session run(ranks.worker());
    session(run);
    const EngineStats stats = ranks.worker().engine().stats();
    num_written_ = ranks.num_written();
    EXPECT_TRUE(ranks.End().ok()) << ranks.End();
    EXPECT_EQ(run.gave().size(), of_one.size());
    for (size_t i = 0; i < of_one.size(); ++i) {
      EXPECT_TRUE(run.gave()[i] == of_one[i]) << "request " << i << " differs";
      EXPECT_FALSE(of_one[i].measured.empty());
    }
    num_pages_ = ranks.NumPagesAlike();
    return stats;
  }
  InProcessWorkerOptions Options() const {
    InProcessWorkerOptions options = CommandedOptions();
    options.arena_bytes = size_t{64} << 20;
    options.drafts = true;
    if (!model_folder_.empty()) {
      options.model_folder = model_folder_;
      options.context_length = 0;
      options.max_model_len = 4096;
    }
    options.on_plan =
        Meddling{.suspend_one_in = suspend_one_in_, .feeds_all_drafts = feeds_all_drafts_};
    return options;
  }

  int num_ranks_ = 2;
  std::filesystem::path model_folder_;  // empty: that of CommandedOptions()
  uint64_t suspend_one_in_ = 0;
  bool feeds_all_drafts_ = false;
  size_t num_written_ = 0;
  size_t num_pages_ = 0;  // of the arena, the same on all ranks
};

TEST_F(RankGroupTest, PromptsOfAllPoliciesAndWhatFollowsThem) {
  Compare([](Session& session) {
    std::vector<GenerationRequest> requests;
    for (uint64_t i = 0; i < 6; ++i) {
      requests.push_back(session.Request(200 + 900 * static_cast<int64_t>(i), 40, i, kAll[i % 3]));
    }
    requests[1].sampling.temperature = 0.8f;
    requests[1].sampling.seed = 11;
    requests[3].sampling.frequency_penalty = 0.5f;
    requests[3].sampling.repetition_penalty = 1.2f;
    requests[4].sampling.logit_bias = {{3, 5.0f}, {4, -100.0f}};
    requests[4].sampling.temperature = 0.5f;
    requests[5].sampling.min_tokens = 20;
    requests[5].sampling.stop_token_ids = {5, 6};
    requests[5].sampling.temperature = 2;
    session.Run(std::move(requests));
  });
  EXPECT_GT(num_written_, 0u);
  EXPECT_GT(num_pages_, 0u);
}

TEST_F(RankGroupTest, WhatIsReadAgain) {
  num_ranks_ = 4;
  const EngineStats stats = Compare([](Session& session) {
    for (const PolicyKind policy : {PolicyKind::kWave, PolicyKind::kFull}) {
      GenerationRequest first = session.Request(3400, 90, 1, policy);
      first.reuse = KvReuse::kGenerated;
      std::vector<GenerationRequest> turns;
      for (uint64_t i = 0; i < 2; ++i) {
        GenerationRequest turn = first;
        turn.request_id = std::string(PolicyName(policy)) + std::to_string(i);
        const auto more = RandomPrompt(30, session.worker().config().vocab_size, 50 + i);
        turn.prompt.insert(turn.prompt.end(), more.begin(), more.end());
        turns.push_back(std::move(turn));
      }
      session.Run({std::move(first)});
      session.Run(std::move(turns));
    }
  });
  EXPECT_GT(stats.prefix_cache_hits_tokens, 0u);
  EXPECT_GT(num_pages_, 100u);
}

TEST_F(RankGroupTest, SequencesThatAreSuspended) {
  suspend_one_in_ = 20;
  const EngineStats stats = Compare([](Session& session) {
    std::vector<GenerationRequest> requests;
    for (uint64_t i = 0; i < 6; ++i) {
      requests.push_back(session.Request(1000 + 400 * static_cast<int64_t>(i), 80, i, kAll[i % 3]));
      requests.back().sampling.temperature = 1;
      requests.back().sampling.seed = i;
    }
    session.Run(std::move(requests));
  });
  EXPECT_GT(stats.preemptions, 3u);
}

TEST_F(RankGroupTest, WhatIsMeasured) {
  Compare([](Session& session) {
    std::vector<GenerationRequest> requests;
    for (uint64_t i = 0; i < 4; ++i) {
      GenerationRequest request =
          session.Request(600 + 500 * static_cast<int64_t>(i), 12, i, kAll[i % 2]);
      const auto tokens = [&](int64_t length, uint64_t seed) {
        return RandomPrompt(length, session.worker().config().vocab_size, seed);
      };
      request.continuations = {tokens(12, 7), tokens(1, 8), tokens(5, 9)};
      requests.push_back(std::move(request));
    }
    GenerationRequest both = session.Request(700, 10, 10, PolicyKind::kWave);
    both.num_prompt_logprobs = 0;
    requests.push_back(both);
    session.Run(std::move(requests));
  });
}

// Followers are told which drafts were drawn.
TEST_F(RankGroupTest, DraftsAreAcceptedAndRejected) {
  num_ranks_ = 4;
  suspend_one_in_ = 50;
  feeds_all_drafts_ = true;
  const EngineStats stats = Compare([](Session& session) {
    for (const PolicyKind policy : kAll) {
      GenerationRequest greedy = session.Request(2100, 300, 3, policy);
      GenerationRequest drawn = session.Request(500, 200, 4, policy);
      drawn.sampling.temperature = 0.7f;
      drawn.sampling.presence_penalty = 0.2f;
      for (int32_t token = 40; token < 44; ++token) drawn.sampling.logit_bias[token] = 30;
      session.Run({std::move(greedy), std::move(drawn)});
    }
  });
  EXPECT_GT(stats.drafts_accepted, 20u);
  EXPECT_GT(stats.drafts_rejected, 5u);
  EXPECT_GT(num_pages_, 100u);
}

TEST_F(RankGroupTest, AnswersOfUnnamedLength) {
  Compare([](Session& session) {
    GenerationRequest request = session.Request(1500, 2300, 4, PolicyKind::kWave);
    request.open_ended = true;
    session.Run({std::move(request)});
  });
  EXPECT_GT(num_written_, 0u);
}

// A constraint and stop strings are rank 0's alone.
TEST_F(RankGroupTest, ConstraintsAndStopStrings) {
  model_folder_ = std::filesystem::path(RETROINFER_SOURCE_DIR) / "models/needle";
  Compare([](Session& session) {
    constraint::ConstraintCompiler compiler(constraint::TokenVocabulary::Create(
        session.worker().tokenizer(), session.worker().generation().eos_token_ids,
        static_cast<int32_t>(session.worker().config().vocab_size)));
    auto compiled = compiler.Compile(
        {.form = constraint::ConstraintSpec::Form::kRegex, .text = "(yes|no), [0-9]{5,9}"});
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    GenerationRequest constrained = session.Request(900, 30, 5, PolicyKind::kWave);
    constrained.sampling.constraint = *compiled;
    constrained.sampling.ignore_eos = false;
    GenerationRequest stopped = session.Request(700, 60, 6, PolicyKind::kFull);
    stopped.sampling.temperature = 1;
    stopped.sampling.stop = {"a", "e"};
    session.Run({std::move(constrained), std::move(stopped)});
    EXPECT_THAT(session.gave().front().text, testing::MatchesRegex("(yes|no), [0-9]*"));
  });
}

}  // namespace
}  // namespace retroinfer
