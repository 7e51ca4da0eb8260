#include "gpu_worker/ops/index/cluster_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"

namespace retroinfer {
namespace {

using namespace test_support;

struct Clusters {
  std::vector<int32_t> assignment;  // [heads, n]
  std::vector<int32_t> sizes;       // [heads, m]
  std::vector<float> centroids;     // [heads, m, d]
  std::vector<float> value_sums;
  std::vector<float> radii;  // [heads, m]
};

class ClusterKeysTest : public testing::TestWithParam<BackendParam> {
 protected:
  static constexpr int32_t kTokens = 1024;

  Clusters Run(const LayerKvImage& kv, int64_t first_token, int32_t num_tokens, int32_t rounds,
               bool centre_keys) {
    const size_t heads = kv.view().num_kv_heads, d = kv.view().head_dim;
    const size_t n = static_cast<size_t>(num_tokens), m = n / 16;
    const DeviceBuffer assignment = data_.Upload(std::vector<int32_t>(heads * n, -1));
    const DeviceBuffer sizes = data_.Upload(std::vector<int32_t>(heads * m, -1));
    const DeviceBuffer centroids = data_.Upload(std::vector<float>(heads * m * d, kNan));
    const DeviceBuffer value_sums = data_.Upload(std::vector<float>(heads * m * d, kNan));
    const DeviceBuffer radii = data_.Upload(std::vector<float>(heads * m, kNan));
    const DeviceBuffer scratch = data_.Allocate(backend_->ops->index().ClusterKeysScratchBytes(
        kv.view().num_kv_heads, kv.view().head_dim, num_tokens, static_cast<int32_t>(m)));
    const absl::Status status = backend_->ops->index().ClusterKeys(
        *backend_->background, {.kv = kv.view(),
                                .first_token = first_token,
                                .num_tokens = num_tokens,
                                .num_clusters = static_cast<int32_t>(m),
                                .rounds = rounds,
                                .centre_keys = centre_keys,
                                .assignment = assignment.as<int32_t>(),
                                .sizes = sizes.as<int32_t>(),
                                .centroids = centroids.as<float>(),
                                .value_sums = value_sums.as<float>(),
                                .radii = radii.as<float>(),
                                .scratch = scratch.bytes()});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(backend_->background->Synchronize().ok());
    return {data_.Download<int32_t>(assignment), data_.Download<int32_t>(sizes),
            data_.Download<float>(centroids), data_.Download<float>(value_sums),
            data_.Download<float>(radii)};
  }

  // Every token is in one cluster, and C, the value sum and the size are those of the members.
  static void ExpectConsistent(const LayerKvImage& kv, int64_t first_token, const Clusters& got) {
    const size_t heads = kv.view().num_kv_heads, d = kv.view().head_dim;
    const size_t n = got.assignment.size() / heads, m = got.sizes.size() / heads;
    std::vector<double> keys(heads * m * d), values(heads * m * d);
    std::vector<int32_t> sizes(heads * m);
    for (size_t i = 0; i < heads * n; ++i) {
      const size_t head = i / n;
      ASSERT_GE(got.assignment[i], 0);
      ASSERT_LT(got.assignment[i], static_cast<int32_t>(m));
      const size_t cluster = head * m + static_cast<size_t>(got.assignment[i]);
      const int64_t token = first_token + static_cast<int64_t>(i % n);
      ++sizes[cluster];
      for (size_t j = 0; j < d; ++j) {
        keys[cluster * d + j] += kv.Key(static_cast<uint32_t>(head), token)[j];
        values[cluster * d + j] += kv.Value(static_cast<uint32_t>(head), token)[j];
      }
    }
    EXPECT_EQ(got.sizes, sizes);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] /= std::max(1, sizes[i / d]);
    // f32 sums of at most n terms.
    EXPECT_LT(RelativeError(got.centroids, keys), 1e-5);
    EXPECT_LT(RelativeError(got.value_sums, values), 1e-5);
    std::vector<double> radii(heads * m);
    for (size_t i = 0; i < heads * n; ++i) {
      const size_t head = i / n;
      const size_t cluster = head * m + static_cast<size_t>(got.assignment[i]);
      const float* key =
          kv.Key(static_cast<uint32_t>(head), first_token + static_cast<int64_t>(i % n));
      double square = 0;
      for (size_t j = 0; j < d; ++j) square += std::pow(key[j] - keys[cluster * d + j], 2);
      radii[cluster] = std::max(radii[cluster], std::sqrt(square));
    }
    EXPECT_LT(RelativeError(got.radii, radii), 1e-5);
  }

  LayerKvImage RandomKv(int64_t capacity, uint32_t heads, uint32_t head_dim, DType dtype) {
    const size_t size = static_cast<size_t>(capacity) * heads * head_dim;
    return {data_, RandomNormal(size, 1), RandomNormal(size, 2), heads, head_dim, dtype};
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(ClusterKeysTest, ClustersPartitionTheSegmentAndSumsAreRight) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    const DType dtype = format.prompt;
    for (const uint32_t head_dim : kHeadDims) {
      for (const bool centre : {false, true}) {
        SCOPED_TRACE(testing::Message() << DTypeName(dtype) << head_dim << centre);
        const LayerKvImage kv = RandomKv(1500, 3, head_dim, dtype);
        ExpectConsistent(kv, 300, Run(kv, 300, kTokens, 3, centre));
      }
    }
  }
}

TEST_P(ClusterKeysTest, LargeSegment) {
  const LayerKvImage kv = RandomKv(8192, 1, 64, DType::kBf16);
  ExpectConsistent(kv, 0, Run(kv, 0, 8192, 2, false));
}

// Without rounds the centroids are known: every 16th key, normalised.
TEST_P(ClusterKeysTest, NoRoundsAssignsToTheKeysAtTheStride) {
  constexpr int64_t kSampled = 7;  // meets every place of a block of keys
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    const DType dtype = format.prompt;
    // Centroids are rounded to bf16; the second best is a whole unit away, mostly.
    const double tolerance = dtype == DType::kBf16 ? 0.05 : 1e-4;
    for (const int32_t num_tokens : {1024, 3072, 8192}) {
      for (const size_t d : {size_t{64}, size_t{128}, size_t{256}}) {
        SCOPED_TRACE(testing::Message() << DTypeName(dtype) << num_tokens << " " << d);
        const LayerKvImage kv = RandomKv(num_tokens, 1, static_cast<uint32_t>(d), dtype);
        const auto assignment = Run(kv, 0, num_tokens, 0, false).assignment;
        const int32_t num_clusters = num_tokens / 16;
        for (int32_t j = 0; j < num_clusters; ++j) {
          ASSERT_EQ(assignment[static_cast<size_t>(j) * 16], j);  // nothing is as near as itself
        }
        for (int64_t i = 0; i < num_tokens; i += kSampled) {
          double best = -INFINITY, chosen = 0;
          for (int32_t j = 0; j < num_clusters; ++j) {
            const float* seed = kv.Key(0, int64_t{j} * 16);
            const double norm = std::sqrt(std::inner_product(seed, seed + d, seed, 0.0));
            const double product = std::inner_product(seed, seed + d, kv.Key(0, i), 0.0) / norm;
            best = std::max(best, product);
            if (j == assignment[static_cast<size_t>(i)]) chosen = product;
          }
          ASSERT_NEAR(chosen, best, tolerance) << "key " << i;
        }
      }
    }
  }
}

// 64 directions with 16 noisy keys each; the stride hits each direction once.
std::vector<float> KeysAround(const std::vector<float>& directions, size_t d, float noise) {
  std::vector<float> keys = RandomNormal(1024 * d, 5, noise);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] += directions[i / d / 16 * d + i % d];
  return keys;
}

TEST_P(ClusterKeysTest, FindsClustersThatAreThere) {
  const size_t d = 128;
  const auto keys = KeysAround(RandomNormal(64 * d, 4), d, 0.1f);
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    const DType dtype = format.prompt;
    const LayerKvImage kv(data_, keys, keys, 1, d, dtype);
    const Clusters got = Run(kv, 0, kTokens, 10, false);
    for (size_t i = 0; i < 1024; ++i) ASSERT_EQ(got.assignment[i], static_cast<int32_t>(i / 16));
  }
}

TEST_P(ClusterKeysTest, CentringRemovesAnOffsetThatHidesTheClusters) {
  const size_t d = 64;
  auto keys = KeysAround(RandomNormal(64 * d, 4), d, 0.1f);
  // Lengths differ, so that under the offset cosine similarity sees little but the length.
  for (size_t i = 0; i < keys.size(); ++i) keys[i] += 30.0f;
  const LayerKvImage kv(data_, keys, keys, 1, d, DType::kF32);
  const Clusters centred = Run(kv, 0, kTokens, 10, true);
  for (size_t i = 0; i < 1024; ++i) ASSERT_EQ(centred.assignment[i], static_cast<int32_t>(i / 16));
  ExpectConsistent(kv, 0, centred);  // the index itself is never centred
}

// Mean inner product of keys with the normalised mean of their cluster: what spherical k-means
// maximises.
double Objective(const LayerKvImage& kv, const std::vector<int32_t>& assignment, size_t d) {
  std::vector<double> sums(64 * d);
  for (size_t i = 0; i < 1024; ++i) {
    for (size_t j = 0; j < d; ++j) {
      sums[static_cast<size_t>(assignment[i]) * d + j] += kv.Key(0, static_cast<int64_t>(i))[j];
    }
  }
  double total = 0;
  for (size_t c = 0; c < 64; ++c) {
    const auto begin = sums.begin() + static_cast<int64_t>(c * d);
    total += std::sqrt(std::inner_product(begin, begin + static_cast<int64_t>(d), begin, 0.0));
  }
  return total / 1024;
}

TEST_P(ClusterKeysTest, RoundsImproveTheObjective) {
  const size_t d = 64;
  const LayerKvImage kv = RandomKv(kTokens, 1, d, DType::kBf16);
  const double before = Objective(kv, Run(kv, 0, kTokens, 0, false).assignment, d);
  const double after = Objective(kv, Run(kv, 0, kTokens, 10, false).assignment, d);
  EXPECT_GT(after, before * 1.05);
}

TEST_P(ClusterKeysTest, IsDeterministic) {
  const LayerKvImage kv = RandomKv(kTokens, 4, 64, DType::kBf16);
  const Clusters first = Run(kv, 0, kTokens, 10, false);
  const Clusters second = Run(kv, 0, kTokens, 10, false);
  EXPECT_EQ(first.assignment, second.assignment);
  EXPECT_EQ(first.centroids, second.centroids);
}

TEST_P(ClusterKeysTest, EqualAndZeroKeysFallIntoOneCluster) {
  for (const float value : {0.0f, 1.0f}) {
    const std::vector<float> keys(1024 * 64, value);
    const LayerKvImage kv(data_, keys, keys, 1, 64, DType::kBf16);
    const Clusters got = Run(kv, 0, kTokens, 10, false);
    EXPECT_EQ(*std::max_element(got.sizes.begin(), got.sizes.end()), 1024);
    ExpectConsistent(kv, 0, got);
  }
}

TEST_P(ClusterKeysTest, RefusesPartialSegments) {
  const LayerKvImage kv = RandomKv(kTokens, 1, 64, DType::kBf16);
  ClusterKeysArgs args;
  args.kv = kv.view();
  args.num_tokens = 1000;
  args.num_clusters = 62;
  EXPECT_EQ(backend_->ops->index().ClusterKeys(*backend_->background, args).code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, ClusterKeysTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
