#include "gpu_worker/ops/index/unseen_mass.h"

#include <gmock/gmock.h>
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

class UnseenMassTest : public testing::TestWithParam<BackendParam> {
 protected:
  static constexpr uint32_t kKvHeads = 2;

  struct Row {
    std::vector<MetaBlockId> blocks;
    int32_t num_retrieved;  // of each of both KV heads
  };

  struct Result {
    std::vector<float> max, sum;  // [batch, query_heads]
    std::vector<double> want_max, want_sum, all;
  };

  // Every `empty_every`-th cluster is empty. The retrieved ones are chosen at random, but for
  // `best`: those of the highest scores of the group's first head.
  Result Run(const std::vector<Row>& batch, uint32_t group, float deviation, uint32_t empty_every,
             bool best, uint64_t seed) {
    const KvGeometry geometry{2, kKvHeads, 64, kBf16Kv};
    const auto query_heads = static_cast<int32_t>(kKvHeads * group);
    MetaPoolImage pool(geometry, 40);
    pool.Randomize(3, empty_every);
    std::vector<std::vector<MetaBlockId>> lists;
    size_t blocks = 1;
    for (const Row& row : batch) {
      lists.push_back(row.blocks);
      blocks = std::max(blocks, row.blocks.size() + 1);
    }
    const auto max_clusters = static_cast<int64_t>(blocks * kClustersPerMetaBlock);
    const MetaIndexImage indexes(data_, lists);
    std::vector<float> scores;
    std::vector<int32_t> retrieved(batch.size() * kKvHeads * blocks * 64, -1), counts;
    Result result;
    for (size_t i = 0; i < batch.size(); ++i) {
      const size_t live = batch[i].blocks.size() * kClustersPerMetaBlock;
      for (uint32_t head = 0; head < kKvHeads; ++head) {
        const size_t first = scores.size();
        for (uint32_t g = 0; g < group; ++g) {
          auto row = RandomNormal(static_cast<size_t>(max_clusters), seed + 97 * i + 10 * head + g,
                                  deviation);
          // Places behind the sequence's own are nobody's.
          std::fill(row.begin() + static_cast<int64_t>(live), row.end(), kNan);
          for (size_t c = 0; empty_every != 0 && c < live; ++c) {
            if (c % empty_every == empty_every - 1) row[c] = -INFINITY;
          }
          scores.insert(scores.end(), row.begin(), row.end());
        }
        std::vector<int32_t> order(live);
        std::iota(order.begin(), order.end(), 0);
        std::erase_if(
            order, [&](int32_t c) { return scores[first + static_cast<size_t>(c)] == -INFINITY; });
        std::mt19937_64 random(seed);
        std::shuffle(order.begin(), order.end(), random);
        if (best) {
          std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
            return scores[first + static_cast<size_t>(a)] > scores[first + static_cast<size_t>(b)];
          });
        }
        const auto count =
            std::min<size_t>(order.size(), static_cast<size_t>(batch[i].num_retrieved));
        std::copy_n(order.begin(), count,
                    retrieved.begin() + static_cast<int64_t>(counts.size() * blocks * 64));
        counts.push_back(static_cast<int32_t>(count));
        for (uint32_t g = 0; g < group; ++g) {
          const float* x = scores.data() + first + static_cast<int64_t>(g) * max_clusters;
          double max = -INFINITY, sum = 0, all = 0;
          for (size_t c = 0; c < live; ++c) max = std::max(max, double{x[c]});
          for (size_t c = 0; c < live; ++c) {
            const MetaBlockId block = batch[i].blocks[c / 64];
            const double mass =
                x[c] == -INFINITY
                    ? 0
                    : std::exp(x[c] - max) * pool.host().Entries(block, 1, head)[c % 64].num_tokens;
            all += mass;
            const auto end = order.begin() + static_cast<int64_t>(count);
            if (std::find(order.begin(), end, static_cast<int32_t>(c)) == end) sum += mass;
          }
          result.want_max.push_back(max);
          result.want_sum.push_back(sum);
          result.all.push_back(all);
        }
      }
    }
    const size_t query_rows = batch.size() * static_cast<size_t>(query_heads);
    const std::vector<float> poison(query_rows, kNan);
    const DeviceBuffer max = data_.Upload(poison), sum = data_.Upload(poison);
    const DeviceBuffer device_scores = data_.Upload(scores), device_counts = data_.Upload(counts),
                       device_retrieved = data_.Upload(retrieved);
    const absl::Status status = backend_->ops->index().UnseenMass(
        *backend_->stream, {.pool = pool.Upload(data_),
                            .layer = 1,
                            .indexes = indexes.views(),
                            .batch = static_cast<int32_t>(batch.size()),
                            .num_query_heads = query_heads,
                            .scores = device_scores.as<const float>(),
                            .max_clusters = max_clusters,
                            .retrieved = device_retrieved.as<const int32_t>(),
                            .num_retrieved = device_counts.as<const int32_t>(),
                            .max_retrieved = static_cast<int64_t>(blocks * 64),
                            .out = {max.as<float>(), sum.as<float>()}});
    EXPECT_TRUE(status.ok()) << status;
    result.max = data_.Download<float>(max);
    result.sum = data_.Download<float>(sum);
    return result;
  }

  static void ExpectRight(const Result& result) {
    for (size_t i = 0; i < result.want_sum.size(); ++i) {
      EXPECT_EQ(result.max[i], static_cast<float>(result.want_max[i])) << i;
      // All minus the retrieved ones, in f32, with exp() of a few units in the last place.
      EXPECT_NEAR(result.sum[i], result.want_sum[i], 5e-6 * result.all[i]) << i;
    }
  }

  static std::vector<MetaBlockId> Blocks(size_t count) {
    std::vector<MetaBlockId> blocks(count);
    std::iota(blocks.rbegin(), blocks.rend(), 1);
    return blocks;
  }

  // More of them than the pool has: each comes again and again.
  static std::vector<MetaBlockId> Repeated(size_t count) {
    std::vector<MetaBlockId> blocks(count);
    for (size_t i = 0; i < count; ++i) blocks[i] = static_cast<MetaBlockId>(i * 7 % 39);
    return blocks;
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(UnseenMassTest, AgreesWithDoublesForEveryGroup) {
  for (const uint32_t group : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 10u, 16u}) {
    SCOPED_TRACE(group);
    ExpectRight(
        Run({{Blocks(3), 70}, {{}, 0}, {{3}, 1}, {Blocks(38), 130}}, group, 1.0f, 5, false, group));
  }
}

TEST_P(UnseenMassTest, LargeScoresNeitherOverflowNorVanish) {
  ExpectRight(Run({{Blocks(9), 1}, {Blocks(2), 128}}, 4, 200.0f, 0, false, 1));
}

TEST_P(UnseenMassTest, WithNothingRetrievedItIsAllAndWithAllNothing) {
  const Result none = Run({{Blocks(4), 0}}, 2, 1.0f, 0, false, 2);
  ExpectRight(none);
  for (size_t i = 0; i < none.sum.size(); ++i) {
    EXPECT_NEAR(none.sum[i], none.all[i], 5e-6 * none.all[i]);
  }
  const Result all = Run({{Blocks(4), 256}}, 2, 1.0f, 0, false, 2);
  for (size_t i = 0; i < all.sum.size(); ++i) {
    EXPECT_GE(all.sum[i], 0);
    EXPECT_LE(all.sum[i], 5e-6 * all.all[i]);
  }
}

TEST_P(UnseenMassTest, TheBestClustersLeaveLittle) {
  const Result result = Run({{Blocks(20), 60}}, 1, 3.0f, 0, true, 3);
  ExpectRight(result);
  for (size_t i = 0; i < result.sum.size(); ++i) EXPECT_LT(result.sum[i], 0.5 * result.all[i]);
}

TEST_P(UnseenMassTest, ARowDoesNotDependOnTheBatch) {
  const Row row{Blocks(11), 40};
  const Result alone = Run({row}, 4, 1.0f, 7, false, 5);
  const Result first = Run({row, {Blocks(38), 64}, {{}, 0}}, 4, 1.0f, 7, false, 5);
  for (size_t i = 0; i < alone.sum.size(); ++i) EXPECT_EQ(alone.sum[i], first.sum[i]) << i;
}

// As many clusters as a million tokens have, and more; 200 blocks are 12,800 clusters.
TEST_P(UnseenMassTest, LongRowsAgreeWithDoublesToo) {
  ExpectRight(Run({{Repeated(1100), 300}, {Blocks(3), 70}, {{}, 0}, {Repeated(200), 20}}, 4, 1.0f,
                  5, false, 6));
}

TEST_P(UnseenMassTest, ALongRowInTheBatchDoesNotChangeOthers) {
  const Row row{Repeated(200), 40}, short_row{Blocks(11), 40};
  for (const Row& one : {row, short_row}) {
    const Result alone = Run({one}, 2, 1.0f, 7, false, 5);
    const Result first = Run({one, {Repeated(1100), 64}}, 2, 1.0f, 7, false, 5);
    for (size_t i = 0; i < alone.sum.size(); ++i) EXPECT_EQ(alone.sum[i], first.sum[i]) << i;
  }
}

TEST_P(UnseenMassTest, WithoutAListNothingIsRetrieved) {
  const KvGeometry geometry{2, kKvHeads, 64, kBf16Kv};
  MetaPoolImage pool(geometry, 1);
  pool.Randomize(1, 0);
  const MetaIndexImage indexes(data_, {{0}});
  auto scores = RandomNormal(4 * 64, 3);
  for (size_t i = 0; i < 64; ++i) scores[64 + i] = -INFINITY;  // as if all had been attended
  const DeviceBuffer device_scores = data_.Upload(scores);
  const DeviceBuffer max = data_.Upload(std::vector<float>(4, kNan)),
                     sum = data_.Upload(std::vector<float>(4, kNan));
  ASSERT_TRUE(backend_->ops->index()
                  .UnseenMass(*backend_->stream, {.pool = pool.Upload(data_),
                                                  .layer = 1,
                                                  .indexes = indexes.views(),
                                                  .batch = 1,
                                                  .num_query_heads = 4,
                                                  .scores = device_scores.as<const float>(),
                                                  .max_clusters = 64,
                                                  .out = {max.as<float>(), sum.as<float>()}})
                  .ok());
  const auto got_max = data_.Download<float>(max), got_sum = data_.Download<float>(sum);
  for (size_t q = 0; q < 4; ++q) {
    double want = 0;
    const auto row = std::span(scores).subspan(q * 64, 64);
    EXPECT_EQ(got_max[q], *std::ranges::max_element(row));
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t tokens = pool.host().Entries(0, 1, static_cast<uint32_t>(q / 2))[i].num_tokens;
      if (row[i] > -INFINITY) want += tokens * std::exp(double{row[i]} - double{got_max[q]});
    }
    EXPECT_NEAR(got_sum[q], want, 1e-5 * want);
  }
}

TEST_P(UnseenMassTest, RefusesWhatDoesNotFit) {
  const KvGeometry geometry{2, kKvHeads, 64, kBf16Kv};
  MetaPoolImage pool(geometry, 1);
  pool.Randomize(1, 0);
  const MetaIndexImage indexes(data_, {{0}});
  const DeviceBuffer floats = data_.Upload(std::vector<float>(4 * 64));
  const DeviceBuffer numbers = data_.Upload(std::vector<int32_t>(4 * 64));
  UnseenMassArgs args{.pool = pool.Upload(data_),
                      .layer = 1,
                      .indexes = indexes.views(),
                      .batch = 1,
                      .num_query_heads = 4,
                      .scores = floats.as<const float>(),
                      .max_clusters = 64,
                      .retrieved = numbers.as<const int32_t>(),
                      .num_retrieved = numbers.as<const int32_t>(),
                      .max_retrieved = 64,
                      .out = {floats.as<float>(), floats.as<float>()}};
  EXPECT_TRUE(backend_->ops->index().UnseenMass(*backend_->stream, args).ok());
  EXPECT_TRUE(backend_->stream->Synchronize().ok());
  const auto refused = [&](UnseenMassArgs wrong) {
    const absl::Status status = backend_->ops->index().UnseenMass(*backend_->stream, wrong);
    return status.code() == absl::StatusCode::kInvalidArgument &&
           testing::Value(std::string(status.message()), testing::HasSubstr("unseen_mass"));
  };
  UnseenMassArgs wrong = args;
  wrong.layer = 2;
  EXPECT_TRUE(refused(wrong));
  wrong = args;
  wrong.num_query_heads = 3;
  EXPECT_TRUE(refused(wrong));
  wrong.num_query_heads = 2 * 9;
  EXPECT_TRUE(refused(wrong));
  wrong = args;
  wrong.max_clusters = 128;
  EXPECT_TRUE(refused(wrong));
  wrong = args;
  wrong.max_retrieved = 512;
  EXPECT_TRUE(refused(wrong));
  wrong = args;
  wrong.out.sum = floats.as<float>().first(3);
  EXPECT_TRUE(refused(wrong));
}

INSTANTIATE_TEST_SUITE_P(Backends, UnseenMassTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
