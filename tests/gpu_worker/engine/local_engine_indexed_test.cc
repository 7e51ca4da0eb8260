// Prompts whose end is fed to decode steps: what they answer is what these steps give, in any
// company and whatever is found in the store, and exact prompts notice nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gpu_worker/engine/local_engine.h"
#include "tests/support/in_process_worker.h"
#include "tests/support/small_worker.h"
#include "tests/support/suspending.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;
using test_support::SmallWorker;

using Tokens = std::vector<int32_t>;

constexpr int64_t kDenseBelow = 2048;
constexpr int32_t kMaxBatch = 8;

// Where the head of a prompt ends: the rule as a client reads it.
int64_t HeadOf(int64_t prompt_tokens, int64_t tail_tokens) {
  return kSinkTokens + (prompt_tokens - tail_tokens - kSinkTokens) / 64 * 64;
}

// By how many rows share what they retrieve (AttentionSettings::tail_run).
class IndexedPrefillTest : public testing::TestWithParam<int32_t> {
 protected:
  // Of a step: those of a run have room beside all others.
  static int64_t MostRows() { return kMaxBatch + (GetParam() > 1 ? GetParam() : 0); }

  explicit IndexedPrefillTest(InProcessWorkerOptions options = SmallModel())
      : worker_(Observed(std::move(options))) {}

  static InProcessWorkerOptions SmallModel() {
    InProcessWorkerOptions options = SmallWorker();
    options.max_batch = kMaxBatch;
    options.tail_run = GetParam();
    options.wave_index.dense_below = kDenseBelow;
    options.preemption = true;
    return options;
  }
  InProcessWorkerOptions Observed(InProcessWorkerOptions options) {
    options.on_plan = [this](const SchedulerInput& input, StepPlan& plan) { OnPlan(input, plan); };
    return options;
  }
  void OnPlan(const SchedulerInput& input, StepPlan& plan) {
    {
      const absl::MutexLock lock(&works_mutex_);
      planned_ += plan.step;
      for (const MeasuredWork& measured : input.measured) measured_ += measured.work;
    }
    for (const RequestDescription& request : input.requests) {
      const auto rows = std::ranges::count(plan.decode, request.id);
      if (request.phase != RequestPhase::kDecoding) continue;
      if (request.given_tokens > 0) most_rows_ = std::max<int64_t>(most_rows_, rows);
      const bool others_go_on = request.given_tokens > 0 || rows > 0 || !request.can_decode ||
                                std::ranges::count(plan.suspend, request.id) > 0;
      if (!plan.decode.empty() && !others_go_on) ++num_left_out_;
    }
    if (holds_tails_) HoldTails(input, plan);
    if (num_awaited_ > 0) {
      const auto ready =
          std::ranges::count(input.requests, RequestPhase::kReady, &RequestDescription::phase);
      if (ready < num_awaited_) {
        plan.begin.clear();
      } else {
        num_awaited_ = 0;
      }
    }
    if (one_in_ == 0) return;
    int64_t free = input.free_suspended_blocks;
    for (const RequestDescription& request : input.requests) {
      if (request.given_tokens == 0 || !test_support::MaySuspend(plan, request)) continue;
      if (request.suspended_blocks > free || ++num_chances_ % one_in_ != 0) continue;
      free -= request.suspended_blocks;
      plan.suspend.push_back(request.id);
    }
  }

  // Takes the rows of prompts' ends but a run of each out of the plan, and then all.
  void HoldTails(const SchedulerInput& input, StepPlan& plan) {
    for (const RequestDescription& request : input.requests) {
      if (request.given_tokens == 0 || request.phase != RequestPhase::kDecoding) continue;
      std::erase(plan.decode, request.id);
      if (std::exchange(num_fed_, num_fed_ + 1) < 3) {
        const int64_t rows = std::min(request.rows_of_run, request.given_tokens);
        plan.decode.insert(plan.decode.end(), static_cast<size_t>(rows), request.id);
      } else if (!is_held_.HasBeenNotified()) {
        is_held_.Notify();
      }
    }
  }

  Tokens Text(int64_t count, uint64_t seed) {
    return RandomPrompt(count, worker_.config().vocab_size, seed);
  }
  // The beginning of one text, and `tail` tokens of another.
  Tokens Prompt(int64_t length, int64_t tail, uint64_t question = 100) {
    Tokens prompt = Text(length - tail, 1);
    const Tokens more = Text(tail, question);
    prompt.insert(prompt.end(), more.begin(), more.end());
    return prompt;
  }
  GenerationRequest Request(Tokens prompt, int32_t tail, int32_t max_tokens, std::string salt,
                            PrefillKind prefill = PrefillKind::kIndexed) {
    GenerationRequest request = worker_.Greedy(std::move(prompt), max_tokens);
    request.attention.prefill = prefill;
    request.attention.tail_tokens = tail;
    request.cache_salt = std::move(salt);
    request.sampling.num_logprobs = 1;
    return request;
  }
  std::shared_ptr<CollectingSink> Submit(GenerationRequest request) {
    request.request_id = absl::StrCat("request-", ++num_submitted_);
    return worker_.Submit(std::move(request));
  }
  std::shared_ptr<CollectingSink> Run(GenerationRequest request) {
    auto sink = Submit(std::move(request));
    EXPECT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
    return sink;
  }
  // Of tokens that decode steps measure behind the prompt.
  std::vector<float> Measured(Tokens prompt, Tokens continuation) {
    GenerationRequest request = Request(std::move(prompt), 1, 0, "", PrefillKind::kExact);
    request.shares_kv = false;
    request.sampling.max_tokens = static_cast<int32_t>(continuation.size());
    request.continuations = {std::move(continuation)};
    return Run(std::move(request))->logprobs();
  }
  static void ExpectSame(const CollectingSink& got, const CollectingSink& want) {
    EXPECT_EQ(got.tokens(), want.tokens());
    EXPECT_EQ(got.logprobs(), want.logprobs());
    EXPECT_FALSE(got.logprobs().empty());
  }

  std::atomic<int64_t> most_rows_ = 0;     // of a prompt's end in one step
  std::atomic<int64_t> num_left_out_ = 0;  // steps without a row of a request that could have one
  std::atomic<int64_t> one_in_ = 0;        // chances to suspend a prompt's end
  std::atomic<int64_t> num_awaited_ = 0;   // no group begins before so many prompts can
  std::atomic<bool> holds_tails_ = false;
  absl::Mutex works_mutex_;
  Work planned_ ABSL_GUARDED_BY(works_mutex_);  // steps
  Work measured_ ABSL_GUARDED_BY(works_mutex_);
  absl::Notification is_held_;  // a prompt's end has had three rows, and gets no more
  int64_t num_chances_ = 0;     // the engine's thread
  int64_t num_fed_ = 0;
  int num_submitted_ = 0;
  InProcessWorker worker_;
};

// With 1,500 tokens, segments go live before the first token is drawn.
TEST_P(IndexedPrefillTest, AnswersAsGivenTokensBehindTheHeadAreMeasured) {
  if (GetParam() > 1) GTEST_SKIP() << "what is measured retrieves for itself";
  for (const int32_t tail : {1, 20, 64, 300, 1500}) {
    SCOPED_TRACE(tail);
    const Tokens prompt = Prompt(4300 + tail, tail);
    const auto sink = Run(Request(prompt, tail, 5, absl::StrCat("first ", tail)));
    EXPECT_EQ(sink->Wait().prompt_tokens, std::ssize(prompt));
    EXPECT_EQ(sink->Wait().completion_tokens, 5);
    const auto head = static_cast<ptrdiff_t>(HeadOf(std::ssize(prompt), tail));
    Tokens given(prompt.begin() + head, prompt.end());
    const Tokens answer = sink->tokens();
    given.insert(given.end(), answer.begin(), answer.end());
    const std::vector<float> want = Measured(Tokens(prompt.begin(), prompt.begin() + head), given);
    ASSERT_EQ(want.size(), given.size());
    EXPECT_EQ(sink->logprobs(), std::vector<float>(want.end() - 5, want.end()));
  }
  EXPECT_EQ(most_rows_, kMaxBatch);
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

// Where rows retrieve all there is, what they share is all there is, whoever shares it.
TEST_P(IndexedPrefillTest, RowsThatRetrieveAllAreExact) {
  for (const int32_t tail : {9, 100, 1500}) {
    SCOPED_TRACE(tail);
    GenerationRequest request = Request(Prompt(4300 + tail, tail), tail, 4, "all");
    request.attention.retrieval_ratio = 1;
    request.attention.estimation_ratio = 0;
    const auto indexed = Run(request);
    request.attention.prefill = PrefillKind::kExact;
    request.cache_salt = "exact";
    const auto exact = Run(request);
    EXPECT_EQ(indexed->tokens(), exact->tokens());
    ASSERT_EQ(indexed->logprobs().size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(indexed->logprobs()[i], exact->logprobs()[i], 2e-2) << i;
    }
  }
}

// Rows that share attend to more, and steps that others' rows take part in change nothing.
TEST_P(IndexedPrefillTest, RowsThatShareAnswerOtherwise) {
  const Tokens prompt = Prompt(4400, 100);
  const auto here = Run(Request(prompt, 100, 4, "here"));
  InProcessWorkerOptions options = SmallModel();
  options.tail_run = GetParam() == 1 ? 4 : 1;
  InProcessWorker other(options);
  const auto there = other.Submit(Request(prompt, 100, 4, "here"));
  ASSERT_TRUE(there->Wait().status.ok());
  EXPECT_NE(there->logprobs(), here->logprobs());
}

TEST_P(IndexedPrefillTest, IsNotExact) {
  const Tokens prompt = Prompt(4400, 100);
  const auto indexed = Run(Request(prompt, 100, 4, "indexed"));
  const auto exact = Run(Request(prompt, 100, 4, "exact", PrefillKind::kExact));
  EXPECT_NE(indexed->logprobs(), exact->logprobs());
}

// Of a head that is cached, only the window is read, and the sink computed.
TEST_P(IndexedPrefillTest, WhatIsFoundChangesNothing) {
  const Tokens prompt = Prompt(4400, 100), other = Prompt(4400, 100, 200);
  const int64_t head = HeadOf(4400, 100);
  const auto cold = Run(Request(prompt, 100, 4, "cold"));
  EXPECT_EQ(cold->Wait().cached_tokens, 0);
  const auto other_cold = Run(Request(other, 100, 4, "other cold"));
  Run(Request(other, 100, 4, "warm", PrefillKind::kExact));
  ASSERT_TRUE(worker_.WaitUntilIdle());
  const EngineStats before = worker_.engine().stats();
  const auto warm = Run(Request(prompt, 100, 4, "warm"));
  ASSERT_TRUE(worker_.WaitUntilIdle());
  const EngineStats after = worker_.engine().stats();
  EXPECT_EQ(warm->Wait().cached_tokens, head - kSinkTokens);
  ExpectSame(*warm, *cold);
  const auto window = static_cast<uint64_t>((head - kSinkTokens) % 1024);
  const auto token_values = static_cast<uint64_t>(
      2 * worker_.config().num_layers * worker_.config().num_kv_heads * worker_.config().head_dim);
  EXPECT_EQ(after.prefix_bytes_read - before.prefix_bytes_read, 2 * window * token_values);
  ExpectSame(*Run(Request(other, 100, 4, "warm")), *other_cold);
}

// What the scheduler expects of a step, and what its costs are learned from, are one kind of work.
TEST_P(IndexedPrefillTest, RowsOfTailsAreMeasuredAsTheyArePlanned) {
  const int64_t head = HeadOf(4400, 100);
  const auto given = static_cast<double>(4400 - head);
  Run(Request(Prompt(4400, 100), 100, 4, "one"));
  ASSERT_TRUE(worker_.WaitUntilIdle());
  {
    const absl::MutexLock lock(&works_mutex_);
    EXPECT_EQ(planned_.tail_rows, given);
    EXPECT_EQ(measured_.tail_rows, given);
    EXPECT_EQ(measured_.step_rows, 3) << "the first token is drawn by the last row of the tail";
    EXPECT_EQ(planned_.cold_context, 0) << "its segments are its own";
  }
  Run(Request(Prompt(4400, 100, 7), 100, 4, "one"));
  ASSERT_TRUE(worker_.WaitUntilIdle());
  const absl::MutexLock lock(&works_mutex_);
  EXPECT_EQ(measured_.tail_rows, 2 * given);
  EXPECT_GE(measured_.tail_context, 2 * given * static_cast<double>(head));
  const auto cached = static_cast<double>((head - kSinkTokens) / 1024 * 1024);
  EXPECT_GE(measured_.cold_context, cached) << "one row of the first step at least";
  EXPECT_LE(measured_.cold_context, static_cast<double>(MostRows()) * cached)
      << "and no row of another step";
  EXPECT_EQ(planned_.tail_rows, measured_.tail_rows);
  EXPECT_EQ(planned_.tail_context, measured_.tail_context);
  EXPECT_EQ(planned_.cold_context, measured_.cold_context);
}

// Questions on one text, all of which wait for a lane: the text's window is read once for all.
TEST_P(IndexedPrefillTest, HeadsThatAreAlikeAreReadOnce) {
  constexpr uint64_t kQuestions = 3;
  const int64_t head = HeadOf(4400, 100);
  std::vector<std::shared_ptr<CollectingSink>> cold, warm;
  for (uint64_t i = 0; i < kQuestions; ++i) {
    const auto tail = static_cast<int32_t>(100 - 10 * i);
    cold.push_back(Run(Request(Prompt(4300 + tail, tail, i + 7), tail, 4, absl::StrCat(i))));
  }
  Run(Request(Prompt(4400, 100), 100, 4, "warm", PrefillKind::kExact));
  ASSERT_TRUE(worker_.WaitUntilIdle());
  const EngineStats before = worker_.engine().stats();
  num_awaited_ = kQuestions;
  for (uint64_t i = 0; i < kQuestions; ++i) {
    const auto tail = static_cast<int32_t>(100 - 10 * i);
    warm.push_back(Submit(Request(Prompt(4300 + tail, tail, i + 7), tail, 4, "warm")));
  }
  for (uint64_t i = 0; i < kQuestions; ++i) {
    ASSERT_TRUE(warm[i]->Wait().status.ok());
    EXPECT_EQ(warm[i]->Wait().cached_tokens, head - kSinkTokens);
    ExpectSame(*warm[i], *cold[i]);
  }
  const EngineStats after = worker_.engine().stats();
  const uint64_t read = after.prefix_bytes_read - before.prefix_bytes_read;
  EXPECT_GT(read, 0u);
  EXPECT_EQ(after.prefix_bytes_shared - before.prefix_bytes_shared, (kQuestions - 1) * read);
}

TEST_P(IndexedPrefillTest, ExactPromptsFindNothingOfTheTail) {
  const Tokens prompt = Prompt(4400, 300);
  const auto exact = Run(Request(prompt, 300, 4, "exact", PrefillKind::kExact));
  Run(Request(prompt, 300, 200, "both"));
  ASSERT_TRUE(worker_.WaitUntilIdle());
  const auto behind = Run(Request(prompt, 300, 4, "both", PrefillKind::kExact));
  EXPECT_EQ(behind->Wait().cached_tokens, HeadOf(4400, 300) - kSinkTokens);
  EXPECT_EQ(behind->Wait().cached_generated_tokens, 0);
  ExpectSame(*behind, *exact);
}

TEST_P(IndexedPrefillTest, AConversationGoesOnWithWhatWasGenerated) {
  std::vector<std::vector<float>> held;
  for (const std::string salt : {"held", "held again"}) {
    Tokens text = Prompt(4400, 100);
    for (uint64_t turn = 0; turn < 3; ++turn) {
      GenerationRequest request = Request(text, 100, 90, salt);
      request.reuse = KvReuse::kGenerated;
      const auto sink = Run(std::move(request));
      ASSERT_TRUE(worker_.WaitUntilIdle());
      if (turn > 0) {
        EXPECT_GT(sink->Wait().cached_generated_tokens, 0);
      }
      held.push_back(sink->logprobs());
      const Tokens answer = sink->tokens(), user = Text(75, 50 + turn);
      text.insert(text.end(), answer.begin(), answer.end());
      text.insert(text.end(), user.begin(), user.end());
    }
  }
  for (size_t turn = 0; turn < 3; ++turn) EXPECT_EQ(held[turn], held[turn + 3]);
}

// Penalties count what is in the prompt once, and the seed counts positions of the text.
TEST_P(IndexedPrefillTest, DrawsAlikeHoweverManyRowsAStepHas) {
  GenerationRequest request = Request(Prompt(4350, 90), 90, 30, "sampled");
  request.sampling.temperature = 1;
  request.sampling.seed = 7;
  request.sampling.frequency_penalty = 0.5f;
  request.sampling.repetition_penalty = 1.3f;
  request.sampling.min_tokens = 5;
  const auto together = Run(request);
  EXPECT_EQ(most_rows_, MostRows());
  // As many as a step that draws could not have.
  for (const int32_t max_batch : {1, 4 * kMaxSamplingAhead}) {
    InProcessWorkerOptions options = SmallModel();
    options.max_batch = max_batch;
    InProcessWorker other(options);
    const auto sink = other.Submit(request);
    ASSERT_TRUE(sink->Wait().status.ok());
    ExpectSame(*sink, *together);
  }
}

TEST_P(IndexedPrefillTest, SuspensionChangesNothing) {
  const GenerationRequest request = Request(Prompt(5500, 1200), 1200, 5, "kept");
  const auto kept = Run(request);
  one_in_ = 9;
  GenerationRequest again = request;
  again.cache_salt = "suspended";
  const auto suspended = Run(again);
  EXPECT_GT(suspended->Wait().num_suspensions, 3);
  ExpectSame(*suspended, *kept);
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

// Nobody who reads an answer is left out of a step for the rows of prompts' ends.
TEST_P(IndexedPrefillTest, OthersGoOnAndNoneChangesAnother) {
  const GenerationRequest stream = Request(Prompt(4200, 10), 10, 150, "", PrefillKind::kExact);
  const auto stream_alone = Run(stream);
  std::vector<GenerationRequest> questions;
  std::vector<std::shared_ptr<CollectingSink>> alone, together;
  for (uint64_t i = 0; i < 4; ++i) {
    const auto tail = static_cast<int32_t>(40 + 50 * i);
    questions.push_back(Request(Prompt(4300 + tail, tail, 300 + i), tail, 6, absl::StrCat(i)));
    alone.push_back(Run(questions.back()));
  }
  num_left_out_ = 0;
  const auto streaming = Submit(stream);
  for (GenerationRequest& question : questions) {
    question.cache_salt = "together";
    together.push_back(Submit(question));
  }
  for (size_t i = 0; i < questions.size(); ++i) {
    ASSERT_TRUE(together[i]->Wait().status.ok());
    ExpectSame(*together[i], *alone[i]);
  }
  ASSERT_TRUE(streaming->Wait().status.ok());
  ExpectSame(*streaming, *stream_alone);
  EXPECT_EQ(num_left_out_, 0);
}

TEST_P(IndexedPrefillTest, ProgressReachesTheWholePrompt) {
  GenerationRequest request = Request(Prompt(4400, 100), 100, 1, "told");
  request.return_progress = true;
  const auto sink = Run(std::move(request));
  ASSERT_FALSE(sink->progress().empty());
  EXPECT_EQ(sink->progress().back().total_tokens, 4400);
  EXPECT_EQ(sink->progress().back().processed_tokens, 4400);
  EXPECT_EQ(sink->Wait().completion_tokens, 1);
}

// A head without an index, a policy without one, and what is measured: exact prompts, as such.
TEST_P(IndexedPrefillTest, OthersAreExact) {
  const auto expect_exact = [&](GenerationRequest request, const std::string& what) {
    SCOPED_TRACE(what);
    request.cache_salt = what;
    const auto indexed = Run(request);
    request.attention.prefill = PrefillKind::kExact;
    const auto exact = Run(request);
    ExpectSame(*exact, *indexed);
  };
  const int64_t shortest = HeadOf(kDenseBelow + 64 + 63, 64);
  ASSERT_GE(shortest, kDenseBelow - 64);
  expect_exact(Request(Prompt(kDenseBelow + 40, 64), 64, 3, ""), "no index");
  GenerationRequest full = Request(Prompt(3000, 64), 64, 3, "");
  full.attention.policy = PolicyKind::kFull;
  expect_exact(full, "full");
  GenerationRequest measured = Request(Prompt(3000, 64), 64, 3, "");
  measured.num_prompt_logprobs = 0;
  expect_exact(measured, "measured");
}

TEST_P(IndexedPrefillTest, ATailOutOfBoundsIsRefused) {
  for (const int32_t tail : {0, -1, kMaxTailTokens + 1}) {
    const absl::Status refused = worker_.engine().Submit(Request(Text(3000, 3), tail, 3, ""),
                                                         std::make_shared<CollectingSink>());
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << tail << refused;
  }
  // One that the prompt does not have: all of it would be its end.
  const auto all = Run(Request(Text(3000, 3), kMaxTailTokens, 3, "all"));
  ExpectSame(*all, *Run(Request(Text(3000, 3), 1, 3, "exact", PrefillKind::kExact)));
}

TEST_P(IndexedPrefillTest, AnAbortedTailLeavesNothing) {
  GenerationRequest request = Request(Prompt(6300, 2000), 2000, 5, "aborted");
  holds_tails_ = true;
  request.request_id = "aborted";
  const auto sink = worker_.Submit(request);
  is_held_.WaitForNotification();
  EXPECT_TRUE(worker_.engine().Abort("aborted"));
  EXPECT_EQ(sink->Wait().reason, FinishReason::kCancelled);
  EXPECT_TRUE(sink->tokens().empty());
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

INSTANTIATE_TEST_SUITE_P(Runs, IndexedPrefillTest, testing::Values(1, 8),
                         [](const auto& info) { return absl::StrCat("RunsOf", info.param); });

}  // namespace
}  // namespace retroinfer
