#include "client/tune/budget_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"

namespace retroinfer::client {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

// `differences` of log-probabilities, full less wave; every second likeliest token is another one.
WindowScores Window(const std::vector<double>& differences) {
  WindowScores window;
  for (size_t i = 0; i < differences.size(); ++i) {
    window.full.push_back({.logprob = -1, .greedy = 7});
    window.wave.push_back({.logprob = -1 - differences[i], .greedy = i % 2 == 0 ? 7 : 8});
  }
  return window;
}

TEST(SummarizeTest, MeansAndTheErrorsOfWindows) {
  const std::vector<WindowScores> windows = {Window({0.1, -0.1}), Window({0.3, 0.3}),
                                             Window({0.2, 0.2})};
  const common::MeasuredRatio measured = Summarize(8192, 0.05, windows);
  EXPECT_EQ(measured.context, 8192);
  EXPECT_EQ(measured.ratio, 0.05);
  EXPECT_EQ(measured.windows, 3);
  EXPECT_EQ(measured.tokens, 6);
  EXPECT_THAT(measured.change, DoubleNear(0.2, 1e-9));
  EXPECT_THAT(measured.change_error, DoubleNear(0.1 / std::sqrt(3), 1e-9));
  EXPECT_THAT(measured.perplexity, DoubleNear(std::exp(1.0 / 6) - 1, 1e-9));
  EXPECT_GT(measured.perplexity_error, 0);
  EXPECT_EQ(measured.agreement, 0.5);
}

TEST(SummarizeTest, OneWindowHasTheErrorOfItsRuns) {
  std::vector<double> differences(64, 0.1);
  std::fill(differences.begin() + 32, differences.end(), 0.3);
  const std::vector<WindowScores> windows = {Window(differences)};
  EXPECT_THAT(Summarize(1, 1, windows).change_error, DoubleNear(0.1, 1e-9));
  const std::vector<WindowScores> alike = {Window(std::vector<double>(64, 0.1))};
  EXPECT_THAT(Summarize(1, 1, alike).change_error, DoubleNear(0, 1e-9));
}

TEST(MeetsTargetTest, TheMeanAndOneErrorAreWithin) {
  const common::MeasuredRatio measured{
      .change = 0.04, .change_error = 0.01, .perplexity = -0.01, .perplexity_error = 0.012};
  EXPECT_TRUE(MeetsTarget(measured, {.change = 0.0501}));
  EXPECT_FALSE(MeetsTarget(measured, {.change = 0.0499}));
  EXPECT_TRUE(MeetsTarget(measured, {.change = std::nullopt, .perplexity = 0.003}));
  EXPECT_FALSE(MeetsTarget(measured, {.change = std::nullopt, .perplexity = 0.001}));
}

TEST(RatioLadderTest, RatiosThatRetrieveTheLeastNumberAreOneRung) {
  const std::vector<double> all = RatioLadder(int64_t{1} << 20, 64);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  EXPECT_EQ(all.front(), 0.0045);
  EXPECT_EQ(all.back(), 1);
  // 64 of 512 clusters are 12.5 %.
  const std::vector<double> few = RatioLadder(8192, 64);
  EXPECT_EQ(few[0], 0.1);
  EXPECT_EQ(few[1], 0.14);
  EXPECT_THAT(RatioLadder(512, 64), ElementsAre(0.8, 1)) << "all clusters are retrieved anyway";
}

// A ratio changes tokens by `strength` over its root, with an error of a tenth.
class FindBudgetTest : public testing::Test {
 protected:
  absl::StatusOr<FoundBudget> Find(double strength, double target, double standard = 0.018) {
    calls_.clear();
    return FindBudget(ladder_, standard, {.change = target},
                      [&](double ratio) -> absl::StatusOr<common::MeasuredRatio> {
                        calls_.push_back(ratio);
                        if (calls_.size() == fails_at_) return absl::UnavailableError("gone");
                        const double change = strength / std::sqrt(ratio);
                        return common::MeasuredRatio{
                            .ratio = ratio, .change = change, .change_error = change / 10};
                      });
  }
  double Cheapest(double strength, double target) const {
    for (const double ratio : ladder_) {
      if (1.1 * strength / std::sqrt(ratio) <= target) return ratio;
    }
    return 0;
  }

  const std::vector<double> ladder_ = RatioLadder(int64_t{1} << 20, 64);
  std::vector<double> calls_;
  size_t fails_at_ = 0;
};

TEST_F(FindBudgetTest, TheCheapestRungThatMeetsTheTargetIsFoundFromAnyStart) {
  for (const double standard : {0.001, 0.018, 0.035, 0.3, 1.0}) {
    for (double strength = 0.0005; strength < 0.045; strength *= 1.07) {
      const auto found = Find(strength, 0.05, standard);
      ASSERT_TRUE(found.ok());
      ASSERT_EQ(found->budget.chosen.ratio, Cheapest(strength, 0.05)) << strength;
      EXPECT_TRUE(found->budget.meets_target);
      EXPECT_LE(calls_.size(), 8u);
      std::vector<double> tried = calls_;
      std::sort(tried.begin(), tried.end());
      EXPECT_EQ(std::adjacent_find(tried.begin(), tried.end()), tried.end()) << "measured twice";
      ASSERT_EQ(found->measured.size(), tried.size());
      for (size_t i = 0; i < tried.size(); ++i) EXPECT_EQ(found->measured[i].ratio, tried[i]);
    }
  }
}

TEST_F(FindBudgetTest, WhereNoneMeetsTheTargetTheLastIsChosenAndSaysSo) {
  const auto found = Find(1, 0.05);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->budget.chosen.ratio, 1);
  EXPECT_FALSE(found->budget.meets_target);
}

TEST_F(FindBudgetTest, ItBeginsAtTheStandardAndEndsWithTheFirstError) {
  ASSERT_TRUE(Find(0.01, 0.05).ok());
  EXPECT_EQ(calls_[0], 0.018);
  fails_at_ = 2;
  EXPECT_TRUE(absl::IsUnavailable(Find(0.01, 0.05).status()));
  EXPECT_EQ(calls_.size(), 2u);
}

TEST(FindBudgetOfOneRungTest, ItIsMeasuredAndChosen) {
  const double one[] = {1.0};
  for (const double change : {0.0, 1.0}) {
    const auto found = FindBudget(one, 0.018, {.change = 0.05}, [&](double ratio) {
      return common::MeasuredRatio{.ratio = ratio, .change = change};
    });
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found->budget.chosen.ratio, 1);
    EXPECT_EQ(found->budget.meets_target, change == 0);
  }
}

}  // namespace
}  // namespace retroinfer::client
