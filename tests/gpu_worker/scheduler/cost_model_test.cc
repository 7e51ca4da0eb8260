#include "gpu_worker/scheduler/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

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
