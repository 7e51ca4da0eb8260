// Thousands of requests on a clock that no test waits for: what the scheduler promises, under
// arrivals drawn from seeds, beside the policy before it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/gpu_worker/scheduler/simulation.h"

namespace retroinfer {
namespace {

using test_support::FirstComeFirstServed;
using test_support::Simulate;
using test_support::SimulatedRequest;
using test_support::SimulatedWorker;
using test_support::SimulateScheduler;
using test_support::SimulationResult;

constexpr size_t kRequests = 10000;

SimulatedWorker Worker() {
  SimulatedWorker worker;
  worker.options = {.num_layers = 32, .max_rows = 1024, .max_batch = 8};
  return worker;
}

class Arrivals {
 public:
  explicit Arrivals(uint64_t seed) : random_(seed) {}

  double Exponential(double mean) {
    return std::exponential_distribution<double>(1 / mean)(random_);
  }
  int64_t Uniform(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  // Pareto with exponent 1.1: the mean is made by few.
  int64_t HeavyTail(int64_t least, int64_t most) {
    const double u = std::uniform_real_distribution<double>(1e-9, 1)(random_);
    const double drawn = static_cast<double>(least) * std::pow(u, -1 / 1.1);
    return static_cast<int64_t>(std::min(drawn, static_cast<double>(most)));
  }
  SimulatedRequest Chat(double arrival) {
    const int64_t output = Uniform(1, 16);
    return {.arrival = arrival,
            .prompt_tokens = Uniform(10, 1500),
            .output_tokens = output,
            .max_tokens = output + Uniform(0, 400)};
  }

 private:
  std::mt19937_64 random_;
};

std::vector<SimulatedRequest> Poisson(uint64_t seed, double mean_gap) {
  Arrivals draw(seed);
  std::vector<SimulatedRequest> requests;
  double now = 0;
  while (requests.size() < kRequests) {
    requests.push_back(draw.Chat(now += draw.Exponential(mean_gap)));
    // One in 200 is long.
    if (draw.Uniform(0, 199) == 0) requests.back().prompt_tokens = draw.Uniform(9000, 60000);
  }
  return requests;
}

std::vector<SimulatedRequest> Bursts(uint64_t seed) {
  Arrivals draw(seed);
  std::vector<SimulatedRequest> requests;
  double now = 0;
  while (requests.size() < kRequests) {
    now += draw.Exponential(5);
    const int64_t size = draw.Uniform(1, 300);
    for (int64_t i = 0; i < size && requests.size() < kRequests; ++i) {
      requests.push_back(draw.Chat(now));
    }
  }
  return requests;
}

std::vector<SimulatedRequest> HeavyTails(uint64_t seed) {
  Arrivals draw(seed);
  std::vector<SimulatedRequest> requests;
  double now = 0;
  while (requests.size() < kRequests) {
    requests.push_back(draw.Chat(now += draw.Exponential(0.08)));
    requests.back().prompt_tokens = draw.HeavyTail(50, 120000);
    requests.back().output_tokens = draw.HeavyTail(2, 2000);
    requests.back().max_tokens = requests.back().output_tokens;
  }
  return requests;
}

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values.empty()
             ? 0
             : values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

template <typename Predicate>
std::vector<double> FirstTokens(const SimulationResult& result, Predicate of) {
  std::vector<double> waits;
  for (const SimulatedRequest& request : result.requests) {
    if (of(request)) waits.push_back(request.first_token - request.arrival);
  }
  return waits;
}
bool IsShort(const SimulatedRequest& request) { return request.prompt_tokens <= 1500; }

void ExpectAllEnd(const SimulationResult& result, uint64_t seed) {
  EXPECT_EQ(result.broken, "") << "seed " << seed;
  const auto ended =
      std::count_if(result.requests.begin(), result.requests.end(),
                    [](const SimulatedRequest& request) { return request.end >= 0; });
  EXPECT_EQ(ended, std::ssize(result.requests)) << "seed " << seed;
}

SimulationResult Before(SimulatedWorker worker, std::vector<SimulatedRequest> requests,
                        uint64_t seed) {
  worker.reserves_all = true;
  FirstComeFirstServed policy(worker);
  return Simulate(
      worker, std::move(requests), [&](const SchedulerInput& input) { return policy.Plan(input); },
      [](const Work&, double) {}, seed);
}

// A tenant's requests that are all there from the beginning.
void AddFlood(uint64_t seed, uint32_t tenant, size_t count,
              std::vector<SimulatedRequest>& requests) {
  Arrivals draw(seed);
  for (size_t i = 0; i < count; ++i) {
    requests.push_back(draw.Chat(0));
    requests.back().tenant = tenant;
  }
}

void SortByArrival(std::vector<SimulatedRequest>& requests) {
  std::stable_sort(requests.begin(), requests.end(),
                   [](const auto& a, const auto& b) { return a.arrival < b.arrival; });
}

// Memory is never exceeded, lanes never hold too much, there is work whenever there could be:
// Simulate() says so in `broken`.
TEST(SchedulerSimulationTest, EveryRequestEndsWhateverComes) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    ExpectAllEnd(SimulateScheduler(Worker(), Poisson(seed, 0.05), seed), seed);
    ExpectAllEnd(SimulateScheduler(Worker(), Bursts(seed), seed), seed);
    ExpectAllEnd(SimulateScheduler(Worker(), HeavyTails(seed), seed), seed);
  }
}

TEST(SchedulerSimulationTest, LittleMemoryIsEnoughForAll) {
  SimulatedWorker worker = Worker();
  worker.dense_blocks = 140;     // one context of 8192 tokens and little else
  worker.arena_tokens = 124000;  // one of the longest
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    ExpectAllEnd(SimulateScheduler(worker, HeavyTails(seed), seed), seed);
    ExpectAllEnd(SimulateScheduler(worker, Poisson(seed, 0.05), seed), seed);
  }
}

TEST(SchedulerSimulationTest, StreamsGoOnBesidePrompts) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const SimulationResult result = SimulateScheduler(Worker(), Poisson(seed, 0.06), seed);
    std::vector<double> gaps;
    for (const SimulatedRequest& request : result.requests) gaps.push_back(request.longest_gap);
    EXPECT_LE(Percentile(gaps, 0.99), 1.2 * Worker().options.inter_token_target) << "seed " << seed;
    EXPECT_GE(Percentile(gaps, 0.99), 0.5 * Worker().options.inter_token_target) << "unused time";
  }
}

// Segments of each layer are built beside the next one, and take half of the device meanwhile: what
// was the same rows is then another time.
TEST(SchedulerSimulationTest, StreamsGoOnBesideAPromptWhoseSegmentsAreBuilt) {
  for (const double slowness : {1.3, 1.7, 2.2}) {
    SimulatedWorker worker = Worker();
    worker.options.max_rows = 8192;
    worker.background_slowness = slowness;
    worker.background_seconds_per_token = 1e-6;
    std::vector<SimulatedRequest> requests(
        4, {.prompt_tokens = 256, .output_tokens = 1500, .max_tokens = 1500});
    requests.push_back({.arrival = 2, .prompt_tokens = 110000, .max_tokens = 1});
    for (int i = 0; i < 20; ++i) {
      requests.push_back({.arrival = 2.5 + 0.5 * i, .prompt_tokens = 512, .max_tokens = 1});
    }
    const SimulationResult result = SimulateScheduler(worker, requests, 1);
    ExpectAllEnd(result, 1);
    EXPECT_LE(Percentile(result.gaps, 0.99), 0.06) << slowness;
    const SimulationResult alone = SimulateScheduler(worker, {requests[4]}, 1);
    EXPECT_LE(result.requests[4].first_token - 2, 1.35 * (alone.requests[0].first_token - 2));
    const auto is_short = [](const SimulatedRequest& one) { return one.prompt_tokens == 512; };
    EXPECT_LE(Percentile(FirstTokens(result, is_short), 0.5), 0.1);
  }
}

TEST(SchedulerSimulationTest, ALongPromptEndsBesideShortOnesWithoutEnd) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    // More short prompts than can be served.
    std::vector<SimulatedRequest> requests = Poisson(seed, 0.01);
    for (SimulatedRequest& request : requests) {
      request.prompt_tokens = 10 + request.prompt_tokens % 1500;
    }
    requests.resize(3000);
    requests[100].prompt_tokens = 110000;
    const SimulationResult result = SimulateScheduler(Worker(), requests, seed);
    ExpectAllEnd(result, seed);
    const SimulationResult alone = SimulateScheduler(Worker(), {requests[100]}, seed);
    const double seconds = alone.requests[0].first_token - alone.requests[0].arrival;
    const double took = result.requests[100].first_token - result.requests[100].arrival;
    EXPECT_LE(took, seconds / Scheduler::kLeastShare * 1.5) << "seed " << seed;
  }
}

TEST(SchedulerSimulationTest, SharesFollowWeights) {
  SimulatedWorker worker = Worker();
  worker.weights = {1, 2, 4};
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    worker.options.preempts = seed % 2 == 0;
    std::vector<SimulatedRequest> requests;
    for (uint32_t tenant = 0; tenant < 3; ++tenant) {
      AddFlood(seed + tenant, tenant, size_t{500} << tenant, requests);
    }
    // One of them asks in larger pieces.
    for (SimulatedRequest& request : requests) {
      if (request.tenant == 1) request.prompt_tokens *= 2;
      if (request.tenant == 1) request.output_tokens *= 2;
      request.max_tokens = std::max(request.max_tokens, request.output_tokens);
    }
    const SimulationResult result = SimulateScheduler(worker, requests, seed);
    ExpectAllEnd(result, seed);
    const std::vector<double>& served = result.served_at_half;
    const double all = std::accumulate(served.begin(), served.end(), 0.0);
    for (size_t tenant = 0; tenant < 3; ++tenant) {
      const double due = worker.weights[tenant] / 7;
      EXPECT_NEAR(served[tenant] / all, due, 0.05 * due) << "tenant " << tenant << " seed " << seed;
    }
  }
}

TEST(SchedulerSimulationTest, ATenantThatFloodsHarmsItselfOnly) {
  SimulatedWorker worker = Worker();
  worker.weights = {1, 1};
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    std::vector<SimulatedRequest> requests;
    AddFlood(seed, 0, 3000, requests);
    Arrivals draw(seed);
    for (double now = 0; now < 60; now += draw.Exponential(0.5)) {
      requests.push_back(draw.Chat(now));
      requests.back().tenant = 1;
    }
    SortByArrival(requests);
    const SimulationResult result = SimulateScheduler(worker, requests, seed);
    ExpectAllEnd(result, seed);
    const auto of_other = [](const SimulatedRequest& request) { return request.tenant == 1; };
    EXPECT_LE(Percentile(FirstTokens(result, of_other), 0.99), 1.0) << "seed " << seed;
    if (seed > 1) continue;  // it is slow, too
    const SimulationResult before = Before(worker, requests, seed);
    EXPECT_GE(Percentile(FirstTokens(before, of_other), 0.99), 10.0) << "seed " << seed;
  }
}

// --- Suspension

constexpr int32_t kHigh = 0, kLow = 2;

// Long answers of the low class fill the batch; every few seconds come some of the high class.
std::vector<SimulatedRequest> BurstsBesideLongAnswers(uint64_t seed) {
  Arrivals draw(seed);
  std::vector<SimulatedRequest> requests;
  for (int i = 0; i < 60; ++i) {
    requests.push_back({.arrival = draw.Exponential(5),
                        .prompt_tokens = draw.Uniform(100, 12000),
                        .output_tokens = draw.Uniform(400, 3000),
                        .priority = kLow});
    requests.back().max_tokens = requests.back().output_tokens + draw.Uniform(0, 1000);
  }
  for (double now = 10; now < 200; now += 2 + draw.Exponential(5)) {
    const int64_t size = draw.Uniform(1, 6);
    for (int64_t i = 0; i < size; ++i) {
      requests.push_back(draw.Chat(now));
      requests.back().priority = kHigh;
    }
  }
  SortByArrival(requests);
  return requests;
}

bool IsHigh(const SimulatedRequest& request) { return request.priority == kHigh; }

TEST(SchedulerSimulationTest, AHigherClassDoesNotWaitForLongAnswers) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    for (const int64_t dense_blocks : {400, 4096}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << dense_blocks << " blocks");
      SimulatedWorker worker = Worker();
      worker.dense_blocks = dense_blocks;
      const std::vector<SimulatedRequest> requests = BurstsBesideLongAnswers(seed);
      const SimulationResult without = SimulateScheduler(worker, requests, seed);
      worker.options.preempts = true;
      const SimulationResult with = SimulateScheduler(worker, requests, seed);
      ExpectAllEnd(without, seed);
      ExpectAllEnd(with, seed);
      EXPECT_LE(Percentile(FirstTokens(with, IsHigh), 0.5), 0.3);
      EXPECT_LE(Percentile(FirstTokens(with, IsHigh), 0.95), 1.5);
      EXPECT_GE(Percentile(FirstTokens(without, IsHigh), 0.95), 20.0);
      EXPECT_LE(with.end, 1.1 * without.end);
      int64_t suspensions = 0;
      for (const SimulatedRequest& request : with.requests) {
        EXPECT_LE(request.suspensions, IsHigh(request) ? 0 : Scheduler::kMaxSuspensions);
        suspensions += request.suspensions;
      }
      EXPECT_GT(suspensions, 0);
      for (const SimulatedRequest& request : without.requests) EXPECT_EQ(request.suspensions, 0);
    }
  }
}

// Of any class and tenant, with memory for few, on the device and on the host.
TEST(SchedulerSimulationTest, ASuspendedRequestEndsWhateverComes) {
  SimulatedWorker worker = Worker();
  worker.options.preempts = true;
  worker.weights = {1, 3};
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    for (const bool is_little : {false, true}) {
      worker.dense_blocks = is_little ? 140 : 600;
      worker.arena_tokens = is_little ? 124000 : 262144;
      worker.suspended_blocks = is_little ? 100 : 1024;
      std::vector<SimulatedRequest> requests = seed % 2 == 0 ? HeavyTails(seed) : Bursts(seed);
      requests.resize(1500);
      Arrivals draw(seed);
      int64_t suspensions = 0;
      for (SimulatedRequest& request : requests) {
        request.priority = static_cast<int32_t>(draw.Uniform(0, 3));
        request.tenant = static_cast<uint32_t>(draw.Uniform(0, 1));
        if (draw.Uniform(0, 9) == 0) request.output_tokens = draw.Uniform(100, 800);
        request.max_tokens = std::max(request.max_tokens, request.output_tokens);
      }
      const SimulationResult result = SimulateScheduler(worker, requests, seed);
      ExpectAllEnd(result, seed);
      for (const SimulatedRequest& request : result.requests) suspensions += request.suspensions;
      EXPECT_GT(suspensions, 0) << "seed " << seed;
    }
  }
}

// All of one class: what one tenant got too much of is given back.
TEST(SchedulerSimulationTest, ATenantThatGotFarMoreIsPreempted) {
  SimulatedWorker worker = Worker();
  worker.weights = {1, 1};
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Arrivals draw(seed);
    std::vector<SimulatedRequest> requests;
    for (int i = 0; i < 8; ++i) {
      requests.push_back(
          {.arrival = 0, .prompt_tokens = 500, .output_tokens = 12000, .max_tokens = 12000});
    }
    for (double now = 1; now < 60; now += draw.Exponential(2)) {
      requests.push_back(draw.Chat(now));
      requests.back().tenant = 1;
    }
    const auto of_other = [](const SimulatedRequest& request) { return request.tenant == 1; };
    worker.options.preempts = false;
    const SimulationResult without = SimulateScheduler(worker, requests, seed);
    worker.options.preempts = true;
    const SimulationResult with = SimulateScheduler(worker, requests, seed);
    ExpectAllEnd(with, seed);
    EXPECT_GE(Percentile(FirstTokens(without, of_other), 0.5), 30.0) << "seed " << seed;
    EXPECT_LE(Percentile(FirstTokens(with, of_other), 0.5), 10.0) << "seed " << seed;
    EXPECT_LE(with.end, 1.05 * without.end) << "seed " << seed;
    for (const SimulatedRequest& request : with.requests) {
      EXPECT_LE(request.suspensions, of_other(request) ? 0 : Scheduler::kMaxSuspensions);
    }
  }
}

TEST(SchedulerSimulationTest, IsFasterThanFirstComeFirstServed) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    for (std::vector<SimulatedRequest> requests : {Bursts(seed), HeavyTails(seed)}) {
      requests.resize(1000);
      const SimulationResult now = SimulateScheduler(Worker(), requests, seed);
      const SimulationResult before = Before(Worker(), requests, seed);
      EXPECT_LE(Percentile(FirstTokens(now, IsShort), 0.5),
                Percentile(FirstTokens(before, IsShort), 0.5) / 3);
      EXPECT_LE(Percentile(FirstTokens(now, IsShort), 0.99),
                Percentile(FirstTokens(before, IsShort), 0.99) / 2);
      EXPECT_LE(now.end, 1.02 * before.end);
    }
  }
}

TEST(SchedulerSimulationTest, TheSameSeedGivesTheSameRun) {
  const std::vector<SimulatedRequest> requests = Bursts(5);
  const SimulationResult a = SimulateScheduler(Worker(), requests, 7);
  const SimulationResult b = SimulateScheduler(Worker(), requests, 7);
  EXPECT_EQ(a.end, b.end);
  EXPECT_EQ(a.rounds, b.rounds);
}

}  // namespace
}  // namespace retroinfer
