// Deadlines and limits under more load than can be served, on a clock that no test waits for: the
// scheduler's estimates with the inbox that refuses by them.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/inbox.h"
#include "tests/gpu_worker/scheduler/simulation.h"

namespace retroinfer {
namespace {

using test_support::Hooks;
using test_support::Simulate;
using test_support::SimulatedRequest;
using test_support::SimulatedWorker;
using test_support::SimulationResult;

constexpr double kGoodFirstToken = 2;  // seconds: a request that has it by then was worth serving

// The engine's door before the scheduler: what LocalEngine does with a submission.
class Door {
 public:
  Door(const SimulatedWorker& worker, const Inbox::Limits& limits,
       std::vector<common::Tenant> tenants, const std::vector<SimulatedRequest>& requests)
      : worker_(worker), scheduler_(worker.options), inbox_(limits), requests_(requests) {
    for (common::Tenant& tenant : tenants) {
      tenants_.push_back(std::make_shared<const common::Tenant>(std::move(tenant)));
    }
  }

  // One that is let in whatever its deadline.
  void Exempt(uint64_t id) { exempt_ = id; }
  std::vector<uint64_t> unreachable;  // refused for their deadlines
  int64_t most_waiting_tokens = 0;    // of tenant 0, at any time

  SimulationResult Run(uint64_t seed) {
    const Hooks hooks{
        .admit = [this](const auto& input, const auto& request) { return Admit(input, request); },
        .on_read =
            [this](uint64_t id) {
              Count(id, -1);
              inbox_.PromptRead(absl::StrCat(id));
            },
        .on_end =
            [this](uint64_t id) {
              Count(id, -1);
              inbox_.Forget(absl::StrCat(id));
            }};
    return Simulate(
        worker_, requests_, [this](const SchedulerInput& input) { return scheduler_.Plan(input); },
        [this](const Work& work, double seconds) { scheduler_.costs().Observe(work, seconds); },
        seed, hooks);
  }

 private:
  bool Admit(const SchedulerInput& input, const RequestDescription& request) {
    const SimulatedRequest& told = requests_[request.id];
    SchedulerInput before = input;  // the others
    before.requests.pop_back();
    inbox_.SetExpectedWait(absl::Seconds(scheduler_.ExpectedWait(before)));
    Submission submission;
    submission.request.request_id = absl::StrCat(request.id);
    submission.request.prompt.resize(static_cast<size_t>(told.prompt_tokens));
    if (!tenants_.empty()) submission.request.tenant = tenants_[told.tenant];
    if (!inbox_.Submit(std::move(submission)).ok()) return false;
    inbox_.Take(absl::ZeroDuration());
    Count(request.id, 1);
    if (request.id == exempt_ || !scheduler_.knows_costs()) return true;
    if (0.7 * scheduler_.EarliestFirstToken(input, request) <= told.deadline) return true;
    unreachable.push_back(request.id);
    return false;
  }

  void Count(uint64_t id, int64_t times) {
    if (requests_[id].tenant != 0) return;
    const bool waits = times > 0;
    if (waiting_.contains(id) == waits) return;
    waits ? (void)waiting_.insert(id) : (void)waiting_.erase(id);
    waiting_tokens_ += times * requests_[id].prompt_tokens;
    most_waiting_tokens = std::max(most_waiting_tokens, waiting_tokens_);
  }

  const SimulatedWorker worker_;
  Scheduler scheduler_;
  Inbox inbox_;
  std::vector<std::shared_ptr<const common::Tenant>> tenants_;
  const std::vector<SimulatedRequest> requests_;
  std::optional<uint64_t> exempt_;
  absl::flat_hash_set<uint64_t> waiting_;
  int64_t waiting_tokens_ = 0;
};

SimulatedWorker Worker(std::vector<double> weights = {1}) {
  SimulatedWorker worker;
  worker.options = {.num_layers = 32, .max_rows = 1024, .max_batch = 8};
  worker.weights = std::move(weights);
  return worker;
}

// Chats and, one in twenty, long documents, `times` what the device can do. Each waits for its
// first token for so long as pleases it.
std::vector<SimulatedRequest> Load(uint64_t seed, double times, size_t count, double deadline) {
  std::mt19937_64 random(seed);
  const auto uniform = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  std::exponential_distribution<double> gap(times * 12);
  std::uniform_real_distribution<double> patience(0.2, 2);
  std::vector<SimulatedRequest> requests;
  double now = 0;
  while (requests.size() < count) {
    now += gap(random);
    const int64_t output = uniform(1, 40);
    requests.push_back(
        {.arrival = now,
         .prompt_tokens = uniform(0, 19) == 0 ? uniform(8192, 40000) : uniform(10, 2000),
         .output_tokens = output,
         .max_tokens = output,
         .deadline = deadline * patience(random)});
  }
  return requests;
}

bool IsInTime(const SimulatedRequest& request) {
  return request.first_token >= 0 && request.first_token <= request.arrival + request.deadline;
}

// Requests a second that had their first token when it was still of use.
double Goodput(const SimulationResult& result, double seconds) {
  const auto good = std::count_if(
      result.requests.begin(), result.requests.end(), [](const SimulatedRequest& request) {
        return request.first_token >= 0 && request.first_token - request.arrival <= kGoodFirstToken;
      });
  return static_cast<double>(good) / seconds;
}

TEST(LimitsSimulationTest, WhoIsRefusedForItsDeadlineCouldNotHaveMetIt) {
  int tried = 0, could = 0;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const std::vector<SimulatedRequest> requests = Load(seed, 2, 500, 0.4);
    Door door(Worker(), {}, {}, requests);
    ASSERT_EQ(door.Run(seed).broken, "");
    ASSERT_GE(door.unreachable.size(), 5u) << "there is something to look at";
    // What would have become of some of them, had they been let in.
    const size_t step = std::max<size_t>(1, door.unreachable.size() / 20);
    for (size_t i = 0; i < door.unreachable.size(); i += step) {
      const uint64_t id = door.unreachable[i];
      Door other(Worker(), {}, {}, requests);
      other.Exempt(id);
      ++tried;
      could += IsInTime(other.Run(seed).requests[id]);
    }
  }
  RecordProperty("tried", tried);
  EXPECT_LE(could, 0.05 * tried) << "of " << tried;
}

// Of those who are let in with a limit of the wait that is their patience, few wait in vain.
TEST(LimitsSimulationTest, FewOfThoseWhoAreLetInWaitInVain) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    for (const double times : {1.0, 3.0}) {
      std::vector<SimulatedRequest> requests = Load(seed, times, 3000, 1);
      for (SimulatedRequest& request : requests) request.deadline = 4;
      Door door(Worker(), {.max_expected_wait = absl::Seconds(2)}, {}, requests);
      const SimulationResult result = door.Run(seed);
      ASSERT_EQ(result.broken, "");
      int64_t let_in = 0, late = 0;
      for (const SimulatedRequest& request : result.requests) {
        if (request.is_refused) continue;
        ++let_in;
        late += !IsInTime(request);
      }
      EXPECT_LE(static_cast<double>(late), 0.05 * static_cast<double>(let_in))
          << times << " times the load, seed " << seed << ", let in " << let_in;
    }
  }
}

TEST(LimitsSimulationTest, ThreeTimesTheLoadIsServedAsWellAsOnce) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    std::vector<double> goodput;
    for (const double times : {1.0, 2.0, 3.0}) {
      const std::vector<SimulatedRequest> requests =
          Load(seed, times, static_cast<size_t>(1500 * times), 1000);
      Door door(Worker(), {.max_expected_wait = absl::Seconds(1)}, {}, requests);
      const SimulationResult result = door.Run(seed);
      ASSERT_EQ(result.broken, "");
      goodput.push_back(Goodput(result, result.end));
    }
    EXPECT_GE(goodput[1], 0.9 * goodput[0]) << "seed " << seed;
    EXPECT_GE(goodput[2], 0.9 * goodput[0]) << "seed " << seed;
  }
}

TEST(LimitsSimulationTest, ATenantWaitsWithinItsLimitsAndOthersDoNotNotice) {
  const std::vector<common::Tenant> tenants = {
      {.name = "flood", .max_requests = 30, .max_waiting_tokens = 20000}, {.name = "other"}};
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    std::vector<SimulatedRequest> requests = Load(seed, 4, 3000, 1000);
    const std::vector<SimulatedRequest> few = Load(seed + 100, 0.2, 150, 1000);
    for (SimulatedRequest request : few) {
      if (request.prompt_tokens > 2000) continue;  // what its own long ones take is its own affair
      request.tenant = 1;
      requests.push_back(request);
    }
    std::stable_sort(requests.begin(), requests.end(),
                     [](const auto& a, const auto& b) { return a.arrival < b.arrival; });
    Door door(Worker({1, 1}), {}, tenants, requests);
    const SimulationResult result = door.Run(seed);
    ASSERT_EQ(result.broken, "");
    int64_t refused = 0;
    std::vector<double> waits;
    for (const SimulatedRequest& request : result.requests) {
      refused += request.is_refused;
      if (request.tenant == 0) continue;
      EXPECT_FALSE(request.is_refused);
      waits.push_back(request.first_token - request.arrival);
    }
    EXPECT_GT(refused, 1000);
    // One prompt may always wait, however long it is.
    EXPECT_LE(door.most_waiting_tokens, 40000);
    std::sort(waits.begin(), waits.end());
    EXPECT_LE(waits[waits.size() * 95 / 100], 1.0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace retroinfer
