// Requests that find no room to begin, on a clock that no test waits for: those that need nothing
// of what such a one lacks hardly notice it, and it gets its turn when what it lacks comes free.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/gpu_worker/scheduler/simulation.h"

namespace retroinfer {
namespace {

using test_support::SimulatedRequest;
using test_support::SimulatedWorker;
using test_support::SimulateScheduler;
using test_support::SimulationResult;

constexpr size_t kLong = 0;  // the number of the first one, which has what another one lacks

SimulatedWorker Worker() {
  SimulatedWorker worker;
  worker.options = {.num_layers = 32, .max_rows = 1024, .max_batch = 8};
  return worker;
}

struct Crowd {
  std::vector<SimulatedRequest> requests;  // as they come
  size_t blocked = 0;                      // the number of the one that finds no room
};
// The two, and from the first second on others like `short_one`, one every `interval` seconds.
Crowd MakeCrowd(const SimulatedRequest& long_one, const SimulatedRequest& blocked,
                const SimulatedRequest& short_one, size_t count, double interval,
                double blocked_from = 1) {
  Crowd crowd{.requests = {long_one}};
  for (size_t i = 0; i < count; ++i) {
    // They meet the steps of the others at any point.
    const auto number = static_cast<double>(i);
    const double arrival = 1.1 + interval * (number + 0.3 * std::sin(number));
    if (crowd.blocked == 0 && arrival > blocked_from) {
      crowd.blocked = crowd.requests.size();
      crowd.requests.push_back(blocked);
      crowd.requests.back().arrival = blocked_from;
    }
    crowd.requests.push_back(short_one);
    crowd.requests.back().arrival = arrival;
  }
  return crowd;
}

struct Waits {
  double mean = 0, p99 = 0;  // seconds until the first token
};
// Of those that came before `until`.
Waits WaitsOf(const SimulationResult& result, double until, size_t first_short) {
  std::vector<double> waits;
  for (size_t i = first_short; i < result.requests.size(); ++i) {
    const SimulatedRequest& request = result.requests[i];
    if (request.arrival < until) waits.push_back(request.first_token - request.arrival);
  }
  std::sort(waits.begin(), waits.end());
  Waits all;
  for (const double wait : waits) all.mean += wait / static_cast<double>(waits.size());
  all.p99 = waits[waits.size() * 99 / 100];
  return all;
}

void ExpectAllEnd(const SimulationResult& result) {
  EXPECT_EQ(result.broken, "");
  for (const SimulatedRequest& request : result.requests) EXPECT_GE(request.end, 0);
}

// Short requests wait for their first tokens beside the blocked one as they do without it, and the
// blocked one begins as soon as the long one has ended.
void ExpectShortOnesPass(const SimulatedWorker& worker, const Crowd& crowd) {
  const SimulationResult beside = SimulateScheduler(worker, crowd.requests, 1);
  ExpectAllEnd(beside);
  const double blocked_until = beside.requests[kLong].end;
  ASSERT_GE(beside.requests[crowd.blocked].first_token, blocked_until) << "it was never blocked";
  EXPECT_LE(beside.requests[crowd.blocked].first_token, blocked_until + 5);
  std::vector<SimulatedRequest> others = crowd.requests;
  others.erase(others.begin() + static_cast<ptrdiff_t>(crowd.blocked));
  const SimulationResult without = SimulateScheduler(worker, others, 1);
  ExpectAllEnd(without);
  const double until = std::min(blocked_until, without.requests[kLong].end);
  ASSERT_LT(crowd.requests.back().arrival - 20, until) << "most of them came meanwhile";
  const Waits with = WaitsOf(beside, until, 2), alone = WaitsOf(without, until, 1);
  testing::Test::RecordProperty("mean", std::to_string(with.mean / alone.mean));
  testing::Test::RecordProperty("p99", std::to_string(with.p99 / alone.p99));
  EXPECT_LE(with.mean, 1.5 * alone.mean) << "against " << alone.mean;
  EXPECT_LE(with.p99, 1.5 * alone.p99) << "against " << alone.p99;
}

// Two answers of 30,000 tokens, of which the arena, and the memory for its index, hold one.
TEST(BlockedSimulationTest, ChatsPassOneThatLacksExtentsAndIndex) {
  SimulatedWorker worker = Worker();
  worker.arena_tokens = 32768;
  worker.meta_blocks = 32;
  const SimulatedRequest answer = {.prompt_tokens = 4, .output_tokens = 30000, .max_tokens = 30000};
  const SimulatedRequest chat = {.prompt_tokens = 20, .output_tokens = 3, .max_tokens = 3};
  ExpectShortOnesPass(worker, MakeCrowd(answer, answer, chat, 500, 0.4));
}

TEST(BlockedSimulationTest, ChatsPassOneThatLacksExtentsOnly) {
  SimulatedWorker worker = Worker();
  worker.arena_tokens = 32768;
  const SimulatedRequest answer = {.prompt_tokens = 4, .output_tokens = 30000, .max_tokens = 30000};
  const SimulatedRequest chat = {.prompt_tokens = 200, .output_tokens = 50, .max_tokens = 1000};
  ExpectShortOnesPass(worker, MakeCrowd(answer, answer, chat, 400, 0.4));
}

// Of 800 blocks the long answer may need 470, and the blocked prompt 392.
TEST(BlockedSimulationTest, ChatsPassOneThatLacksDenseBlocks) {
  SimulatedWorker worker = Worker();
  worker.dense_blocks = 800;
  worker.dense_below = 1 << 20;
  const SimulatedRequest answer = {
      .prompt_tokens = 100, .output_tokens = 30000, .max_tokens = 30000};
  const SimulatedRequest prompt = {
      .prompt_tokens = 20000, .output_tokens = 100, .max_tokens = 5000};
  const SimulatedRequest chat = {.prompt_tokens = 500, .output_tokens = 50, .max_tokens = 400};
  ExpectShortOnesPass(worker, MakeCrowd(answer, prompt, chat, 500, 0.4));
}

// --- The blocked one gets its turn

// Beside chats without end that would use all of the memory, it waits for the ends of few of them.
TEST(BlockedSimulationTest, BesideChatsWithoutEndOneThatLacksDenseBlocksBeginsSoon) {
  SimulatedWorker worker = Worker();
  worker.options.max_batch = 32;
  worker.dense_blocks = 200;
  worker.dense_below = 1 << 20;
  const SimulatedRequest chat = {.prompt_tokens = 1000, .output_tokens = 300, .max_tokens = 2000};
  const SimulatedRequest prompt = {.prompt_tokens = 8000, .output_tokens = 100, .max_tokens = 1000};
  const Crowd crowd = MakeCrowd(chat, prompt, chat, 600, 0.35, 10);
  const SimulationResult result = SimulateScheduler(worker, crowd.requests, 1);
  ExpectAllEnd(result);
  const SimulatedRequest& blocked = result.requests[crowd.blocked];
  EXPECT_GT(blocked.first_token - blocked.arrival, 2) << "it was never blocked";
  EXPECT_LE(blocked.first_token - blocked.arrival, 15);
  EXPECT_LT(blocked.first_token, result.requests.back().arrival / 2);
}

// One answer has nearly all of the memory for longer than anyone waits: the blocked one begins when
// the others have ended, and those who come meanwhile do not take what it needs.
TEST(BlockedSimulationTest, ItWaitsForThoseThatEndFirst) {
  SimulatedWorker worker = Worker();
  worker.dense_blocks = 900;
  worker.dense_below = 1 << 20;
  const SimulatedRequest answer = {
      .prompt_tokens = 100, .output_tokens = 40000, .max_tokens = 40000};  // 627 blocks
  const SimulatedRequest prompt = {
      .prompt_tokens = 10000, .output_tokens = 100, .max_tokens = 1000};  // 172 blocks
  const SimulatedRequest chat = {
      .prompt_tokens = 2500, .output_tokens = 300, .max_tokens = 2000};  // 44 or 71 blocks
  const Crowd crowd = MakeCrowd(answer, prompt, chat, 600, 0.3, 10);
  const SimulationResult result = SimulateScheduler(worker, crowd.requests, 1);
  ExpectAllEnd(result);
  const SimulatedRequest& blocked = result.requests[crowd.blocked];
  EXPECT_LE(blocked.first_token - blocked.arrival, 20);
  EXPECT_LT(blocked.first_token, result.requests[kLong].end / 2);
}

// Documents come without end that fit into what others of them give back, as the blocked one does
// not: each time that it asks the store in vain it goes on waiting as before.
TEST(BlockedSimulationTest, BesideDocumentsWithoutEndOneThatLacksExtentsBeginsSoon) {
  SimulatedWorker worker = Worker();
  worker.arena_tokens = 60000;
  const SimulatedRequest document = {
      .prompt_tokens = 9000, .output_tokens = 400, .max_tokens = 400};
  const SimulatedRequest answer = {.prompt_tokens = 4, .output_tokens = 200, .max_tokens = 50000};
  const Crowd crowd = MakeCrowd(document, answer, document, 300, 0.35, 10);
  const SimulationResult result = SimulateScheduler(worker, crowd.requests, 1);
  ExpectAllEnd(result);
  const SimulatedRequest& blocked = result.requests[crowd.blocked];
  EXPECT_GT(blocked.first_token - blocked.arrival, 2) << "it was never blocked";
  EXPECT_LE(blocked.first_token - blocked.arrival, 15);
  EXPECT_LT(blocked.first_token, result.requests.back().arrival / 2);
}

// It lacks extents now and memory then, of which others take what it does not lack at the time.
TEST(BlockedSimulationTest, WhoLacksNowThisAndThenThatBeginsSoon) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SimulatedWorker worker = Worker();
    worker.arena_tokens = 60000;
    worker.dense_blocks = 260;
    const SimulatedRequest document = {
        .prompt_tokens = 9000, .output_tokens = 200, .max_tokens = 200};
    const SimulatedRequest answer = {
        .prompt_tokens = 6000, .output_tokens = 200, .max_tokens = 44000};
    Crowd crowd = MakeCrowd(document, answer, document, 300, 0.5, 10);
    for (size_t i = 2; i < crowd.requests.size(); i += 2) {
      if (i == crowd.blocked) continue;
      crowd.requests[i] = {.arrival = crowd.requests[i].arrival,
                           .prompt_tokens = 1500,
                           .output_tokens = 300,
                           .max_tokens = 3000};
    }
    const SimulationResult result = SimulateScheduler(worker, crowd.requests, seed);
    ExpectAllEnd(result);
    const SimulatedRequest& blocked = result.requests[crowd.blocked];
    EXPECT_LE(blocked.first_token - blocked.arrival, 20) << "seed " << seed;
    EXPECT_LT(blocked.first_token, result.requests.back().arrival / 2);
  }
}

}  // namespace
}  // namespace retroinfer
