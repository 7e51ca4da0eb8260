#include "gpu_worker/ops/model/cpu/route_experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/parallel_rows.h"
#include "gpu_worker/ops/model/route_experts_check.h"

namespace retroinfer::cpu {
namespace {

constexpr float kLast = -std::numeric_limits<float>::infinity();

float RankOf(float score) { return std::isnan(score) ? kLast : score; }

// The experts of a row, each inserted behind those that are not smaller.
void ChooseExperts(std::span<const float> scores, std::span<int32_t> chosen) {
  size_t count = 0;
  for (size_t expert = 0; expert < scores.size(); ++expert) {
    const auto score_of = [&](size_t place) {
      return RankOf(scores[static_cast<size_t>(chosen[place])]);
    };
    size_t place = count;
    while (place > 0 && RankOf(scores[expert]) > score_of(place - 1)) --place;
    if (place == chosen.size()) continue;
    count = std::min(count + 1, chosen.size());
    for (size_t i = count - 1; i > place; --i) chosen[i] = chosen[i - 1];
    chosen[place] = static_cast<int32_t>(expert);
  }
}

void WeighExperts(std::span<const float> scores, std::span<const int32_t> chosen,
                  bool weights_sum_to_one, std::span<float> weights) {
  const float largest = scores[static_cast<size_t>(chosen[0])];
  float sum = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    weights[i] = std::exp(scores[static_cast<size_t>(chosen[i])] - largest);
    sum += weights[i];
  }
  if (!weights_sum_to_one) {
    sum = 0;
    for (const float score : scores) sum += std::exp(score - largest);
  }
  for (float& weight : weights) weight /= sum;
}

// Sorts the pairs of a group by expert.
void SortPairs(const RoutePlan& plan, std::span<const int32_t> experts, std::span<int32_t> words) {
  const auto begins = words.subspan(static_cast<size_t>(plan.begins_at()),
                                    static_cast<size_t>(plan.num_experts) + 1);
  const auto pairs =
      words.subspan(static_cast<size_t>(plan.pairs_at()), static_cast<size_t>(plan.group_pairs()));
  std::fill(begins.begin(), begins.end(), 0);
  // Each expert's count two places on, then its beginning one place on, which its pairs move.
  for (const int32_t expert : experts) {
    const auto place = static_cast<size_t>(expert) + 2;
    if (place < begins.size()) ++begins[place];
  }
  for (size_t i = 2; i < begins.size(); ++i) begins[i] += begins[i - 1];
  for (size_t pair = 0; pair < experts.size(); ++pair) {
    int32_t& place = begins[static_cast<size_t>(experts[pair]) + 1];
    pairs[static_cast<size_t>(place++)] = static_cast<int32_t>(pair);
  }
}

}  // namespace

absl::Status RouteExperts(CpuStream& stream, const RouteExpertsArgs& args) {
  RETURN_IF_ERROR(CheckRouteExperts(args));
  if (args.scores.rows == 0) return absl::OkStatus();
  return stream.Launch([args](ThreadPool& pool) {
    const ExpertRoutes& routes = args.routes;
    const int64_t rows = args.scores.rows;
    const auto each = static_cast<size_t>(routes.per_row);
    const std::span<int32_t> experts(routes.experts.device_data(), routes.experts.size());
    ParallelRows(pool, rows, 16 * routes.num_experts, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const std::span<const float> scores(
            reinterpret_cast<const float*>(args.scores.Rows(row, 1).data),
            static_cast<size_t>(routes.num_experts));
        const size_t at = static_cast<size_t>(row) * each;
        ChooseExperts(scores, experts.subspan(at, each));
        WeighExperts(scores, experts.subspan(at, each), args.weights_sum_to_one,
                     std::span(routes.weights.device_data() + at, each));
      }
    });
    const RoutePlan plan = RoutePlan::Of(routes.num_experts, routes.per_row, rows, args.decode);
    pool.ParallelFor(plan.num_groups(rows), [&](int64_t group) {
      const int64_t first = group * plan.group_rows;
      const int64_t count = std::min(plan.group_rows, rows - first);
      SortPairs(
          plan,
          experts.subspan(static_cast<size_t>(first) * each, static_cast<size_t>(count) * each),
          std::span(routes.plan.device_data() + group * plan.group_words(),
                    static_cast<size_t>(plan.group_words())));
    });
  });
}

}  // namespace retroinfer::cpu
