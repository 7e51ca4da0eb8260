#include "gpu_worker/ops/index/estimate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/meta_pool_image.h"

namespace retroinfer {
namespace {

using namespace test_support;

// Sequences of two KV heads each, and how many clusters each of their heads estimates.
struct Sequences {
  std::vector<std::vector<MetaBlockId>> lists;
  std::vector<int32_t> counts;
  int64_t max_clusters = 192;
  int64_t max_estimated = 128;

  size_t size() const { return lists.size(); }
};

// Sequence 0 estimates 101 of 192 clusters, sequence 1 none, sequence 2 all 64 of its own.
Sequences ThreeSequences() { return {{{2, 0, 1}, {}, {3}}, {101, 99, 0, 0, 64, 1}}; }

// One sequence of as many blocks as hold the larger zone twice.
Sequences OneSequence(int32_t first_head, int32_t second_head) {
  const int32_t blocks = (std::max(first_head, second_head) * 2 + 63) / 64;
  std::vector<MetaBlockId> list(static_cast<size_t>(blocks));
  std::iota(list.rbegin(), list.rend(), 0);
  return {{list}, {first_head, second_head}, blocks * 64, std::max(first_head, second_head)};
}

// What a backend estimates from. A row of scores or clusters depends on its own number and length
// alone.
struct Inputs {
  Sequences sequences;
  uint32_t group;
  std::vector<float> scores;
  std::vector<int32_t> estimated;  // candidates included
  // The first clusters of each row that are in the other list, and the others, which move up.
  int64_t max_candidates = 0;
  std::vector<int32_t> candidates, num_candidates, others, num_others;

  size_t num_rows() const { return 2 * sequences.size(); }
  size_t query_rows() const { return num_rows() * group; }
  const int32_t* Zone(size_t row) const {
    return estimated.data() + row * static_cast<size_t>(sequences.max_estimated);
  }

  // `num_candidates`: so many of each row's clusters, if it has them, are in the other list; and
  // every third score is -inf.
  Inputs(const Sequences& of, uint32_t heads_of_group, float deviation, int32_t first_ones)
      : sequences(of), group(heads_of_group), max_candidates(first_ones == 0 ? 0 : 64) {
    for (size_t q = 0; q < query_rows(); ++q) {
      const auto row =
          RandomNormal(static_cast<size_t>(sequences.max_clusters), 800 + q, deviation);
      scores.insert(scores.end(), row.begin(), row.end());
    }
    for (size_t i = 0; first_ones > 0 && i < scores.size(); i += 3) scores[i] = -INFINITY;
    estimated.assign(num_rows() * static_cast<size_t>(sequences.max_estimated), -1);
    candidates.assign(num_rows() * static_cast<size_t>(max_candidates), -1);
    others = estimated;
    for (size_t row = 0; row < num_rows(); ++row) {
      const int32_t size = sequences.counts[row], split = std::min(first_ones, size);
      std::vector<int32_t> all(sequences.lists[row / 2].size() * 64);
      std::iota(all.begin(), all.end(), 0);
      std::mt19937 random(static_cast<uint32_t>(row + 4));
      std::shuffle(all.begin(), all.end(), random);
      const auto at = static_cast<int64_t>(row) * sequences.max_estimated;
      std::copy_n(all.begin(), size, estimated.begin() + at);
      std::copy_n(all.begin(), split,
                  candidates.begin() + static_cast<int64_t>(row) * max_candidates);
      std::copy_n(all.begin() + split, size - split, others.begin() + at);
      num_candidates.push_back(split);
      num_others.push_back(size - split);
    }
  }
};

struct Estimated {
  std::vector<float> max, sum, acc;
};

class EstimateTest : public testing::TestWithParam<BackendParam> {
 protected:
  // Of layer 1.
  Estimated Run(MetaPoolImage& pool, const KvGeometry& geometry, const Inputs& inputs) {
    const MetaIndexImage indexes(data_, inputs.sequences.lists);
    const auto batch = static_cast<int32_t>(inputs.sequences.size());
    const auto query_heads = static_cast<int32_t>(2 * inputs.group);
    const auto head_dim = static_cast<int32_t>(geometry.head_dim);
    const int64_t max_estimated = inputs.sequences.max_estimated;
    const auto poisoned = [&](size_t size) { return data_.Upload(std::vector<float>(size, kNan)); };
    const DeviceBuffer max = poisoned(inputs.query_rows()), sum = poisoned(inputs.query_rows());
    const DeviceBuffer acc = poisoned(inputs.query_rows() * geometry.head_dim);
    const DeviceBuffer scratch =
        poisoned(backend_->ops->index().EstimateScratchBytes(
                     batch, query_heads, head_dim, max_estimated + inputs.max_candidates) /
                 sizeof(float));
    const DeviceBuffer scores = data_.Upload(inputs.scores);
    const DeviceBuffer others = data_.Upload(inputs.others),
                       num_others = data_.Upload(inputs.num_others),
                       candidates = data_.Upload(inputs.candidates),
                       num_candidates = data_.Upload(inputs.num_candidates);
    const absl::Status done = backend_->ops->index().Estimate(
        *backend_->stream, {.pool = pool.Upload(data_),
                            .layer = 1,
                            .indexes = indexes.views(),
                            .batch = batch,
                            .num_query_heads = query_heads,
                            .scores = scores.as<const float>(),
                            .max_clusters = inputs.sequences.max_clusters,
                            .estimated = others.as<const int32_t>(),
                            .num_estimated = num_others.as<const int32_t>(),
                            .max_estimated = max_estimated,
                            .candidates = candidates.as<const int32_t>(),
                            .num_candidates = num_candidates.as<const int32_t>(),
                            .max_candidates = inputs.max_candidates,
                            .out = {max.as<float>(), sum.as<float>(), acc.as<float>()},
                            .scratch = scratch.bytes()});
    EXPECT_TRUE(done.ok()) << done;
    return {data_.Download<float>(max), data_.Download<float>(sum), data_.Download<float>(acc)};
  }

  void CheckAgainstDoubles(const KvFormat& format, uint32_t head_dim, uint32_t group,
                           float deviation, int32_t num_candidates = 0,
                           const Sequences& sequences = ThreeSequences()) {
    const KvGeometry geometry{2, 2, head_dim, format};
    size_t blocks = 0;
    for (const auto& list : sequences.lists) blocks += list.size();
    MetaPoolImage pool(geometry, blocks);
    pool.Randomize(3, 0);
    const Inputs inputs(sequences, group, deviation, num_candidates);
    const Estimated got = Run(pool, geometry, inputs);
    for (size_t q = 0; q < inputs.query_rows(); ++q) {
      const size_t row = q / group;
      const auto head = static_cast<uint32_t>(row % 2);
      const std::span chosen(inputs.Zone(row), static_cast<size_t>(sequences.counts[row]));
      const float* x = inputs.scores.data() + q * static_cast<size_t>(sequences.max_clusters);
      double want_max = -INFINITY, want_sum = 0;
      for (const int32_t cluster : chosen) want_max = std::max(want_max, double{x[cluster]});
      std::vector<double> want_acc(head_dim);
      for (const int32_t cluster : chosen) {
        const MetaBlockId block = sequences.lists[row / 2][static_cast<size_t>(cluster / 64)];
        const size_t place = static_cast<size_t>(cluster % 64);
        const double weight = x[cluster] == -INFINITY ? 0 : std::exp(x[cluster] - want_max);
        want_sum += weight * pool.host().Entries(block, 1, head)[place].num_tokens;
        for (size_t j = 0; j < head_dim; ++j) {
          want_acc[j] +=
              weight * pool.ValueSum(pool.host().ValueSums(block, 1, head), place * head_dim + j);
        }
      }
      EXPECT_EQ(got.max[q], static_cast<float>(want_max));
      // f32 sums of terms of one sign, 128 and then the parts, exp() to 2e-7.
      EXPECT_NEAR(got.sum[q], want_sum, 1e-5 * want_sum);
      EXPECT_LT(RelativeError(std::span(got.acc).subspan(q * head_dim, head_dim), want_acc), 1e-5);
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

// Zones around the ends of what a part, the lanes of a merge and all of its loads at once have.
TEST_P(EstimateTest, LongZonesAreMergedFromTheirParts) {
  for (const auto& [first, second] : {std::pair{127, 129}, {256, 257}, {2049, 1900}}) {
    SCOPED_TRACE(first);
    CheckAgainstDoubles(kBf16Int8Kv, 128, 4, 3.0f, 0, OneSequence(first, second));
    CheckAgainstDoubles(kBf16Kv, 128, 4, 3.0f, 64, OneSequence(first, second));
  }
  CheckAgainstDoubles(kBf16Int8Kv, 64, 1, 1.0f, 0, OneSequence(16'383, 18'500));
}

// Nor on how long a row the step has room for.
TEST_P(EstimateTest, ARowDoesNotDependOnTheOthers) {
  const KvGeometry geometry{2, 2, 128, kBf16Int8Kv};
  Sequences alone = OneSequence(2500, 700);
  Sequences beside = alone;
  beside.lists.push_back(alone.lists[0]);
  beside.counts.insert(beside.counts.end(), {4000, 1});
  beside.max_estimated = 4096;
  MetaPoolImage pool(geometry, alone.lists[0].size());
  pool.Randomize(3, 0);
  const Estimated one = Run(pool, geometry, Inputs(alone, 4, 2.0f, 0));
  const Estimated two = Run(pool, geometry, Inputs(beside, 4, 2.0f, 0));
  for (size_t q = 0; q < one.max.size(); ++q) {
    EXPECT_EQ(one.max[q], two.max[q]);
    EXPECT_EQ(one.sum[q], two.sum[q]);
  }
  EXPECT_TRUE(std::equal(one.acc.begin(), one.acc.end(), two.acc.begin()));
  EXPECT_NE(one.sum[0], two.sum[one.sum.size()]);  // the other sequence's is another
}

INSTANTIATE_TEST_SUITE_P(Backends, EstimateTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
