#include "gpu_worker/scheduler/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace retroinfer {
namespace {

// A device `slowness` times slower than the guess that the model begins with, roughly.
double Truth(const Work& work, double slowness) {
  return slowness * (6e-3 * work.steps + 3e-4 * work.step_rows + 5e-8 * work.step_context +
                     5e-5 * work.passes + 9e-7 * work.pass_rows + 4e-12 * work.pass_depth);
}

Work Step(double rows, double context) {
  return {.steps = 1, .step_rows = rows, .step_context = context};
}
Work Pass(double rows, double depth) {
  return {.passes = 1, .pass_rows = rows, .pass_depth = rows * depth};
}

class CostModelTest : public testing::TestWithParam<double> {};

TEST_P(CostModelTest, LearnsWhatADeviceTakes) {
  CostModel model;
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> noise(0.9, 1.1);
  for (int i = 0; i < 500; ++i) {
    Work work = Step(1 + static_cast<double>(random() % 8), static_cast<double>(random() % 100000));
    for (uint64_t passes = random() % 40; passes > 0; --passes) {
      work += Pass(64 + static_cast<double>(random() % 960), static_cast<double>(random() % 60000));
    }
    model.Observe(work, Truth(work, GetParam()) * noise(random));
  }
  for (const Work& work : {Step(8, 60000), Pass(1024, 1000), Pass(512, 50000)}) {
    const double truth = Truth(work, GetParam());
    EXPECT_NEAR(model.Seconds(work), truth, 0.25 * truth);
  }
}

TEST_P(CostModelTest, OneObservationTellsTheOrderOfMagnitude) {
  CostModel model;
  const Work work = Pass(256, 0);
  model.Observe(work, Truth(work, GetParam()));
  EXPECT_NEAR(model.Seconds(work), Truth(work, GetParam()), 0.1 * Truth(work, GetParam()));
  const double other = Truth(Pass(1024, 0), GetParam());
  EXPECT_GT(model.Seconds(Pass(1024, 0)), other / 5);
  EXPECT_LT(model.Seconds(Pass(1024, 0)), other * 5);
}

TEST_P(CostModelTest, KeepsWhatDoesNotOccurAnyMore) {
  CostModel model;
  for (int i = 0; i < 200; ++i) {
    const Work pass = Pass(64.0 * (1 + i % 16), 1000.0 * (i % 7));
    model.Observe(pass, Truth(pass, GetParam()));
  }
  const double learned = model.Seconds(Pass(1024, 3000));
  for (int i = 0; i < 20000; ++i) {
    const Work step = Step(1 + i % 8, 100.0 * i);
    model.Observe(step, Truth(step, GetParam()));
  }
  EXPECT_NEAR(model.Seconds(Pass(1024, 3000)), learned, 0.3 * learned);
}

TEST_P(CostModelTest, AStallIsForgotten) {
  CostModel model;
  const Work step = Step(4, 4000);
  for (int i = 0; i < 100; ++i) model.Observe(step, Truth(step, GetParam()));
  model.Observe(step, 1000 * Truth(step, GetParam()));
  EXPECT_LT(model.Seconds(step), 1.2 * Truth(step, GetParam()));
}

// Others use the machine: what is the same work takes between a third and three times as long, and
// now and then much longer.
TEST_P(CostModelTest, NoiseInBothDirectionsLeavesTheMedian) {
  CostModel model;
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> noise(0, 1);
  for (int i = 0; i < 3000; ++i) {
    Work work = Step(1 + static_cast<double>(random() % 8), static_cast<double>(random() % 10000));
    work += Pass(64 + static_cast<double>(random() % 960), static_cast<double>(random() % 60000));
    const double stall = i % 50 == 0 ? 100 : 1;
    model.Observe(work, Truth(work, GetParam()) * noise(random) * stall);
  }
  Work work = Step(4, 5000);
  work += Pass(512, 30000);
  EXPECT_GT(model.Seconds(work), 0.6 * Truth(work, GetParam()));
  EXPECT_LT(model.Seconds(work), 1.7 * Truth(work, GetParam()));
}

TEST_P(CostModelTest, FollowsADeviceThatBecomesFaster) {
  CostModel model;
  const Work step = Step(4, 4000);
  for (int i = 0; i < 500; ++i) model.Observe(step, 6 * Truth(step, GetParam()));
  for (int i = 0; i < 150; ++i) model.Observe(step, Truth(step, GetParam()));
  EXPECT_LT(model.Seconds(step), 2 * Truth(step, GetParam()));
}

TEST_P(CostModelTest, FollowsADeviceThatBecomesSlower) {
  CostModel model;
  const Work step = Step(4, 4000);
  for (int i = 0; i < 100; ++i) model.Observe(step, Truth(step, GetParam()));
  for (int i = 0; i < 500; ++i) model.Observe(step, 3 * Truth(step, GetParam()));
  EXPECT_NEAR(model.Seconds(step), 3 * Truth(step, GetParam()), 0.3 * Truth(step, GetParam()));
}

// Few rows of a long context, each of several prompts: not only their product counts.
TEST_P(CostModelTest, LearnsWhatFewRowsOfALongContextTake) {
  CostModel model;
  const auto pass = [](double rows, double depth) {
    return Work{.passes = 1, .pass_rows = rows, .pass_depth = rows * depth, .pass_reach = depth};
  };
  const auto truth = [&](const Work& work) {
    return Truth(work, GetParam()) + GetParam() * 1e-8 * work.pass_reach;
  };
  for (int i = 0; i < 400; ++i) {
    const Work work = pass(64.0 * (1 + i % 16), 10000.0 * (i % 11));
    model.Observe(work, truth(work));
  }
  for (const Work& work : {pass(64, 100000), pass(1024, 100000), pass(1024, 0)}) {
    EXPECT_NEAR(model.Seconds(work), truth(work), 0.15 * truth(work));
  }
}

// A row of a tail takes `k` times what an answer's row takes there, a cold one ten of these more.
TEST_P(CostModelTest, LearnsRowsOfTailsApartFromAnswers) {
  for (const double k : {0.3, 1.0, 4.0}) {
    SCOPED_TRACE(k);
    CostModel model;
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> noise(0.9, 1.1);
    const auto truth = [&](const Work& work) {
      const double tails =
          Truth({.step_rows = work.tail_rows, .step_context = work.tail_context}, GetParam());
      return Truth(work, GetParam()) + k * tails + GetParam() * 5e-7 * work.cold_context;
    };
    const auto tails = [](double rows, double context, bool is_cold) {
      return Work{.tail_rows = rows,
                  .tail_context = rows * context,
                  .cold_context = is_cold ? rows * context : 0};
    };
    for (int i = 0; i < 600; ++i) {
      const double answers = static_cast<double>(random() % 8);
      Work work = Step(answers, answers * static_cast<double>(random() % 100000));
      if (i % 3 == 0) {
        work += tails(1 + static_cast<double>(random() % 60),
                      static_cast<double>(20000 + random() % 80000), i % 9 == 0);
      }
      model.Observe(work, truth(work) * noise(random));
    }
    std::vector<Work> works(4, Step(4, 200000));
    works[1] += tails(60, 100000, false);
    works[2] += tails(8, 50000, true);
    works[3] += tails(1, 100000, true);
    for (const Work& work : works) {
      EXPECT_NEAR(model.Seconds(work), truth(work), 0.15 * truth(work)) << work.tail_rows;
    }
  }
}

// All questions are alike: rows, their context and whether they are cold go together, so that
// nothing tells their costs apart.
TEST_P(CostModelTest, WhatAlwaysComesTogetherIsNeitherNegativeNorUnbounded) {
  CostModel model;
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> noise(0.7, 1.3);
  constexpr double kRows = 8, kContext = 100000;
  const Work question{.steps = 1,
                      .tail_rows = kRows,
                      .tail_context = kRows * kContext,
                      .cold_context = kRows * kContext};
  const double truth = GetParam() * 0.040;
  for (int i = 0; i < 20000; ++i) {
    model.Observe(question, truth * noise(random));
    if (i % 1000 > 0) continue;
    for (const double of_part : model.SecondsByPart(question)) {
      EXPECT_GE(of_part, 0);
      EXPECT_LE(of_part, 1.3 * truth);
    }
  }
  EXPECT_NEAR(model.Seconds(question), truth, 0.15 * truth);
  Work half = question;
  half.tail_rows /= 2;
  half.tail_context /= 2;
  half.cold_context /= 2;
  EXPECT_LE(model.Seconds(half), 1.2 * truth);
  EXPECT_GE(model.Seconds(half), 0.4 * truth);
}

// Cold rows do not come for thousands of steps, and cost what they did when they do.
TEST_P(CostModelTest, ColdRowsKeepTheirCost) {
  CostModel model;
  const auto tail = [](double cold) {
    return Work{.steps = 1, .tail_rows = 8, .tail_context = 8e5, .cold_context = cold * 8e5};
  };
  const auto truth = [&](const Work& work) {
    return GetParam() * (5e-3 * work.steps + 3e-4 * work.tail_rows + 4e-8 * work.cold_context);
  };
  for (int i = 0; i < 50; ++i) model.Observe(tail(i % 5 == 0), truth(tail(i % 5 == 0)));
  for (int i = 0; i < 5000; ++i) model.Observe(tail(0), truth(tail(0)));
  EXPECT_NEAR(model.Seconds(tail(1)), truth(tail(1)), 0.1 * truth(tail(1)));
  EXPECT_NEAR(model.Seconds(tail(0)), truth(tail(0)), 0.1 * truth(tail(0)));
}

// Passes of 1,024 rows of sparse prompts, 8B shape, products in fp8 (docs/benchmarks/kernels.md,
// first-token.md): choice and chosen blocks of all rows of a layer.
TEST(CostModelOfSparsePassesTest, OneCostForEachTokenBeforeARowIsNearEnough) {
  struct Prompt {
    double tokens, sparse_seconds;
  };
  constexpr double kDense = 4096, kOfRow = 3.4e-7, kOfExact = 157e-3 / (117760.0 * 117760 / 2);
  const std::vector<Prompt> prompts = {{8192, 0.62e-3}, {16384, 1.88e-3}, {117760, 64.4e-3}};
  const auto work_of = [&](const Prompt& prompt) {
    return Work{.passes = prompt.tokens / 1024,
                .pass_rows = prompt.tokens,
                .pass_depth = kDense * kDense / 2,
                .sparse_depth = (prompt.tokens * prompt.tokens - kDense * kDense) / 2};
  };
  const auto truth = [&](const Prompt& prompt) {
    return prompt.sparse_seconds + kOfRow * prompt.tokens + 2e-5 * prompt.tokens / 1024;
  };
  CostModel model;
  for (int i = 0; i < 600; ++i) {
    const Prompt& prompt = prompts[static_cast<size_t>(i) % prompts.size()];
    model.Observe(work_of(prompt), truth(prompt));
    const Work exact{.passes = 4, .pass_rows = 4096, .pass_depth = 1e7 * (i % 40)};
    model.Observe(exact, 8e-5 + 4096 * kOfRow + kOfExact * exact.pass_depth);
  }
  for (const Prompt& prompt : prompts) {
    EXPECT_NEAR(model.Seconds(work_of(prompt)), truth(prompt), 0.1 * truth(prompt))
        << prompt.tokens;
  }
}

TEST_P(CostModelTest, LearnsWhatTheBackgroundTakesAway) {
  CostModel model;
  for (int i = 0; i < 400; ++i) {
    Work work = Step(4, 1000.0 * (i % 9));
    work += Pass(64.0 * (1 + i % 16), 10000.0 * (i % 11));
    const bool is_clustering = i % 3 == 0;
    if (is_clustering) work.seconds_beside_clustering = model.Seconds(work);
    model.Observe(work, Truth(work, GetParam()) * (is_clustering ? 1.6 : 1));
  }
  Work work = Step(4, 4000);
  work += Pass(512, 50000);
  const double truth = Truth(work, GetParam());
  EXPECT_NEAR(model.Seconds(work), truth, 0.1 * truth);
  work.seconds_beside_clustering = model.Seconds(work);
  EXPECT_NEAR(model.Seconds(work), 1.6 * truth, 0.15 * truth);
}

TEST_P(CostModelTest, TheMarginIsWhatNearlyNoRoundTakesMoreThan) {
  CostModel model;
  std::mt19937_64 random(1);
  const auto observe = [&](double most, int count) {
    std::uniform_real_distribution<double> noise(1, most);
    for (int i = 0; i < count; ++i) {
      Work work = Step(4, 1000.0 * (i % 9));
      work += Pass(64.0 * (1 + i % 16), 10000.0 * (i % 11));
      model.Observe(work, Truth(work, GetParam()) * noise(random));
    }
  };
  observe(1.02, 1000);
  EXPECT_LT(model.margin(), 1.15);
  observe(3, 1000);
  EXPECT_GT(model.margin(), 1.3);
  EXPECT_LE(model.margin(), CostModel::kMostMargin);
  observe(1.02, 3000);
  EXPECT_LT(model.margin(), 1.15) << "it is no more so";
}

INSTANTIATE_TEST_SUITE_P(Slowness, CostModelTest, testing::Values(0.1, 1.0, 50.0, 2000.0));

TEST(CostModelAtTheStartTest, SomethingIsGuessed) {
  EXPECT_GT(CostModel().Seconds(Pass(1, 0)), 0);
  EXPECT_EQ(CostModel().Seconds({}), 0);
}

}  // namespace
}  // namespace retroinfer
