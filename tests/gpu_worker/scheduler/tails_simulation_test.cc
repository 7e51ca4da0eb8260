// Questions whose ends are fed to steps, beside streams: what the cost model predicts of steps with
// rows of tails, how long streams wait between two tokens, and how long the questions take. The
// device is one H100 with a model of 8 billion parameters, policy wave and KV in 8 bits
// (docs/benchmarks/reuse.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/gpu_worker/scheduler/simulation.h"

namespace retroinfer {
namespace {

using test_support::Simulate;
using test_support::SimulatedRequest;
using test_support::SimulatedWorker;
using test_support::SimulationResult;

constexpr int64_t kText = 102'272;
constexpr int64_t kTail = 64;

double WaveSeconds(const Work& work) {
  return 4.6e-3 * work.steps + 5e-5 * work.step_rows + 3e-9 * work.step_context +
         5e-5 * work.passes + 3.5e-7 * work.pass_rows + 6e-12 * work.pass_depth +
         1e-9 * work.cached;
}

SimulatedWorker Worker(double tail_row, double cold_row) {
  SimulatedWorker worker;
  worker.options = {.num_layers = 32, .max_rows = 1024, .max_batch = 64};
  worker.seconds = WaveSeconds;
  worker.tail_row = tail_row;
  worker.cold_row = cold_row;
  return worker;
}

SimulatedRequest Stream(double arrival, int64_t tokens) {
  return {.arrival = arrival, .prompt_tokens = 2000, .output_tokens = tokens, .max_tokens = tokens};
}

SimulatedRequest Question(double arrival, uint64_t text, int64_t given = kTail) {
  return {.arrival = arrival,
          .prompt_tokens = 1087,
          .output_tokens = 1,
          .max_tokens = 1,
          .text = text,
          .text_tokens = kText,
          .given_tokens = given};
}

struct Outcome {
  SimulationResult result;
  std::vector<double> errors;  // of rounds with a step: seconds over predicted seconds
};

Outcome Serve(const SimulatedWorker& worker, const std::vector<SimulatedRequest>& requests,
              uint64_t seed) {
  Outcome outcome;
  Scheduler scheduler(worker.options);
  const auto plan = [&](const SchedulerInput& input) { return scheduler.Plan(input); };
  const auto observe = [&](const Work& work, double seconds) {
    if (work.steps > 0) outcome.errors.push_back(seconds / scheduler.costs().Seconds(work));
    scheduler.costs().Observe(work, seconds);
  };
  outcome.result = Simulate(worker, requests, plan, observe, seed);
  return outcome;
}

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values.empty()
             ? 0
             : values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

std::vector<SimulatedRequest> Load(int bursts, int questions, int streams, bool prompts) {
  std::vector<SimulatedRequest> requests;
  for (int i = 0; i < streams; ++i) requests.push_back(Stream(0, 200 * bursts / 2));
  for (int burst = 0; burst < bursts; ++burst) {
    for (int i = 0; i < questions; ++i) {
      requests.push_back(Question(1 + 0.5 * burst, 1 + static_cast<uint64_t>(burst)));
    }
    if (prompts) requests.push_back({.arrival = 1 + 0.5 * burst, .prompt_tokens = 8000});
  }
  std::stable_sort(requests.begin(), requests.end(),
                   [](const auto& a, const auto& b) { return a.arrival < b.arrival; });
  return requests;
}

// What a row of a tail takes, times what an answer's row takes there, and more where its text is
// cold. By docs/benchmarks/reuse.md a warm row takes 0.7 to 1, a cold question's first rows 6
// to 11.
struct Costs {
  double tail_row, cold_row;
};
constexpr Costs kCosts[] = {{0.72, 10}, {1, 5.5}, {0.72, 0}, {2, 0}, {0.3, 0}};

// Two bursts of questions a second, each on a text of its own, beside four streams.
TEST(TailsSimulationTest, StreamsKeepTheirTargetBesideQuestions) {
  for (const Costs& costs : kCosts) {
    for (const int questions : {1, 8, 24}) {
      for (const bool prompts : {false, true}) {
        SCOPED_TRACE(testing::Message() << costs.tail_row << " " << costs.cold_row << ", "
                                        << questions << " questions, prompts: " << prompts);
        const Outcome outcome =
            Serve(Worker(costs.tail_row, costs.cold_row), Load(40, questions, 4, prompts), 1);
        ASSERT_EQ(outcome.result.broken, "");
        EXPECT_LE(Percentile(outcome.result.gaps, 0.99), 0.06);
        EXPECT_LE(Percentile(outcome.result.gaps, 0.999), 0.075);
      }
    }
  }
}

// Of 1,000 rounds ten may be off by more than the noise and 10 %: costs are guesses at first.
TEST(TailsSimulationTest, WhatStepsWithTailsTakeIsPredicted) {
  for (const Costs& costs : kCosts) {
    SCOPED_TRACE(testing::Message() << costs.tail_row << " " << costs.cold_row);
    const Outcome outcome = Serve(Worker(costs.tail_row, costs.cold_row), Load(40, 8, 4, false), 1);
    EXPECT_GE(Percentile(outcome.errors, 0.005), 0.8);
    EXPECT_LE(Percentile(outcome.errors, 0.995), 1.25);
  }
}

double FirstToken(const SimulatedRequest& request) { return request.first_token - request.arrival; }

// Prompts wait all the time, and would take all of a round.
TEST(TailsSimulationTest, QuestionsAreAnsweredBesidePromptsWithoutEnd) {
  std::vector<SimulatedRequest> requests = {Stream(0, 1200), Stream(0, 1200)};
  for (int i = 0; i < 400; ++i) {
    requests.push_back({.arrival = 0, .prompt_tokens = 6000, .priority = 1});
  }
  for (int i = 0; i < 6; ++i) requests.push_back(Question(2 + i, static_cast<uint64_t>(i) + 1));
  const Outcome outcome = Serve(Worker(0.72, 10), requests, 1);
  ASSERT_EQ(outcome.result.broken, "");
  ASSERT_GT(outcome.result.end, 20) << "prompts wait longer than questions come";
  for (const SimulatedRequest& one : outcome.result.requests) {
    if (one.given_tokens > 0) {
      EXPECT_LE(FirstToken(one), 0.4) << "a few rounds more than a group of prompts takes";
    }
  }
}

TEST(TailsSimulationTest, APromptIsReadBesideQuestionsWithoutEnd) {
  std::vector<SimulatedRequest> requests = {Stream(0, 2000), Stream(0, 2000)};
  for (int i = 0; i < 80; ++i) requests.push_back(Question(0.1 * i, 1, 256));
  const SimulatedRequest prompt{.arrival = 3, .prompt_tokens = 30000, .max_tokens = 1};
  requests.push_back(prompt);
  std::stable_sort(requests.begin(), requests.end(),
                   [](const auto& a, const auto& b) { return a.arrival < b.arrival; });
  const Outcome beside = Serve(Worker(0.72, 10), requests, 1);
  ASSERT_EQ(beside.result.broken, "");
  const Outcome alone = Serve(Worker(0.72, 10), {prompt}, 1);
  for (const SimulatedRequest& one : beside.result.requests) {
    if (one.prompt_tokens != prompt.prompt_tokens) continue;
    EXPECT_LE(FirstToken(one), 4 * FirstToken(alone.result.requests.front()));
  }
}

// One tenant asks without end, and shorter questions than the other.
TEST(TailsSimulationTest, ATenantThatFloodsDelaysItsOwnQuestions) {
  SimulatedWorker worker = Worker(0.72, 10);
  worker.weights = {1, 1};
  std::vector<SimulatedRequest> requests = {Stream(0, 2000)};
  for (int i = 0; i < 600; ++i) requests.push_back(Question(0.01 * i, 1, 128));
  for (int i = 0; i < 10; ++i) {
    requests.push_back(Question(1 + 0.5 * i, 2, 200));
    requests.back().tenant = 1;
  }
  std::stable_sort(requests.begin(), requests.end(),
                   [](const auto& a, const auto& b) { return a.arrival < b.arrival; });
  const Outcome outcome = Serve(worker, requests, 1);
  ASSERT_EQ(outcome.result.broken, "");
  std::vector<double> of_flood, of_other;
  for (const SimulatedRequest& one : outcome.result.requests) {
    if (one.given_tokens == 0) continue;
    (one.tenant == 1 ? of_other : of_flood).push_back(FirstToken(one));
  }
  EXPECT_LE(Percentile(of_other, 0.9), 0.5);
  EXPECT_GE(Percentile(of_flood, 0.9), 1.5) << "there is a flood";
}

}  // namespace
}  // namespace retroinfer
