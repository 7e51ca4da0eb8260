#include "client/bench/load_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace retroinfer::client {
namespace {

constexpr std::array<int32_t, 2> kExcluded = {3, 7};

LoadPlanOptions Options() {
  return {.num_prompts = 2000,
          .input_len = 12,
          .prefix_len = 5,
          .request_rate = 50,
          .vocab_size = 20,
          .excluded_tokens = kExcluded,
          .seed = 9};
}

TEST(LoadPlanTest, PromptsShareOnlyTheirPrefixAndHoldNoExcludedToken) {
  const std::vector<PlannedRequest> plan = PlanLoad(Options());
  ASSERT_EQ(plan.size(), 2000u);
  int num_equal_tails = 0;
  for (const PlannedRequest& request : plan) {
    ASSERT_EQ(request.token_ids.size(), 12u);
    EXPECT_TRUE(std::equal(plan[0].token_ids.begin(), plan[0].token_ids.begin() + 5,
                           request.token_ids.begin()));
    for (const int32_t token : request.token_ids) {
      ASSERT_TRUE(token >= 0 && token < 20 && token != 3 && token != 7) << token;
    }
    num_equal_tails += request.token_ids == plan[0].token_ids;
  }
  EXPECT_EQ(num_equal_tails, 1);
}

TEST(LoadPlanTest, ArrivalsAreAPoissonProcessOfTheRate) {
  const std::vector<PlannedRequest> plan = PlanLoad(Options());
  EXPECT_EQ(plan[0].arrival, absl::ZeroDuration());
  double squares = 0;
  for (size_t i = 1; i < plan.size(); ++i) {
    const double gap = absl::ToDoubleSeconds(plan[i].arrival - plan[i - 1].arrival);
    ASSERT_GE(gap, 0);
    squares += gap * gap;
  }
  // 1,999 exponential gaps of mean 1/50 s: 6 standard errors of the mean, and of the mean square.
  const double mean = absl::ToDoubleSeconds(plan.back().arrival) / 1999;
  EXPECT_NEAR(mean, 0.02, 6 * 0.02 / std::sqrt(1999.0));
  EXPECT_NEAR(squares / 1999, 2 * 0.02 * 0.02, 6 * 4.5 * 0.02 * 0.02 / std::sqrt(1999.0));
}

TEST(LoadPlanTest, TheSeedDecidesAndAnInfiniteRateSendsAllAtOnce) {
  LoadPlanOptions options = Options();
  const std::vector<PlannedRequest> first = PlanLoad(options);
  EXPECT_EQ(PlanLoad(options)[77].token_ids, first[77].token_ids);
  EXPECT_EQ(PlanLoad(options)[77].arrival, first[77].arrival);
  options.seed = 10;
  EXPECT_NE(PlanLoad(options)[77].token_ids, first[77].token_ids);
  options.request_rate = std::numeric_limits<double>::infinity();
  EXPECT_EQ(PlanLoad(options).back().arrival, absl::ZeroDuration());
}

}  // namespace
}  // namespace retroinfer::client
