#include "gpu_worker/ops/model/route_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
  std::vector<int32_t> plan;
};

class RouteExpertsTest : public testing::TestWithParam<BackendParam> {
 protected:
  Routed Route(std::span<const float> scores, int64_t num_experts, int64_t per_row, bool decode,
               bool weights_sum_to_one = true) {
    const int64_t rows = std::ssize(scores) / num_experts;
    const auto in = data_.UploadMatrix(scores, rows, num_experts, DType::kF32);
    const auto pairs = static_cast<size_t>(rows * per_row);
    const DeviceBuffer experts = data_.Upload(std::vector<int32_t>(pairs, -1));
    const DeviceBuffer weights = data_.Upload(std::vector<float>(pairs, kNan));
    const DeviceBuffer plan = data_.Upload(std::vector<int32_t>(
        static_cast<size_t>(RoutePlan::MostWords(num_experts, per_row, rows)), -1));
    const absl::Status status = backend_->ops->model().RouteExperts(
        *backend_->stream, {.scores = in.view,
                            .weights_sum_to_one = weights_sum_to_one,
                            .decode = decode,
                            .routes = {.num_experts = num_experts,
                                       .per_row = per_row,
                                       .experts = experts.as<int32_t>(),
                                       .weights = weights.as<float>(),
                                       .plan = plan.as<int32_t>()}});
    EXPECT_TRUE(status.ok()) << status;
    return {data_.Download<int32_t>(experts), data_.Download<float>(weights),
            data_.Download<int32_t>(plan)};
  }

  // Every pair is with its expert, in its order, and no other is.
  static void CheckPlan(const Routed& routed, const RoutePlan& plan, int64_t rows) {
    for (int64_t group = 0; group < plan.num_groups(rows); ++group) {
      const int32_t* const words = routed.plan.data() + group * plan.group_words();
      const int64_t first = group * plan.group_pairs();
      const int64_t count =
          std::min(plan.group_rows, rows - group * plan.group_rows) * plan.per_row;
      int32_t at = 0;
      for (int32_t expert = 0; expert < plan.num_experts; ++expert) {
        ASSERT_EQ(words[plan.begins_at() + expert], at) << expert;
        for (int32_t pair = 0; pair < count; ++pair) {
          if (routed.experts[static_cast<size_t>(first + pair)] != expert) continue;
          ASSERT_EQ(words[plan.pairs_at() + at++], pair) << expert;
        }
      }
      ASSERT_EQ(words[plan.begins_at() + plan.num_experts], at);
      ASSERT_EQ(at, count);
    }
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(RouteExpertsTest, ChoosesByHand) {
  const std::vector<float> scores = {1, 4, 2, 3, 0, 0, 5, 5};
  for (const bool decode : {false, true}) {
    const Routed routed = Route(scores, 4, 2, decode);
    EXPECT_EQ(routed.experts, (std::vector<int32_t>{1, 3, 2, 3}));
    const float large = 1 / (1 + std::exp(-1.0f));
    EXPECT_NEAR(routed.weights[0], large, 1e-6);
    EXPECT_NEAR(routed.weights[1], 1 - large, 1e-6);
    EXPECT_EQ(routed.weights[2], 0.5f);
    EXPECT_EQ(routed.weights[3], 0.5f);
    const Routed of_all = Route(scores, 4, 2, decode, false);
    EXPECT_EQ(of_all.experts, routed.experts);
    const double sum = std::exp(-3.0) + 1 + std::exp(-2.0) + std::exp(-1.0);
    EXPECT_NEAR(of_all.weights[0], 1 / sum, 1e-6);
    EXPECT_NEAR(of_all.weights[1], std::exp(-1.0) / sum, 1e-6);
  }
}

TEST_P(RouteExpertsTest, OfEqualScoresTheFirstAreChosenAndNanIsLast) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const bool decode : {false, true}) {
    EXPECT_EQ(Route(std::vector<float>(40, 0.5f), 40, 3, decode).experts,
              (std::vector<int32_t>{0, 1, 2}));
    EXPECT_EQ(Route(std::vector<float>{-1, -0.0f, 0.0f, -0.0f}, 4, 3, decode).experts,
              (std::vector<int32_t>{1, 2, 3}));
    EXPECT_EQ(Route(std::vector<float>{kNan, -7, kNan, -8}, 4, 4, decode).experts,
              (std::vector<int32_t>{1, 3, 0, 2}));
    EXPECT_EQ(Route(std::vector<float>{-infinity, infinity, kNan}, 3, 3, decode).experts,
              (std::vector<int32_t>{1, 0, 2}));
    // Whatever a broken model gives, there are experts to read.
    EXPECT_EQ(Route(std::vector<float>(5, kNan), 5, 2, decode).experts,
              (std::vector<int32_t>{0, 1}));
  }
}

TEST_P(RouteExpertsTest, FollowsASortAndPlansEachPairOnce) {
  struct Size {
    int64_t rows, experts, per_row;
  };
  for (const Size& size : {Size{1, 1, 1}, Size{1, 128, 8}, Size{7, 33, 16}, Size{64, 128, 8},
                           Size{65, 256, 3}, Size{200, 8, 2}, Size{1000, 128, 8}}) {
    const auto scores = RandomNormal(static_cast<size_t>(size.rows * size.experts), 1);
    for (const bool decode : {false, true}) {
      const Routed routed = Route(scores, size.experts, size.per_row, decode);
      std::vector<int32_t> order(static_cast<size_t>(size.experts));
      for (int64_t row = 0; row < size.rows; ++row) {
        const auto of_row = std::span(scores).subspan(static_cast<size_t>(row * size.experts),
                                                      static_cast<size_t>(size.experts));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          return of_row[static_cast<size_t>(a)] > of_row[static_cast<size_t>(b)];
        });
        double sum = 0;
        for (int64_t i = 0; i < size.per_row; ++i) {
          sum += std::exp(double{of_row[static_cast<size_t>(order[static_cast<size_t>(i)])]});
        }
        for (int64_t i = 0; i < size.per_row; ++i) {
          const auto pair = static_cast<size_t>(row * size.per_row + i);
          const int32_t expert = order[static_cast<size_t>(i)];
          ASSERT_EQ(routed.experts[pair], expert) << row << ", " << i;
          ASSERT_NEAR(routed.weights[pair],
                      std::exp(double{of_row[static_cast<size_t>(expert)]}) / sum, 1e-6);
        }
      }
      CheckPlan(routed, RoutePlan::Of(size.experts, size.per_row, size.rows, decode), size.rows);
    }
  }
}

TEST_P(RouteExpertsTest, NothingToDoForNoRows) {
  const Routed routed = Route({}, 8, 2, true);
  EXPECT_TRUE(routed.experts.empty());
}

TEST_P(RouteExpertsTest, RefusesWhatDoesNotFit) {
  const auto scores = data_.UploadMatrix(std::vector<float>(16), 2, 8, DType::kF32);
  const DeviceBuffer words = data_.Upload(std::vector<int32_t>(1000));
  const RouteExpertsArgs good = {.scores = scores.view,
                                 .routes = {.num_experts = 8,
                                            .per_row = 2,
                                            .experts = words.as<int32_t>(),
                                            .weights = words.as<float>().subspan(400, 100),
                                            .plan = words.as<int32_t>().subspan(500, 500)}};
  const auto refused = [&](const auto& spoil) {
    RouteExpertsArgs args = good;
    spoil(args);
    return backend_->ops->model().RouteExperts(*backend_->stream, args).code() ==
           absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](RouteExpertsArgs&) {}));
  EXPECT_TRUE(refused([](RouteExpertsArgs& args) { args.routes.per_row = 0; }));
  EXPECT_TRUE(refused([](RouteExpertsArgs& args) { args.routes.per_row = 9; }));
  EXPECT_TRUE(refused([](RouteExpertsArgs& args) { args.routes.num_experts = 7; }));
  EXPECT_TRUE(refused([](RouteExpertsArgs& args) { args.routes.num_experts = 257; }));
  EXPECT_TRUE(refused([](RouteExpertsArgs& args) { args.scores.dtype = DType::kBf16; }));
  EXPECT_TRUE(
      refused([](RouteExpertsArgs& args) { args.routes.experts = args.routes.experts.first(3); }));
  EXPECT_TRUE(
      refused([](RouteExpertsArgs& args) { args.routes.weights = args.routes.weights.first(3); }));
  EXPECT_TRUE(
      refused([](RouteExpertsArgs& args) { args.routes.plan = args.routes.plan.first(10); }));
}

TEST(RoutePlanTest, MostWordsAreEnoughForFewerRows) {
  for (const int64_t experts : {1, 8, 128, 256}) {
    for (const int64_t per_row : {int64_t{1}, std::min<int64_t>(experts, 8)}) {
      for (const int64_t most : {1, 63, 64, 65, 130, 600}) {
        for (int64_t rows = 1; rows <= most; ++rows) {
          for (const bool decode : {false, true}) {
            ASSERT_LE(RoutePlan::Of(experts, per_row, rows, decode).Words(rows),
                      RoutePlan::MostWords(experts, per_row, most))
                << experts << ", " << per_row << ", " << rows << " of " << most;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RouteExpertsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
