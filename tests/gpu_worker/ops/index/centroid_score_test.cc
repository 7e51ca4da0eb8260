#include "gpu_worker/ops/index/centroid_score.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/meta_pool_image.h"

namespace retroinfer {
namespace {

using namespace test_support;

class CentroidScoreTest : public testing::TestWithParam<BackendParam> {
 protected:
  // A batch of ragged indexes, block numbers out of order, some clusters empty.
  void CheckAgainstDoubles(const KvFormat& format, uint32_t head_dim, uint32_t group) {
    const KvGeometry geometry{2, 3, head_dim, format};
    const int64_t query_heads = 3 * group, max_clusters = 5 * 64;
    const std::vector<std::vector<MetaBlockId>> lists = {{4}, {}, {3, 0, 6, 1, 5}, {2, 4}};
    const int64_t batch = static_cast<int64_t>(lists.size());
    MetaPoolImage pool(geometry, 7);
    pool.Randomize(5, 9);
    const MetaIndexImage indexes(data_, lists);
    const auto queries =
        data_.Activations(RandomNormal(static_cast<size_t>(batch * query_heads) * head_dim, 6),
                          batch, query_heads * head_dim);
    const size_t num_scores = static_cast<size_t>(batch * query_heads * max_clusters);
    const DeviceBuffer scores = data_.Upload(std::vector<float>(num_scores, kNan));
    const DeviceBuffer ranks = data_.Upload(std::vector<float>(num_scores, kNan));
    constexpr float kRadiusWeight = 0.75f;
    const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    ASSERT_TRUE(backend_->ops->index()
                    .CentroidScore(*backend_->stream, {.queries = queries.view,
                                                       .pool = pool.Upload(data_),
                                                       .layer = 1,
                                                       .indexes = indexes.views(),
                                                       .scale = scale,
                                                       .max_clusters = max_clusters,
                                                       .scores = scores.as<float>(),
                                                       .radius_weight = kRadiusWeight,
                                                       .ranks = ranks.as<float>()})
                    .ok());
    const std::vector<float> got = data_.Download<float>(scores);
    const std::vector<float> got_ranks = data_.Download<float>(ranks);
    const std::vector<float> q = data_.Values(queries);
    double largest = 0;
    for (int64_t row = 0; row < batch * query_heads; ++row) {
      const auto& list = lists[static_cast<size_t>(row / query_heads)];
      const auto head = static_cast<uint32_t>(row % query_heads) / group;
      for (int64_t c = 0; c < max_clusters; ++c) {
        const float score = got[static_cast<size_t>(row * max_clusters + c)];
        const float rank = got_ranks[static_cast<size_t>(row * max_clusters + c)];
        if (c >= static_cast<int64_t>(list.size()) * 64) {
          ASSERT_TRUE(std::isnan(score) && std::isnan(rank)) << "written beyond the index";
          continue;
        }
        const MetaBlockId block = list[static_cast<size_t>(c / 64)];
        const size_t place = static_cast<size_t>(c % 64);
        if (pool.host().Entries(block, 1, head)[place].num_tokens == 0) {
          ASSERT_EQ(score, -INFINITY);
          ASSERT_EQ(rank, -INFINITY);
          continue;
        }
        double want = 0, norm = 0;
        for (size_t i = 0; i < head_dim; ++i) {
          want += double{q[static_cast<size_t>(row) * head_dim + i]} *
                  pool.Centroid(pool.host().Centroids(block, 1, head), place * head_dim + i);
        }
        for (size_t i = 0; i < head_dim; ++i) {
          norm += std::pow(double{q[static_cast<size_t>(row) * head_dim + i]}, 2);
        }
        want *= scale;
        const float radius = pool.host().Entries(block, 1, head)[place].radius;
        ASSERT_NEAR(rank, want + kRadiusWeight * scale * std::sqrt(norm) * radius, 1e-5);
        largest = std::max(largest, std::abs(want));
        // f32 sums of up to 256 products of order 1.
        ASSERT_NEAR(score, want, 1e-5) << "row " << row << " cluster " << c;
      }
    }
    EXPECT_GT(largest, 1.0);
  }

  // Scores, then ranks, of rows of these indexes; NaN where nothing was written.
  std::vector<float> Scores(const MetaPoolView& pool, const MatrixView& queries,
                            const std::vector<MetaIndexView>& rows, int64_t max_clusters,
                            bool share_an_index) {
    const int64_t heads = queries.cols / pool.geometry.head_dim;
    const auto size = static_cast<size_t>(queries.rows * heads * max_clusters);
    const DeviceBuffer both = data_.Upload(std::vector<float>(2 * size, kNan));
    const DeviceBuffer indexes = data_.Upload(rows);
    const DeviceSpan<float> floats = both.as<float>();
    EXPECT_TRUE(backend_->ops->index()
                    .CentroidScore(*backend_->stream, {.queries = queries,
                                                       .pool = pool,
                                                       .layer = 1,
                                                       .indexes = indexes.as<const MetaIndexView>(),
                                                       .share_an_index = share_an_index,
                                                       .scale = 0.125f,
                                                       .max_clusters = max_clusters,
                                                       .scores = floats.first(size),
                                                       .radius_weight = 0.25f,
                                                       .ranks = floats.subspan(size, size)})
                    .ok());
    return data_.Download<float>(both);
  }

  // A batch whose rows belong to sequences of these lists of blocks, and each row alone: the same
  // bits.
  void CheckAloneAndTogether(const KvGeometry& geometry, uint32_t group,
                             const std::vector<std::vector<MetaBlockId>>& lists,
                             const std::vector<size_t>& sequence_of_row) {
    constexpr int64_t kMaxClusters = 4 * 64;
    MetaPoolImage image(geometry, 7);
    image.Randomize(5, 9);
    const MetaPoolView pool = image.Upload(data_);
    const MetaIndexImage indexes(data_, lists);
    const std::vector<MetaIndexView> views = data_.Download(indexes.views());
    std::vector<MetaIndexView> rows;
    for (const size_t sequence : sequence_of_row) rows.push_back(views[sequence]);
    const auto batch = static_cast<int64_t>(rows.size());
    const int64_t cols = int64_t{geometry.num_kv_heads} * group * geometry.head_dim;
    const auto queries =
        data_.Activations(RandomNormal(static_cast<size_t>(batch * cols), 6), batch, cols);
    const std::vector<float> together = Scores(pool, queries.view, rows, kMaxClusters, false);
    // A hint changes nothing, right or wrong.
    const std::vector<float> hinted = Scores(pool, queries.view, rows, kMaxClusters, true);
    ASSERT_EQ(std::memcmp(hinted.data(), together.data(), hinted.size() * sizeof(float)), 0);
    const size_t half = together.size() / 2, of_row = half / rows.size();
    for (size_t row = 0; row < rows.size(); ++row) {
      const std::vector<float> alone = Scores(pool, queries.view.Rows(static_cast<int64_t>(row), 1),
                                              {rows[row]}, kMaxClusters, false);
      ASSERT_EQ(std::memcmp(alone.data(), &together[row * of_row], of_row * sizeof(float)), 0)
          << "scores of row " << row;
      ASSERT_EQ(std::memcmp(&alone[of_row], &together[half + row * of_row], of_row * sizeof(float)),
                0)
          << "ranks of row " << row;
    }
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(CentroidScoreTest, AgreesWithDoublesForEveryGroupSize) {
  for (const uint32_t group : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 10u, 16u}) {
    SCOPED_TRACE(group);
    CheckAgainstDoubles(kBf16Kv, 128, group);
  }
}

TEST_P(CentroidScoreTest, AgreesWithDoublesForEveryLayout) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    SCOPED_TRACE(format.name);
    CheckAgainstDoubles(format, 128, 4);
    CheckAgainstDoubles(format, 64, 7);
    CheckAgainstDoubles(format, 64, 2);
    CheckAgainstDoubles(format, 256, 2);
    CheckAgainstDoubles(format, 256, 10);
  }
}

// Rows of one sequence, as drafts are, may read its centroids together.
TEST_P(CentroidScoreTest, ARowsScoresDoNotDependOnRowsOfItsSequence) {
  const std::vector<std::vector<MetaBlockId>> lists = {{4, 2, 0}, {3, 0, 6, 1}, {3, 0, 6, 1}, {}};
  // The second and third sequence have equal lists, but not the same one.
  const std::vector<size_t> sequence_of_row = {0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                               1, 2, 3, 3, 0, 1, 1, 2, 2, 2, 2};
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    for (const uint32_t group : {1u, 3u, 4u, 7u, 10u}) {
      SCOPED_TRACE(std::string(format.name) + " " + std::to_string(group));
      CheckAloneAndTogether({2, 2, 128, format}, group, lists, sequence_of_row);
    }
    CheckAloneAndTogether({2, 2, 64, format}, 4, lists, sequence_of_row);
    CheckAloneAndTogether({2, 2, 256, format}, 4, lists, sequence_of_row);
  }
}

TEST_P(CentroidScoreTest, AVectorThatWasNotFiniteSpoilsItsOwnClusterAlone) {
  if (!backend_->ops->CheckKvFormat(kBf16Int8Kv).ok()) GTEST_SKIP() << "no code for int8";
  const KvGeometry geometry{1, 1, 128, kBf16Int8Kv};
  MetaPoolImage pool(geometry, 1);
  pool.Randomize(5, 0);
  auto centroids = RandomNormal(64 * 128, 3);
  centroids[5 * 128 + 17] = INFINITY;
  const auto bytes = StoredVectors(centroids, kInt8Vectors, 128);
  std::copy(bytes.begin(), bytes.end(), pool.host().Centroids(0, 0, 0));
  const MetaIndexImage indexes(data_, {{0}});
  const auto queries = data_.Activations(RandomNormal(128, 6), 1, 128);
  const DeviceBuffer scores = data_.Allocate(4 * 64);
  ASSERT_TRUE(backend_->ops->index()
                  .CentroidScore(*backend_->stream, {.queries = queries.view,
                                                     .pool = pool.Upload(data_),
                                                     .indexes = indexes.views(),
                                                     .scale = 1,
                                                     .max_clusters = 64,
                                                     .scores = scores.as<float>()})
                  .ok());
  const std::vector<float> got = data_.Download<float>(scores);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(std::isnan(got[i]), i == 5) << i;
}

TEST_P(CentroidScoreTest, RefusesWrongShapes) {
  const KvGeometry geometry{1, 2, 64, kF32Kv};
  MetaPoolImage pool(geometry, 1);
  const MetaIndexImage indexes(data_, {{0}});
  const auto queries = data_.Activations(std::vector<float>(3 * 64), 1, 3 * 64);
  const DeviceBuffer scores = data_.Allocate(4 * 64 * 4);
  CentroidScoreArgs args{.queries = queries.view,
                         .pool = pool.Upload(data_),
                         .layer = 0,
                         .indexes = indexes.views(),
                         .scale = 1,
                         .max_clusters = 64,
                         .scores = scores.as<float>()};
  args.radius_weight = 1;  // without room for ranks
  EXPECT_FALSE(backend_->ops->index().CentroidScore(*backend_->stream, args).ok());
  args.radius_weight = 0;
  // Three query heads cannot share two KV heads.
  EXPECT_EQ(backend_->ops->index().CentroidScore(*backend_->stream, args).code(),
            absl::StatusCode::kInvalidArgument);
  const auto four = data_.Activations(std::vector<float>(4 * 64), 1, 4 * 64);
  args.queries = four.view;
  EXPECT_TRUE(backend_->ops->index().CentroidScore(*backend_->stream, args).ok());
  args.layer = 1;
  EXPECT_FALSE(backend_->ops->index().CentroidScore(*backend_->stream, args).ok());
  args.layer = 0;
  args.max_clusters = 128;
  EXPECT_FALSE(backend_->ops->index().CentroidScore(*backend_->stream, args).ok());
}

INSTANTIATE_TEST_SUITE_P(Backends, CentroidScoreTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
