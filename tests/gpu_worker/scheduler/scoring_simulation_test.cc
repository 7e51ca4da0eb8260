// How long given tokens take on a device whose step of one row takes longer than the target between
// two tokens, alone and beside others.
#include <gtest/gtest.h>

#include <vector>

#include "tests/gpu_worker/scheduler/simulation.h"

namespace retroinfer {
namespace {

using test_support::SimulatedRequest;
using test_support::SimulatedWorker;
using test_support::SimulateScheduler;
using test_support::SimulationResult;

constexpr double kSlowness = 57;    // of two cores against the device of TrueSeconds()
constexpr int64_t kContext = 6000;  // tokens
constexpr int64_t kGiven = 64;      // tokens

SimulatedWorker Cpu() {
  SimulatedWorker worker;
  worker.options = {.num_layers = 24, .max_rows = 1024, .max_batch = 8};
  worker.slowness = [](double) { return kSlowness; };
  return worker;
}

SimulatedRequest Score(double arrival) {
  return {.arrival = arrival,
          .prompt_tokens = kContext,
          .output_tokens = kGiven,
          .max_tokens = kGiven,
          .is_scoring = true};
}

double SecondsToDecode(const SimulatedRequest& request) {
  return request.end - request.first_token;
}

double StepSeconds(double rows) {
  return kSlowness * test_support::TrueSeconds(
                         {.steps = 1, .step_rows = rows, .step_context = rows * kContext});
}

TEST(ScoringSimulationTest, NobodyElseIsThereAndGivenTokensFillSteps) {
  ASSERT_GT(StepSeconds(1), 5 * Cpu().options.inter_token_target);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const SimulationResult result = SimulateScheduler(Cpu(), {Score(0)}, seed);
    ASSERT_EQ(result.broken, "");
    EXPECT_LE(result.steps, 10) << "63 tokens behind the first one, eight in most steps";
    EXPECT_LE(SecondsToDecode(result.requests[0]), 1.15 * 8 * StepSeconds(8)) << "seed " << seed;
  }
}

// Two scores are nobody that waits for a token either.
TEST(ScoringSimulationTest, SeveralScoresShareSteps) {
  const SimulationResult result = SimulateScheduler(Cpu(), {Score(0), Score(0)}, 1);
  ASSERT_EQ(result.broken, "");
  EXPECT_LE(result.steps, 24);
}

TEST(ScoringSimulationTest, AnAnswerThatIsReadIsNotSlowedDownByRowsOfScores) {
  const SimulatedRequest chat{
      .arrival = 0, .prompt_tokens = 100, .output_tokens = 100, .max_tokens = 100};
  SimulatedRequest other = Score(0);
  other.is_scoring = false;
  const SimulationResult beside_chat = SimulateScheduler(Cpu(), {chat, other}, 1);
  const SimulationResult beside_score = SimulateScheduler(Cpu(), {chat, Score(0)}, 1);
  ASSERT_EQ(beside_score.broken, "");
  EXPECT_LE(beside_score.requests[0].longest_gap, 1.1 * beside_chat.requests[0].longest_gap);
  EXPECT_LE(beside_score.requests[0].end, 1.1 * beside_chat.requests[0].end);
}

// Prompts of others are read beside scoring as fast as before, and nearly so fast as beside chats.
TEST(ScoringSimulationTest, APromptIsReadBesideAScore) {
  SimulatedRequest score = Score(0);
  score.output_tokens = score.max_tokens = 2000;
  SimulatedRequest chat = score;
  chat.is_scoring = false;
  const SimulatedRequest prompt{.arrival = 60, .prompt_tokens = 2000};
  const SimulationResult beside_score = SimulateScheduler(Cpu(), {score, prompt}, 1);
  const SimulationResult beside_chat = SimulateScheduler(Cpu(), {chat, prompt}, 1);
  ASSERT_EQ(beside_score.broken, "");
  ASSERT_GT(beside_score.requests[0].end, 60) << "the score still runs";
  ASSERT_LT(beside_score.requests[0].first_token, 60);
  EXPECT_LE(beside_score.requests[1].first_token - 60,
            1.6 * (beside_chat.requests[1].first_token - 60));
}

}  // namespace
}  // namespace retroinfer
