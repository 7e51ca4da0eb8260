#include "gpu_worker/engine/local_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "tests/support/in_process_worker.h"
#include "tests/support/small_worker.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;
using test_support::SmallWorker;
using ::testing::HasSubstr;

InProcessWorkerOptions SmallModel() { return SmallWorker(); }

class LocalEngineTest : public testing::Test {
 protected:
  explicit LocalEngineTest(const InProcessWorkerOptions& options = SmallModel())
      : worker_(options) {}

  std::vector<int32_t> Prompt(int64_t length, uint64_t seed) {
    return RandomPrompt(length, worker_.config().vocab_size, seed);
  }

  InProcessWorker worker_;
};

TEST_F(LocalEngineTest, GeneratesAsManyTokensAsAskedForAndFreesEverything) {
  const auto sink = worker_.Submit(worker_.Greedy(Prompt(100, 1), 20));
  const GenerationResult& result = sink->Wait();
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.reason, FinishReason::kLength);
  EXPECT_EQ(result.prompt_tokens, 100);
  EXPECT_EQ(result.completion_tokens, 20);
  EXPECT_EQ(sink->tokens().size(), 20u);
  EXPECT_GT(result.time_to_first_token, absl::ZeroDuration());
  EXPECT_DOUBLE_EQ(result.kv_read_ratio, 1.0);  // shorter than dense_below: all of it, exactly
  ASSERT_TRUE(result.unseen.has_value());
  EXPECT_EQ(result.unseen->largest, 0);
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

TEST_F(LocalEngineTest, ShortContextsAreDenseUnderEitherPolicy) {
  const auto prompt = Prompt(1500, 2);
  EXPECT_EQ(worker_.Generate(worker_.Greedy(prompt, 40, PolicyKind::kWave)),
            worker_.Generate(worker_.Greedy(prompt, 40, PolicyKind::kFull)));
}

TEST_F(LocalEngineTest, WaveReadsASmallPartOfALongContext) {
  const auto sink = worker_.Submit(worker_.Greedy(Prompt(10000, 4), 30));
  EXPECT_TRUE(sink->Wait().status.ok());
  EXPECT_LT(sink->Wait().kv_read_ratio, 0.6);  // floors of 64 clusters weigh much at 10K
  EXPECT_GT(sink->Wait().kv_read_ratio, 0.05);
  ASSERT_TRUE(sink->Wait().unseen.has_value());
  EXPECT_GT(sink->Wait().unseen->mean, 0);
  EXPECT_LT(sink->Wait().unseen->largest, 1);
  EXPECT_GE(sink->Wait().unseen->largest, sink->Wait().unseen->mean);
  EXPECT_GT(worker_.engine().stats().page_hits, 0u);
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

TEST_F(LocalEngineTest, ALimitOfTheUnseenMassIsPaidForInBytes) {
  const auto run = [this](double limit) {
    GenerationRequest request = worker_.Greedy(Prompt(10000, 4), 30);
    request.attention.max_unseen_mass = limit;
    const auto sink = worker_.Submit(std::move(request));
    EXPECT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
    return sink->Wait();
  };
  const GenerationResult plain = run(0);
  ASSERT_TRUE(plain.unseen.has_value());
  const GenerationResult limited = run(0.7 * plain.unseen->mean);
  EXPECT_GT(limited.kv_read_ratio, 1.1 * plain.kv_read_ratio);
  EXPECT_LT(limited.unseen->mean, plain.unseen->mean);
  // One that is kept anyhow changes nothing.
  EXPECT_DOUBLE_EQ(run(0.99).kv_read_ratio, plain.kv_read_ratio);
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

TEST_F(LocalEngineTest, ConcurrentRequestsGiveTheSameTokensAsOneAtATime) {
  const std::vector<std::pair<int64_t, int32_t>> shapes = {{1, 300},    {60, 500},   {700, 3000},
                                                           {2047, 200}, {2500, 150}, {4000, 1300},
                                                           {5200, 64},  {9000, 90}};
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < shapes.size(); ++i) {
    requests.push_back(worker_.Greedy(Prompt(shapes[i].first, 100 + i), shapes[i].second,
                                      i % 4 == 3 ? PolicyKind::kFull : PolicyKind::kWave));
  }
  std::vector<std::vector<int32_t>> alone;
  for (const GenerationRequest& request : requests) alone.push_back(worker_.Generate(request));
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const GenerationRequest& request : requests) sinks.push_back(worker_.Submit(request));
  for (size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_TRUE(sinks[i]->Wait().status.ok());
    EXPECT_EQ(sinks[i]->tokens(), alone[i]) << "request " << i;
  }
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

TEST_F(LocalEngineTest, ASeedDecidesTheTokens) {
  GenerationRequest request = worker_.Greedy(Prompt(300, 5), 50);
  request.sampling.temperature = 1.0f;
  request.sampling.seed = 7;
  GenerationRequest other = request;
  other.request_id = "other";
  other.sampling.seed = 8;
  const auto tokens = worker_.Generate(request);
  EXPECT_EQ(worker_.Generate(request), tokens);
  EXPECT_NE(worker_.Generate(other), tokens);
}

TEST_F(LocalEngineTest, AnAnswerOfTheStoreMayComeAfterTheEnginesEnd) {
  worker_.store().HoldAnswers();
  const auto sink = worker_.Submit(worker_.Greedy(Prompt(3000, 11), 10));
  while (worker_.store().num_held_answers() == 0) absl::SleepFor(absl::Milliseconds(1));
  worker_.EndEngine();
  EXPECT_EQ(sink->Wait().reason, FinishReason::kCancelled);
  worker_.store().LetAnswersGo();  // a sanitizer sees it if this reaches the engine
}

// The release of an ended sequence fails round by round, and is made up for.
TEST_F(LocalEngineTest, ABlockCacheThatFailsIsToldOnceASecond) {
  const auto former = spdlog::default_logger();
  std::ostringstream text;
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text)));
  worker_.faulty_block_cache().FailAfter("ReleasePages", 0);
  const absl::Time begun = absl::Now();
  EXPECT_EQ(worker_.Generate(worker_.Greedy(Prompt(3000, 12), 5)).size(), 5u);
  while (worker_.faulty_block_cache().num_failed() < 1000) absl::SleepFor(absl::Milliseconds(1));
  worker_.faulty_block_cache().Heal();
  EXPECT_TRUE(worker_.WaitUntilIdle());
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begun);
  spdlog::set_default_logger(former);
  size_t num_lines = 0;
  for (size_t at = text.str().find("block cache:"); at != std::string::npos;
       at = text.str().find("block cache:", at + 1)) {
    ++num_lines;
  }
  EXPECT_GE(num_lines, 1u);
  EXPECT_LE(static_cast<double>(num_lines), seconds + 2);
}

TEST_F(LocalEngineTest, StopsAtAStopToken) {
  GenerationRequest request = worker_.Greedy(Prompt(50, 6), 40);
  const auto tokens = worker_.Generate(request);
  request.sampling.stop_token_ids = {tokens[10]};
  const auto sink = worker_.Submit(request);
  EXPECT_EQ(sink->Wait().reason, FinishReason::kStop);
  EXPECT_EQ(sink->Wait().matched_token, tokens[10]);
  EXPECT_LE(sink->tokens().size(), 11u);
}

TEST_F(LocalEngineTest, ReportsPrefillProgressThatGrowsToTheWhole) {
  GenerationRequest request = worker_.Greedy(Prompt(3000, 7), 2);
  request.return_progress = true;
  const auto sink = worker_.Submit(request);
  sink->Wait();
  const std::vector<PrefillProgress> progress = sink->progress();
  ASSERT_GT(progress.size(), 5u);
  for (size_t i = 1; i < progress.size(); ++i) {
    EXPECT_GE(progress[i].processed_tokens, progress[i - 1].processed_tokens);
  }
  EXPECT_EQ(progress.back().processed_tokens, 3000);
  EXPECT_EQ(progress.back().total_tokens, 3000);
}

TEST_F(LocalEngineTest, AShortRequestOvertakesALongPrefill) {
  const auto lengthy = worker_.Submit(worker_.Greedy(Prompt(12000, 8), 5));
  const auto brief = worker_.Submit(worker_.Greedy(Prompt(10, 9), 5));
  brief->Wait();
  EXPECT_FALSE(lengthy->finished());
  lengthy->Wait();
}

TEST_F(LocalEngineTest, RefusesWhatItCannotServeWithTheNumbers) {
  auto sink = std::make_shared<CollectingSink>();
  const auto submit = [&](GenerationRequest request) {
    return worker_.engine().Submit(std::move(request), sink);
  };
  EXPECT_EQ(submit(worker_.Greedy({}, 5)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(submit(worker_.Greedy({1 << 20}, 5)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(submit(worker_.Greedy({1}, 0)).code(), absl::StatusCode::kInvalidArgument);
  const absl::Status too_long = submit(worker_.Greedy(Prompt(12000, 1), 400));
  EXPECT_EQ(too_long.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(too_long.message()), HasSubstr("12288"));
  GenerationRequest nan = worker_.Greedy({1}, 5);
  nan.sampling.temperature = std::nanf("");
  EXPECT_EQ(submit(nan).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(sink->finished());
}

TEST_F(LocalEngineTest, AnIdCanBeUsedAgainOnlyAfterItsEnd) {
  GenerationRequest request = worker_.Greedy(Prompt(4000, 1), 200);
  const auto first = worker_.Submit(request);
  auto second = std::make_shared<CollectingSink>();
  EXPECT_EQ(worker_.engine().Submit(request, second).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(worker_.engine().Abort(request.request_id));
  EXPECT_EQ(first->Wait().reason, FinishReason::kCancelled);
  EXPECT_FALSE(worker_.engine().Abort(request.request_id));
  EXPECT_TRUE(worker_.engine().Submit(request, second).ok());
  worker_.engine().Abort(request.request_id);
  second->Wait();
}

TEST_F(LocalEngineTest, ADeadlineEndsARequestWhereverItIs) {
  GenerationRequest request = worker_.Greedy(Prompt(200, 1), 10000);
  request.deadline = absl::Now() + absl::Milliseconds(300);
  const auto sink = worker_.Submit(request);
  EXPECT_EQ(sink->Wait().reason, FinishReason::kDeadline);
  EXPECT_LT(absl::Now(), request.deadline + absl::Seconds(5));
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

TEST_F(LocalEngineTest, StatisticsHaveWhatARequestDidWhenItEnds) {
  for (int32_t round = 0; round < 20; ++round) {
    const int32_t max_tokens = 1 + round;
    const EngineStats before = worker_.engine().stats();
    worker_.Generate(worker_.Greedy(Prompt(100, 1), max_tokens));
    const EngineStats after = worker_.engine().stats();
    EXPECT_EQ(after.decode_steps - before.decode_steps, static_cast<uint64_t>(max_tokens) - 1);
    EXPECT_EQ(after.generation_tokens - before.generation_tokens,
              static_cast<uint64_t>(max_tokens));
    EXPECT_EQ(after.prompt_tokens - before.prompt_tokens, 100u);
    EXPECT_EQ(after.requests_running, 0);
  }
  const EngineStats before = worker_.engine().stats();
  worker_.Generate(worker_.Greedy(Prompt(4000, 4), 2));
  const EngineStats after = worker_.engine().stats();
  EXPECT_GT(after.page_hits + after.page_misses + after.page_transients,
            before.page_hits + before.page_misses + before.page_transients);
}

TEST_F(LocalEngineTest, CountsBeginWhereTheyAreTold) {
  worker_.Generate(worker_.Greedy(Prompt(4000, 1), 5));
  worker_.engine().StartCounting();
  const EngineStats stats = worker_.engine().stats();
  EXPECT_EQ(stats.prompt_tokens, 0u);
  EXPECT_EQ(stats.generation_tokens, 0u);
  EXPECT_EQ(stats.decode_steps, 0u);
  EXPECT_EQ(stats.page_hits, 0u);
  EXPECT_EQ(stats.segments_built, 0u);
  worker_.Generate(worker_.Greedy(Prompt(4000, 2), 5));
  EXPECT_EQ(worker_.engine().stats().prompt_tokens, 4000u);
  EXPECT_EQ(worker_.engine().stats().decode_steps, 4u);
}

TEST_F(LocalEngineTest, AnAbortBehindTheDeadlineIsTheDeadline) {
  // Not admitted yet, the request is ended by whatever comes first: the abort.
  GenerationRequest request = worker_.Greedy(Prompt(100, 1), 10);
  request.deadline = absl::Now() - absl::Seconds(1);
  const std::string id = request.request_id;
  const auto sink = worker_.Submit(request);
  worker_.engine().Abort(id);
  EXPECT_EQ(sink->Wait().reason, FinishReason::kDeadline);
}

// What index construction does with the machine is not what these tests are about: the background
// is a thread of this process that they can stop.
class BackgroundTest : public LocalEngineTest {
 protected:
  void SetUp() override {
    background_ = dynamic_cast<CpuStream*>(&worker_.background());
    if (background_ == nullptr) GTEST_SKIP() << "only the CPU's background can be stopped";
  }
  CpuStream* background_ = nullptr;
};

TEST_F(BackgroundTest, AStreamGoesOnWhileAnotherWaitsForItsSegment) {
  // Crosses dense_below, 2048 tokens, and waits for its first segment 64 tokens later.
  const GenerationRequest grows = worker_.Greedy(Prompt(100, 1), 2100);
  const std::vector<int32_t> alone = worker_.Generate(grows);
  const uint64_t late_before = worker_.engine().stats().segments_late;
  // Under policy full there are no segments to wait for.
  GenerationRequest other = worker_.Greedy(Prompt(10, 2), 12000, PolicyKind::kFull);
  const std::string other_id = other.request_id;
  const auto going = worker_.Submit(other);
  const auto waiting = worker_.Submit(grows);
  // Both need the background for their prompts.
  while (going->tokens().size() < 2 || waiting->tokens().size() < 2) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  absl::Notification go;
  ASSERT_TRUE(background_->Launch([&go](ThreadPool&) { go.WaitForNotification(); }).ok());
  ASSERT_LT(waiting->tokens().size(), 1900u) << "the background was stopped too late";
  // Progress of one is measured by that of the other.
  const absl::Time give_up = absl::Now() + absl::Minutes(1);
  size_t stands_at = 0, since = 0;
  while (going->tokens().size() < since + 300 && absl::Now() < give_up) {
    if (waiting->tokens().size() != stands_at) {
      stands_at = waiting->tokens().size();
      since = going->tokens().size();
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_GE(going->tokens().size(), since + 300) << "the engine stands still";
  EXPECT_GE(stands_at, 1948u + 64) << "it waited before it had to";
  EXPECT_LT(stands_at, 2100u) << "the segment was not waited for";
  EXPECT_EQ(worker_.engine().stats().segments_late, late_before + 1);
  go.Notify();
  EXPECT_TRUE(waiting->Wait().status.ok());
  EXPECT_EQ(waiting->tokens(), alone);
  worker_.engine().Abort(other_id);
  going->Wait();
}

// On a machine that others keep busy, a thread of low priority gets next to nothing.
TEST_F(BackgroundTest, IsHurriedWhenARequestWaitsForIt) {
  const auto niceness = [] { return ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid())); };
  const int own = niceness();
  absl::Notification go;
  ASSERT_TRUE(background_->Launch([&go](ThreadPool&) { go.WaitForNotification(); }).ok());
  const auto indexing = worker_.Submit(worker_.Greedy(Prompt(4000, 1), 5));
  while (indexing->tokens().empty()) absl::SleepFor(absl::Milliseconds(1));
  // The next pieces of work, until one runs as one that somebody waits for.
  std::atomic<int> nice_of_work = own + 1;
  std::atomic<int> num_run = 0;
  const absl::Time give_up = absl::Now() + absl::Minutes(1);
  for (int i = 0; nice_of_work > own && absl::Now() < give_up; ++i) {
    ASSERT_TRUE(background_
                    ->Launch([&](ThreadPool&) {
                      nice_of_work = niceness();
                      ++num_run;
                      absl::SleepFor(absl::Milliseconds(1));
                    })
                    .ok());
    if (i == 0) go.Notify();
    while (num_run <= i) absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(nice_of_work, own);
  EXPECT_TRUE(indexing->Wait().status.ok());
}

TEST_F(LocalEngineTest, CancelsAtRandomMomentsLeakNothing) {
  constexpr uint64_t kSeed = 20;
  std::mt19937_64 random(kSeed);
  std::vector<std::pair<std::string, std::shared_ptr<CollectingSink>>> live;
  for (int i = 0; i < 1000; ++i) {
    // Mostly short; every tenth with segments, some of which are being built when it is cancelled.
    const int64_t length = i % 10 == 0 ? 2100 + static_cast<int64_t>(random() % 1500)
                                       : 1 + static_cast<int64_t>(random() % 100);
    GenerationRequest request =
        worker_.Greedy(Prompt(length, random()), 1 + static_cast<int32_t>(random() % 1500),
                       random() % 4 == 0 ? PolicyKind::kFull : PolicyKind::kWave);
    const std::string id = request.request_id;
    live.emplace_back(id, worker_.Submit(std::move(request)));
    absl::SleepFor(absl::Microseconds(static_cast<int64_t>(random() % 3000)));
    while (live.size() > random() % 16) {
      const size_t victim = random() % live.size();
      worker_.engine().Abort(live[victim].first);
      live[victim].second->Wait();
      live.erase(live.begin() + static_cast<int64_t>(victim));
    }
  }
  for (auto& [id, sink] : live) {
    worker_.engine().Abort(id);
    sink->Wait();
  }
  EXPECT_TRUE(worker_.WaitUntilIdle());
  EXPECT_EQ(worker_.store().free_pages(), worker_.store().arena_pages());
  // Statistics of an idle engine are a tenth of a second old.
  const absl::Time give_up = absl::Now() + absl::Minutes(1);
  while (worker_.engine().stats().slots_used > 0 && absl::Now() < give_up) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(worker_.engine().stats().slots_used, 0) << "seed " << kSeed;
}

TEST_F(LocalEngineTest, WithoutAStoreLongRequestsAreUnavailableAndOthersGoOn) {
  const auto running = worker_.Submit(worker_.Greedy(Prompt(3000, 1), 1500));
  while (running->tokens().empty()) absl::SleepFor(absl::Milliseconds(1));
  worker_.store().set_attached(false);
  const auto refused = worker_.Submit(worker_.Greedy(Prompt(3000, 2), 10));
  EXPECT_EQ(refused->Wait().status.code(), absl::StatusCode::kUnavailable);
  const auto full = worker_.Submit(worker_.Greedy(Prompt(3000, 2), 10, PolicyKind::kFull));
  EXPECT_TRUE(full->Wait().status.ok());
  EXPECT_TRUE(running->Wait().status.ok());
  EXPECT_EQ(running->tokens().size(), 1500u);
  worker_.store().set_attached(true);
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

TEST(TakenArenaTest, NoTokenIsShownOnceTheArenaIsSomebodyElses) {
  std::atomic<size_t> drawn = 0;
  InProcessWorkerOptions options = SmallModel();
  options.hooks.on_result = [&drawn](const CommandResult& result) {
    drawn += result.rows.size();
    for (const CommandResult::Read& read : result.read) {
      drawn += read.end == CommandResult::Read::End::kPrompt ? 1 : 0;
    }
  };
  InProcessWorker worker(options);
  const auto running =
      worker.Submit(worker.Greedy(RandomPrompt(9000, worker.config().vocab_size, 1), 2000));
  while (running->tokens().size() < 3) absl::SleepFor(absl::Milliseconds(1));
  worker.store().TakeMemory();
  // Not those shown: tokens that were drawn in time may be on their way to the client for long.
  const size_t before = drawn;
  EXPECT_TRUE(absl::IsUnavailable(running->Wait().status)) << running->Wait().status;
  EXPECT_LE(running->tokens().size(), before + 1);  // the one of the step under way
  worker.EndEngine();
}

TEST_F(LocalEngineTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  const auto sink = worker_.Submit(worker_.Greedy(Prompt(100, 1), 200));
  worker_.engine().Drain(absl::Now() + absl::Seconds(60));
  EXPECT_TRUE(sink->finished());
  EXPECT_EQ(sink->Wait().reason, FinishReason::kLength);
  EXPECT_EQ(worker_.engine().Submit(worker_.Greedy(Prompt(10, 1), 1), sink).code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(LocalEngineTest, DrainCancelsWhatIsStillThereAtItsDeadline) {
  const auto sink = worker_.Submit(worker_.Greedy(Prompt(100, 1), 12000));
  worker_.engine().Drain(absl::Now() + absl::Milliseconds(200));
  EXPECT_EQ(sink->Wait().reason, FinishReason::kCancelled);
}

TEST_F(LocalEngineTest, ASecondDrainBringsTheDeadlineForward) {
  const auto sink = worker_.Submit(worker_.Greedy(Prompt(100, 1), 12000));
  std::thread drain([&] { worker_.engine().Drain(absl::InfiniteFuture()); });
  worker_.engine().Drain(absl::Now());
  drain.join();
  EXPECT_EQ(sink->Wait().reason, FinishReason::kCancelled);
}

InProcessWorkerOptions ExactArithmetic() {
  InProcessWorkerOptions options = SmallModel();
  options.precision = ComputePrecision::kF32;
  options.kv_format = kF32Kv;
  return options;
}

// In f32 the two policies differ by the order of sums alone, far less than the gaps between logits.
class ExactArithmeticTest : public LocalEngineTest {
 protected:
  ExactArithmeticTest() : LocalEngineTest(ExactArithmetic()) {}
  void SetUp() override {
    if (worker_.device().info().backend != "cpu") GTEST_SKIP() << "a GPU computes in bf16";
  }
};

TEST_F(ExactArithmeticTest, RetrievingEverythingEqualsFullAttention) {
  // Crosses dense_below and two later segments while it generates.
  for (const int64_t length : {1900, 3000, 9000}) {
    GenerationRequest wave = worker_.Greedy(Prompt(length, 3), 1400, PolicyKind::kWave);
    wave.attention.retrieval_ratio = 1.0;
    wave.attention.estimation_ratio = 0.0;
    const GenerationRequest full = worker_.Greedy(wave.prompt, 1400, PolicyKind::kFull);
    const auto wave_tokens = worker_.Generate(std::move(wave));
    const auto full_tokens = worker_.Generate(full);
    EXPECT_EQ(wave_tokens, full_tokens) << "prompt of " << length;
  }
  EXPECT_GT(worker_.engine().stats().segments_built, 6u);
}

InProcessWorkerOptions LittleMemory() {
  InProcessWorkerOptions options = SmallModel();
  options.dense_kv_bytes =
      size_t{40} * DensePoolView::BlockBytes({.num_layers = 2, .num_kv_heads = 2, .head_dim = 64});
  options.arena_bytes = size_t{24} << 20;
  return options;
}

class LittleMemoryTest : public LocalEngineTest {
 protected:
  LittleMemoryTest() : LocalEngineTest(LittleMemory()) {}
};

TEST_F(LittleMemoryTest, RequestsWaitForMemoryAndAllGetTheirTurn) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (uint64_t i = 0; i < 12; ++i) {
    sinks.push_back(worker_.Submit(worker_.Greedy(Prompt(2300, i), 10)));
  }
  for (const auto& sink : sinks) EXPECT_TRUE(sink->Wait().status.ok()) << sink->Wait().status;
  EXPECT_TRUE(worker_.WaitUntilIdle());
}

TEST_F(LittleMemoryTest, WhatCanNeverFitIsRefusedWithTheLargestThatDoes) {
  auto sink = std::make_shared<CollectingSink>();
  const absl::Status status =
      worker_.engine().Submit(worker_.Greedy(Prompt(6000, 1), 10, PolicyKind::kFull), sink);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr(std::to_string(worker_.engine().limits().kv_capacity_tokens[PolicyKind::kFull])));
}

TEST(LocalEngineProgressTest, IsReportedByAnIdleLoopAndNotByAStalledOne) {
  std::atomic<int> reports = 0;
  InProcessWorkerOptions options = SmallModel();
  options.on_progress = [&reports] { ++reports; };
  absl::Notification stalled, let_go;
  options.on_plan = [&](const SchedulerInput& input, const StepPlan&) {
    if (input.requests.empty() || stalled.HasBeenNotified()) return;
    stalled.Notify();
    let_go.WaitForNotification();
  };
  InProcessWorker worker(options);
  const auto await_more = [&reports](int before) {
    while (reports <= before + 10) absl::SleepFor(absl::Milliseconds(1));
  };
  await_more(0);
  const auto sink =
      worker.Submit(worker.Greedy(RandomPrompt(20, worker.config().vocab_size, 1), 5));
  stalled.WaitForNotification();
  const int when_stalled = reports;
  absl::SleepFor(absl::Milliseconds(200));  // ten waits of an idle loop
  EXPECT_EQ(reports, when_stalled);
  let_go.Notify();
  await_more(when_stalled);
  EXPECT_TRUE(sink->Wait().status.ok());
}

}  // namespace
}  // namespace retroinfer
