// Memory given as requests grow, on a clock that no test waits for: whatever they do with it, none
// is exceeded and all end, and against memory for all of max_tokens from the beginning more run at
// a time. Simulate() says in `broken` what a plan did that cannot be done, and when nothing goes
// on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "tests/gpu_worker/scheduler/simulation.h"

namespace retroinfer {
namespace {

using test_support::SimulatedRequest;
using test_support::SimulatedWorker;
using test_support::SimulateScheduler;
using test_support::SimulationResult;

// All of it attended densely, as with policy `full`, unless a test says otherwise.
SimulatedWorker Worker(int64_t dense_blocks, int32_t max_batch = 8) {
  SimulatedWorker worker;
  worker.options = {.num_layers = 32, .max_rows = 1024, .max_batch = max_batch};
  worker.dense_blocks = dense_blocks;
  worker.dense_below = 1 << 20;
  return worker;
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int64_t Uniform(int64_t first, int64_t last) {
    return std::uniform_int_distribution<int64_t>(first, last)(random_);
  }
  double Exponential(double mean) {
    return std::exponential_distribution<double>(1 / mean)(random_);
  }

 private:
  std::mt19937_64 random_;
};

void ExpectAllEnd(const SimulationResult& result) {
  EXPECT_EQ(result.broken, "");
  for (const SimulatedRequest& request : result.requests) EXPECT_GE(request.end, 0);
}

double MeanBatch(const SimulationResult& result) {
  return static_cast<double>(result.step_rows) /
         static_cast<double>(std::max<int64_t>(result.steps, 1));
}

// Chats that all ask for the same maximum. `share`: of it, that they generate.
std::vector<SimulatedRequest> Chats(uint64_t seed, size_t count, int64_t max_tokens, double share) {
  Draw draw(seed);
  std::vector<SimulatedRequest> requests;
  double now = 0;
  for (size_t i = 0; i < count; ++i) {
    const double most = share * static_cast<double>(max_tokens);
    const int64_t output =
        share >= 1 ? max_tokens : 1 + static_cast<int64_t>(draw.Exponential(most));
    requests.push_back({.arrival = now += draw.Exponential(0.02),
                        .prompt_tokens = draw.Uniform(100, 1500),
                        .output_tokens = std::min(output, max_tokens),
                        .max_tokens = max_tokens});
  }
  return requests;
}

struct Compared {
  SimulationResult soon, all;
};
Compared Compare(SimulatedWorker worker, const std::vector<SimulatedRequest>& requests,
                 uint64_t seed) {
  Compared result;
  worker.reserves_all = false;
  result.soon = SimulateScheduler(worker, requests, seed);
  worker.reserves_all = true;
  result.all = SimulateScheduler(worker, requests, seed);
  ExpectAllEnd(result.soon);
  ExpectAllEnd(result.all);
  return result;
}
double Seconds(const SimulationResult& result) { return result.end; }

// --- All end

// Requests of any length, class and tenant, that generate all they may, or little of it, or
// anything. Those of a burst come together, so that they grow together.
std::vector<SimulatedRequest> Anything(uint64_t seed, int64_t most_tokens) {
  Draw draw(seed);
  std::vector<SimulatedRequest> requests;
  const int64_t kind = draw.Uniform(0, 3);
  double now = 0;
  for (int i = 0; i < 24; ++i) {
    if (kind != 0) now += draw.Exponential(0.3);
    SimulatedRequest& request = requests.emplace_back();
    request.arrival = now;
    request.max_tokens = kind == 0 ? most_tokens / 2 : draw.Uniform(1, most_tokens / 2);
    request.prompt_tokens = draw.Uniform(1, most_tokens - request.max_tokens);
    const int64_t least = kind <= 1 ? request.max_tokens : 1;
    const int64_t most =
        kind == 2 ? std::max<int64_t>(1, request.max_tokens / 10) : request.max_tokens;
    request.output_tokens = draw.Uniform(std::min(least, most), most);
    // The first ones end at once: what is learned of them is wrong of the others.
    if (seed % 3 == 0 && i < 8) request.output_tokens = 1 + request.max_tokens / 20;
    request.priority = static_cast<int32_t>(draw.Uniform(0, 2));
    request.tenant = static_cast<uint32_t>(draw.Uniform(0, 1));
  }
  return requests;
}

TEST(MemorySimulationTest, WhateverComesAllEndWithMemoryForHardlyMoreThanOne) {
  int64_t suspensions = 0, stalled = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Draw draw(1000 + seed);
    constexpr int64_t kMost = 1600;
    SimulatedWorker worker = Worker(1 + kMost / 64 + draw.Uniform(0, 20), 4);
    worker.options.preempts = seed % 2 == 0;
    worker.weights = {1, 2};
    worker.suspended_blocks = draw.Uniform(0, 60);
    // Some have extents of the arena, and memory for the index of a part only.
    if (seed % 5 == 0) worker.dense_below = 1000;
    if (seed % 5 == 0) worker.arena_tokens = kMost + draw.Uniform(0, 4000);
    if (seed % 5 == 0) worker.meta_blocks = 2 + draw.Uniform(0, 2);
    const SimulationResult result = SimulateScheduler(worker, Anything(seed, kMost), seed);
    ExpectAllEnd(result);
    if (HasFailure()) return;
    for (const SimulatedRequest& request : result.requests) suspensions += request.suspensions;
    stalled += result.stalled_rows;
  }
  EXPECT_GT(suspensions, 100);
  EXPECT_GT(stalled, 1000) << "memory was never short";
}

// --- Against memory for all of max_tokens

TEST(MemorySimulationTest, WhereOutputsAreShortMoreRunAtATime) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    const auto [soon, all] = Compare(Worker(300), Chats(seed, 150, 4096, 0.05), seed);
    RecordProperty("seconds", std::to_string(soon.end) + " " + std::to_string(all.end));
    EXPECT_GE(MeanBatch(soon), 1.8 * MeanBatch(all));
    EXPECT_LE(Seconds(soon), 0.65 * Seconds(all));
    EXPECT_LE(soon.stalled_rows, soon.step_rows / 50);
  }
}

TEST(MemorySimulationTest, WhereAllGenerateAllTheyMayLittleIsLost) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    const auto [soon, all] = Compare(Worker(150), Chats(seed, 24, 2048, 1), seed);
    EXPECT_LE(Seconds(soon), 1.03 * Seconds(all));
  }
}

// What was learned is wrong all of a sudden: many have begun, and none of them gets what it needs
// without the others' ends.
TEST(MemorySimulationTest, WhereAllGenerateMoreThanWasExpectedLittleIsLost) {
  double soon_seconds = 0, all_seconds = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    std::vector<SimulatedRequest> requests = Chats(seed, 60, 2048, 0.05);
    for (SimulatedRequest& request : Chats(seed + 10, 24, 2048, 1)) {
      request.arrival += requests[59].arrival;
      requests.push_back(request);
    }
    std::stable_sort(requests.begin(), requests.end(),
                     [](const auto& a, const auto& b) { return a.arrival < b.arrival; });
    const auto [soon, all] = Compare(Worker(150), requests, seed);
    EXPECT_GT(soon.stalled_rows, 0);
    soon_seconds += Seconds(soon);
    all_seconds += Seconds(all);
    EXPECT_LE(Seconds(soon), 1.15 * Seconds(all)) << "seed " << seed;
  }
  EXPECT_LE(soon_seconds, 1.05 * all_seconds);
}

// Prints the table of decision 0051: minutes, nothing is expected.
TEST(MemorySimulationTest, DISABLED_Table) {
  struct Row {
    int64_t dense_blocks;
    int32_t max_batch;
    size_t requests;
    int64_t max_tokens;
    double share;
  };
  for (const Row& row :
       {Row{300, 8, 200, 4096, 0.0125}, Row{300, 8, 200, 4096, 0.05}, Row{300, 8, 50, 4096, 0.3},
        Row{300, 8, 24, 4096, 1}, Row{300, 8, 200, 16384, 0.0125}, Row{300, 8, 200, 16384, 0.05},
        Row{1200, 32, 300, 4096, 0.05}, Row{1200, 32, 60, 4096, 1}}) {
    const auto [soon, all] = Compare(Worker(row.dense_blocks, row.max_batch),
                                     Chats(1, row.requests, row.max_tokens, row.share), 1);
    std::printf("%4d blocks, batch %2d, %5d of which %.4f: %7.1f s (%.1f)  %7.1f s (%.1f)\n",
                static_cast<int>(row.dense_blocks), row.max_batch, static_cast<int>(row.max_tokens),
                row.share, Seconds(all), MeanBatch(all), Seconds(soon), MeanBatch(soon));
  }
  std::vector<SimulatedRequest> requests = Chats(1, 300, 4096, 0.05);
  for (SimulatedRequest& request : Chats(2, 60, 4096, 1)) {
    request.arrival += requests[299].arrival;
    requests.push_back(request);
  }
  const auto [soon, all] = Compare(Worker(300), requests, 1);
  std::printf("short, then all: %.1f s (%.1f)  %.1f s (%.1f)\n", Seconds(all), MeanBatch(all),
              Seconds(soon), MeanBatch(soon));
}

// --- Nobody waits for ever

// One that generates 4,000 tokens beside chats without end, all of which may need much and need
// little, and one that waits for more memory than is ever free among them.
TEST(MemorySimulationTest, WhoWaitsForMemoryGetsItBesideOthersWithoutEnd) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    std::vector<SimulatedRequest> requests = Chats(seed, 500, 2048, 0.03);
    for (SimulatedRequest& request : requests) request.arrival *= 5;  // one every 0.1 s
    requests[60].max_tokens = requests[60].output_tokens = 4000;
    requests[90].prompt_tokens = 6000;
    requests[90].max_tokens = 2000;
    const SimulationResult result = SimulateScheduler(Worker(150), requests, seed);
    ExpectAllEnd(result);
    const SimulatedRequest& large = result.requests[90];
    EXPECT_LE(large.first_token - large.arrival, 30) << "seed " << seed;
    EXPECT_LE(result.requests[60].longest_gap, 30) << "seed " << seed;
    EXPECT_LT(large.first_token, result.requests.back().arrival) << "others were still coming";
  }
}

// --- The arena is taken in full

// Extents of all of max_tokens are taken at the beginning (decision 0051). Chats of 1,024 tokens
// that may generate 16,384 and generate 200: an arena of 60 GiB holds 28 of them.
TEST(MemorySimulationTest, AnArenaTakenInFullHoldsUpNobodyInABatchOfEight) {
  SimulatedWorker worker = Worker(1200);
  worker.dense_below = 8192;
  worker.arena_tokens = 491520;
  const std::vector<SimulatedRequest> requests = Chats(1, 150, 16384, 0.0125);
  const SimulationResult limited = SimulateScheduler(worker, requests, 1);
  worker.arena_tokens *= 1000;
  const SimulationResult unlimited = SimulateScheduler(worker, requests, 1);
  ExpectAllEnd(limited);
  ExpectAllEnd(unlimited);
  EXPECT_LE(Seconds(limited), 1.02 * Seconds(unlimited));
}

}  // namespace
}  // namespace retroinfer
