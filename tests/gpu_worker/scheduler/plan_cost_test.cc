// What a plan costs the engine's thread between two steps: counted in its own processor time, so
// that a busy machine does not matter, and compared, since nobody knows how fast the machine is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gpu_worker/scheduler/scheduler.h"

namespace retroinfer {
namespace {

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// A full batch that grows, with or without memory to spare, and requests that wait.
SchedulerInput Input(int64_t num_decoding, int64_t num_waiting, bool is_short_of_memory) {
  SchedulerInput input;
  input.now = 100;
  input.lanes = {{.max_tokens = 131072, .members = {}}, {.max_tokens = 8192, .members = {}}};
  input.weights = {1, 1};
  input.free_meta_blocks = 1000;
  input.free_table_rows = 100;
  input.free_suspended_blocks = 1000;
  input.free_passes = 64;
  input.free_dense_blocks = is_short_of_memory ? 70 : 100000;
  for (int64_t i = 0; i < num_decoding + num_waiting; ++i) {
    const bool decodes = i < num_decoding;
    input.requests.push_back({.id = static_cast<uint64_t>(i + 1),
                              .phase = decodes ? RequestPhase::kDecoding : RequestPhase::kWaiting,
                              .arrival = static_cast<double>(i % 90),
                              .tenant = static_cast<uint32_t>(i % 2),
                              .prompt_tokens = 100 + 10 * (i % 100),
                              .context = 1000,
                              .dense_blocks = 20,
                              .more_dense_blocks = 60 + static_cast<int32_t>(i % 8),
                              .asked_dense_blocks = decodes ? 1 : 0,
                              .free_tokens = decodes && is_short_of_memory ? i % 2 : 60,
                              .takes_in_order = true,
                              .can_decode = decodes,
                              .can_suspend = decodes,
                              .suspended_blocks = 20,
                              .tokens_left = 4000,
                              .tokens_generated = decodes ? 100 : 0});
  }
  return input;
}

// Seconds of a plan: the fastest of several batches of them.
double SecondsOfPlan(int64_t num_decoding, int64_t num_waiting, bool is_short_of_memory) {
  const auto max_batch = static_cast<int32_t>(num_decoding);
  Scheduler scheduler({.num_layers = 32, .max_batch = max_batch, .preempts = true});
  SchedulerInput input = Input(num_decoding, num_waiting, is_short_of_memory);
  constexpr int kPlans = 20;
  double best = 1e9;
  for (int batch = 0; batch < 10; ++batch) {
    const double begun = ThreadSeconds();
    for (int i = 0; i < kPlans; ++i) {
      input.now += 0.01;
      EXPECT_FALSE(scheduler.Plan(input).decode.empty());
    }
    best = std::min(best, (ThreadSeconds() - begun) / kPlans);
  }
  return best;
}

TEST(PlanCostTest, GrowsNoFasterThanTheRequestsThatWait) {
  for (const bool is_short_of_memory : {false, true}) {
    const double few = SecondsOfPlan(8, 8, is_short_of_memory);
    const double many = SecondsOfPlan(8, 1024, is_short_of_memory);
    RecordProperty(is_short_of_memory ? "short_of_memory_us" : "enough_memory_us",
                   std::to_string(1e6 * few) + " " + std::to_string(1e6 * many));
    EXPECT_LE(many, few * (1024 + 8) / 16 * 2) << is_short_of_memory;
  }
}

// The bank compares all who hold memory with each other: not more than that.
TEST(PlanCostTest, GrowsNoFasterThanTheSquareOfTheBatch) {
  for (const bool is_short_of_memory : {false, true}) {
    const double few = SecondsOfPlan(8, 8, is_short_of_memory);
    const double many = SecondsOfPlan(64, 8, is_short_of_memory);
    RecordProperty(is_short_of_memory ? "batch_short_of_memory_us" : "batch_enough_memory_us",
                   std::to_string(1e6 * few) + " " + std::to_string(1e6 * many));
    EXPECT_LE(many, few * 64 * 2) << is_short_of_memory;
  }
}

// While one is kept what it lacks, each that may pass is asked for, whose memory is left for it.
TEST(PlanCostTest, WhatIsKeptForOneThatWaitsCostsNoMoreThanASmallMultiple) {
  constexpr int64_t kDecoding = 128, kWaiting = 256;
  SchedulerInput input = Input(kDecoding, kWaiting, false);
  input.free_dense_blocks = 1000;  // they are expected to need eight times that
  for (RequestDescription& request : input.requests) request.asked_dense_blocks = 0;
  Scheduler scheduler({.num_layers = 32, .max_batch = 2 * kDecoding});
  const auto seconds_of_plan = [&] {
    double best = 1e9;
    for (int i = 0; i < 100; ++i) {
      const double begun = ThreadSeconds();
      EXPECT_THAT(scheduler.Plan(input).admit, testing::IsEmpty());
      best = std::min(best, ThreadSeconds() - begun);
    }
    return best;
  };
  const double before = seconds_of_plan();
  input.now += Scheduler::kPatience;
  const double kept = seconds_of_plan();
  RecordProperty("before_and_kept_us",
                 std::to_string(1e6 * before) + " " + std::to_string(1e6 * kept));
  EXPECT_LE(kept, 4 * before);
}

}  // namespace
}  // namespace retroinfer
