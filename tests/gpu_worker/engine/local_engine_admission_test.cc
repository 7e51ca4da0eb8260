// What waits, and what is refused, with its numbers and reasons.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "build_paths.h"
#include "common/status/error_reason.h"
#include "gpu_worker/engine/local_engine.h"
#include "tests/support/in_process_worker.h"

namespace retroinfer {
namespace {

using test_support::CollectingSink;
using test_support::InProcessWorker;
using test_support::InProcessWorkerOptions;
using test_support::RandomPrompt;

InProcessWorkerOptions OneAtATime() {
  InProcessWorkerOptions options;
  options.model_folder =
      std::filesystem::path(RETROINFER_SOURCE_DIR) / "tests/golden/models/llama-d64-untied-bf16";
  options.context_length = 131072;
  options.max_model_len = 12288;
  options.max_batch = 1;
  options.max_live_requests = 3;
  return options;
}

class LocalEngineAdmissionTest : public testing::Test {
 protected:
  GenerationRequest Request(int64_t prompt_tokens, int32_t max_tokens) {
    return worker_.Greedy(RandomPrompt(prompt_tokens, worker_.config().vocab_size, 1), max_tokens);
  }
  // Submits a request that goes on until it is aborted, and waits for its first token.
  std::shared_ptr<CollectingSink> Occupy(std::string* id) {
    GenerationRequest request = Request(10, 12000);
    *id = request.request_id;
    auto sink = worker_.Submit(std::move(request));
    while (sink->tokens().empty()) absl::SleepFor(absl::Milliseconds(1));
    return sink;
  }

  InProcessWorker worker_{OneAtATime()};
};

TEST_F(LocalEngineAdmissionTest, TellsHowManyWaitAndForHowLong) {
  EXPECT_EQ(worker_.engine().limits().max_live_requests, 3);
  EXPECT_EQ(OldestWaiting(worker_.engine().stats(), absl::Now()), absl::ZeroDuration());
  std::string first_id, id;
  const auto first = Occupy(&first_id);
  const absl::Time begun = absl::Now();
  std::vector<std::shared_ptr<CollectingSink>> waiting;
  for (int i = 0; i < 2; ++i) {
    waiting.push_back(worker_.Submit(Request(10, 1)));
    EXPECT_EQ(worker_.engine().stats().requests_waiting, i + 1) << "at once";
  }
  absl::SleepFor(absl::Milliseconds(50));
  const EngineStats stats = worker_.engine().stats();
  EXPECT_EQ(stats.requests_running, 1);
  EXPECT_EQ(stats.requests_waiting, 2);
  const absl::Duration oldest = OldestWaiting(stats, absl::Now());
  // It is told by a clock that the wall clock is read beside, a moment earlier or later.
  EXPECT_GE(oldest, absl::Milliseconds(40));
  EXPECT_LE(oldest, absl::Now() - begun);
  worker_.engine().Abort(first_id);
  for (const auto& sink : waiting) sink->Wait();
  EXPECT_EQ(worker_.engine().stats().requests_waiting, 0);
  EXPECT_EQ(worker_.engine().stats().oldest_waiting, absl::InfiniteFuture());
}

TEST_F(LocalEngineAdmissionTest, AFullQueueIsNotTheSameAsARequestThatIsTooLarge) {
  std::string id;
  const auto first = Occupy(&id);
  std::vector<std::shared_ptr<CollectingSink>> waiting;
  for (int i = 0; i < 2; ++i) waiting.push_back(worker_.Submit(Request(10, 1)));
  auto sink = std::make_shared<CollectingSink>();
  const absl::Status full = worker_.engine().Submit(Request(10, 1), sink);
  EXPECT_EQ(common::ReasonOf(full).reason, "QUEUE_FULL") << full;
  EXPECT_TRUE(common::RetryDelayOf(full).has_value());
  worker_.engine().Abort(id);
  for (const auto& other : waiting) other->Wait();
  EXPECT_TRUE(worker_.engine().Submit(Request(10, 1), sink).ok());
  sink->Wait();
}

TEST_F(LocalEngineAdmissionTest, ARequestThatCanNeverFitIsNotToBeRetried) {
  InProcessWorkerOptions options = OneAtATime();
  options.arena_bytes = size_t{1} << 20;
  InProcessWorker small(options);
  auto sink = std::make_shared<CollectingSink>();
  const absl::Status status = small.engine().Submit(
      small.Greedy(RandomPrompt(12000, small.config().vocab_size, 1), 10), sink);
  const common::ErrorReason reason = common::ReasonOf(status);
  EXPECT_EQ(reason.reason, "CAPACITY_EXCEEDED") << status;
  EXPECT_EQ(reason.metadata.at("needed_tokens"), "12010");
  EXPECT_EQ(reason.metadata.at("capacity_tokens"),
            std::to_string(small.engine().limits().kv_capacity_tokens[PolicyKind::kWave]));
  EXPECT_FALSE(common::RetryDelayOf(status).has_value());
}

// The arena holds one answer of that length, and so does the memory for its index. Chats need
// neither.
TEST_F(LocalEngineAdmissionTest, ChatsPassOneThatWaitsForTheArena) {
  InProcessWorkerOptions options = OneAtATime();
  options.max_model_len = 131072;
  options.arena_bytes = size_t{48} << 20;
  options.max_batch = 4;
  options.max_live_requests = 8;
  InProcessWorker worker(options);
  const int64_t capacity = worker.engine().limits().kv_capacity_tokens[PolicyKind::kWave];
  ASSERT_LT(capacity, options.max_model_len) << "the arena is what bounds them";
  const auto prompt = RandomPrompt(4, worker.config().vocab_size, 1);
  const auto submit_long = [&](std::string* id) {
    GenerationRequest request = worker.Greedy(prompt, static_cast<int32_t>(capacity - 2048));
    *id = request.request_id;
    return worker.Submit(std::move(request));
  };
  std::string first_id, second_id;
  const auto first = submit_long(&first_id);
  while (first->tokens().empty()) absl::SleepFor(absl::Milliseconds(1));
  const auto second = submit_long(&second_id);
  // Longer than it lets anyone pass who takes what it lacks.
  const absl::Time begun = absl::Now();
  while (absl::Now() - begun < absl::Seconds(2 * Scheduler::kPatience)) {
    worker.Generate(worker.Greedy(prompt, 3));
    ASSERT_FALSE(first->finished()) << "the chat waited for the end of the long answer";
  }
  EXPECT_TRUE(second->tokens().empty()) << "it did not wait";
  worker.engine().Abort(first_id);
  while (second->tokens().empty()) absl::SleepFor(absl::Milliseconds(1));
  worker.engine().Abort(second_id);
  second->Wait();
}

TEST_F(LocalEngineAdmissionTest, AStoreThatIsAwayIsWorthARetry) {
  worker_.store().set_attached(false);
  const auto sink = worker_.Submit(Request(9000, 10));
  const absl::Status status = sink->Wait().status;
  EXPECT_EQ(common::ReasonOf(status).reason, "NOT_READY") << status;
  EXPECT_TRUE(common::RetryDelayOf(status).has_value());
  worker_.store().set_attached(true);
}

TEST_F(LocalEngineAdmissionTest, ADeadlineThatCannotBeMetIsRefusedBeforeAnyWork) {
  // What prompts cost is known from one.
  worker_.Submit(Request(4000, 1))->Wait();
  const uint64_t done = worker_.engine().stats().prompt_tokens;
  GenerationRequest request = Request(8000, 4);
  request.deadline = absl::Now() + absl::Microseconds(500);
  const auto sink = worker_.Submit(std::move(request));
  const GenerationResult result = sink->Wait();
  // On a machine that stood still meanwhile the deadline itself has passed.
  if (result.reason != FinishReason::kDeadline) {
    EXPECT_EQ(result.reason, FinishReason::kRefused);
    EXPECT_EQ(common::ReasonOf(result.status).reason, "DEADLINE_UNREACHABLE") << result.status;
  }
  EXPECT_EQ(worker_.engine().stats().prompt_tokens, done);
  request = Request(8000, 4);
  request.deadline = absl::Now() + absl::Minutes(10);
  EXPECT_EQ(worker_.Submit(std::move(request))->Wait().reason, FinishReason::kLength);
}

TEST_F(LocalEngineAdmissionTest, ATenantIsRefusedAtItsOwnLimit) {
  const auto tenant =
      std::make_shared<const common::Tenant>(common::Tenant{.name = "small", .max_requests = 1});
  GenerationRequest first = Request(10, 12000);
  first.tenant = tenant;
  const std::string id = first.request_id;
  const auto running = worker_.Submit(std::move(first));
  GenerationRequest second = Request(10, 1);
  second.tenant = tenant;
  const absl::Status status =
      worker_.engine().Submit(std::move(second), std::make_shared<CollectingSink>());
  EXPECT_EQ(common::ReasonOf(status).reason, "TENANT_QUEUE_FULL") << status;
  const auto other = worker_.Submit(Request(10, 1));
  worker_.engine().Abort(id);
  running->Wait();
  EXPECT_EQ(other->Wait().reason, FinishReason::kLength);
}

}  // namespace
}  // namespace retroinfer
