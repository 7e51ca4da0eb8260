#include "gpu_worker/ops/index/estimate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/meta_pool_image.h"

namespace retroinfer {
namespace {

using namespace test_support;

class EstimateTest : public testing::TestWithParam<BackendParam> {
 protected:
  // Sequence 0 estimates 101 of 192 clusters, sequence 1 none, sequence 2 all 64 of its own.
  // `num_candidates`: so many of each row's clusters, if it has them, are in the other list; and
  // every third score is -inf.
  void CheckAgainstDoubles(const KvFormat& format, uint32_t head_dim, uint32_t group,
                           float deviation, int32_t num_candidates = 0) {
    const KvGeometry geometry{2, 2, head_dim, format};
    const int32_t query_heads = static_cast<int32_t>(2 * group);
    const int64_t max_clusters = 192, max_estimated = 128;
    const std::vector<std::vector<MetaBlockId>> lists = {{2, 0, 1}, {}, {3}};
    const std::vector<int32_t> counts = {101, 99, 0, 0, 64, 1};
    MetaPoolImage pool(geometry, 4);
    pool.Randomize(3, 0);
    const MetaIndexImage indexes(data_, lists);
    const size_t query_rows = 3 * static_cast<size_t>(query_heads);
    auto scores = RandomNormal(query_rows * static_cast<size_t>(max_clusters), 8, deviation);
    for (size_t i = 0; num_candidates > 0 && i < scores.size(); i += 3) scores[i] = -INFINITY;
    std::vector<int32_t> estimated(6 * static_cast<size_t>(max_estimated), -1);
    std::mt19937 random(4);
    for (size_t row = 0; row < 6; ++row) {
      std::vector<int32_t> all(lists[row / 2].size() * 64);
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      std::copy_n(all.begin(), counts[row],
                  estimated.begin() + static_cast<int64_t>(row) * max_estimated);
    }
    // The first ones become candidates; the others move up.
    const int64_t max_candidates = num_candidates == 0 ? 0 : 64;
    std::vector<int32_t> candidates(6 * static_cast<size_t>(max_candidates), -1);
    std::vector<int32_t> others = estimated, candidate_counts(6), other_counts = counts;
    for (size_t row = 0; num_candidates > 0 && row < 6; ++row) {
      const int32_t count = std::min(num_candidates, counts[row]);
      const auto first = estimated.begin() + static_cast<int64_t>(row) * max_estimated;
      std::copy_n(first, count, candidates.begin() + static_cast<int64_t>(row) * max_candidates);
      std::copy(first + count, first + max_estimated,
                others.begin() + static_cast<int64_t>(row) * max_estimated);
      candidate_counts[row] = count;
      other_counts[row] -= count;
    }
    const auto poisoned = [&](size_t size) { return data_.Upload(std::vector<float>(size, kNan)); };
    const DeviceBuffer max = poisoned(query_rows), sum = poisoned(query_rows);
    const DeviceBuffer acc = poisoned(query_rows * head_dim);
    const DeviceBuffer scratch = data_.Allocate(backend_->ops->index().EstimateScratchBytes(
        3, query_heads, static_cast<int32_t>(head_dim), max_estimated + max_candidates));
    const DeviceBuffer device_scores = data_.Upload(scores);
    const DeviceBuffer device_estimated = data_.Upload(others),
                       device_counts = data_.Upload(other_counts),
                       device_candidates = data_.Upload(candidates),
                       device_candidate_counts = data_.Upload(candidate_counts);
    ASSERT_TRUE(backend_->ops->index()
                    .Estimate(*backend_->stream,
                              {.pool = pool.Upload(data_),
                               .layer = 1,
                               .indexes = indexes.views(),
                               .batch = 3,
                               .num_query_heads = query_heads,
                               .scores = device_scores.as<const float>(),
                               .max_clusters = max_clusters,
                               .estimated = device_estimated.as<const int32_t>(),
                               .num_estimated = device_counts.as<const int32_t>(),
                               .max_estimated = max_estimated,
                               .candidates = device_candidates.as<const int32_t>(),
                               .num_candidates = device_candidate_counts.as<const int32_t>(),
                               .max_candidates = max_candidates,
                               .out = {max.as<float>(), sum.as<float>(), acc.as<float>()},
                               .scratch = scratch.bytes()})
                    .ok());
    const auto got_max = data_.Download<float>(max), got_sum = data_.Download<float>(sum);
    const auto got_acc = data_.Download<float>(acc);
    for (size_t q = 0; q < query_rows; ++q) {
      const size_t sequence = q / static_cast<size_t>(query_heads);
      const auto head = static_cast<uint32_t>(q) % static_cast<uint32_t>(query_heads) / group;
      const size_t row = sequence * 2 + head;
      const int32_t* chosen = estimated.data() + row * static_cast<size_t>(max_estimated);
      const float* x = scores.data() + q * static_cast<size_t>(max_clusters);
      double want_max = -INFINITY, want_sum = 0;
      for (int32_t i = 0; i < counts[row]; ++i) want_max = std::max(want_max, double{x[chosen[i]]});
      std::vector<double> want_acc(head_dim);
      for (int32_t i = 0; i < counts[row]; ++i) {
        const MetaBlockId block = lists[sequence][static_cast<size_t>(chosen[i] / 64)];
        const size_t place = static_cast<size_t>(chosen[i] % 64);
        const double weight = x[chosen[i]] == -INFINITY ? 0 : std::exp(x[chosen[i]] - want_max);
        want_sum += weight * pool.host().Entries(block, 1, head)[place].num_tokens;
        for (size_t j = 0; j < head_dim; ++j) {
          want_acc[j] +=
              weight * pool.ValueSum(pool.host().ValueSums(block, 1, head), place * head_dim + j);
        }
      }
      EXPECT_EQ(got_max[q], static_cast<float>(want_max));
      // f32 sums of 128 terms of one sign, exp() to 2e-7.
      EXPECT_NEAR(got_sum[q], want_sum, 1e-5 * want_sum);
      EXPECT_LT(RelativeError(std::span(got_acc).subspan(q * head_dim, head_dim), want_acc), 1e-5);
    }
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(EstimateTest, AgreesWithDoublesForEveryGroupSize) {
  for (const uint32_t group : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 10u, 16u}) {
    SCOPED_TRACE(group);
    CheckAgainstDoubles(kBf16Kv, 128, group, 1.0f);
  }
}

TEST_P(EstimateTest, AgreesWithDoublesForEveryLayout) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    SCOPED_TRACE(format.name);
    CheckAgainstDoubles(format, 128, 4, 1.0f);
    CheckAgainstDoubles(format, 64, 7, 1.0f);
    CheckAgainstDoubles(format, 64, 3, 1.0f);
    CheckAgainstDoubles(format, 256, 2, 1.0f);
    CheckAgainstDoubles(format, 256, 10, 1.0f);
  }
}

// Where the row is cut in two lists changes nothing but the order of sums.
TEST_P(EstimateTest, CandidatesAreEstimatedAsWell) {
  for (const int32_t num_candidates : {1, 40, 64}) {
    SCOPED_TRACE(num_candidates);
    CheckAgainstDoubles(kBf16Int8Kv, 128, 4, 1.0f, num_candidates);
    CheckAgainstDoubles(kBf16Int8Kv, 64, 7, 1.0f, num_candidates);
  }
}

TEST_P(EstimateTest, LargeScoresNeitherOverflowNorVanish) {
  CheckAgainstDoubles(kF32Kv, 64, 2, 200.0f);
}

INSTANTIATE_TEST_SUITE_P(Backends, EstimateTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
