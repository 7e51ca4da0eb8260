#include "gpu_worker/ops/model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

class RopeTest : public testing::TestWithParam<BackendParam> {
 protected:
  struct Table {
    DeviceBuffer cos, sin;
  };
  Table MakeTable(const std::vector<int32_t>& positions, const std::vector<float>& inv_freq,
                  float factor) {
    const std::vector<float> poison(positions.size() * inv_freq.size(), kNan);
    Table table = {data_.Upload(poison), data_.Upload(poison)};
    const DeviceBuffer position_buffer = data_.Upload(positions);
    const DeviceBuffer freq_buffer = data_.Upload(inv_freq);
    EXPECT_TRUE(backend_->ops->model()
                    .RopeTable(*backend_->stream, {.positions = position_buffer.as<const int32_t>(),
                                                   .inv_freq = freq_buffer.as<const float>(),
                                                   .attention_factor = factor,
                                                   .cos = table.cos.as<float>(),
                                                   .sin = table.sin.as<float>()})
                    .ok());
    return table;
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(RopeTest, RotatesByHand) {
  const auto half_pi = static_cast<float>(std::acos(-1.0) / 2);
  const Table table = MakeTable({0, 1}, {half_pi, 0.0f}, 1.0f);
  const auto x = data_.Activations(std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4}, 2, 4);
  ASSERT_TRUE(backend_->ops->model()
                  .Rope(*backend_->stream, {.x = x.view,
                                            .head_dim = 4,
                                            .cos = table.cos.as<const float>(),
                                            .sin = table.sin.as<const float>()})
                  .ok());
  const std::vector<float> got = data_.Values(x);
  const std::vector<float> want = {1, 2, 3, 4, -3, 2, 1, 4};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 4 * data_.Tolerance()) << i;
}

TEST_P(RopeTest, OffsetsAreTakenFromTheLastHeadsBehindTheRotation) {
  const auto half_pi = static_cast<float>(std::acos(-1.0) / 2);
  const Table table = MakeTable({0, 1}, {half_pi, 0.0f}, 1.0f);
  // Two heads of four; the offsets are the second one's.
  const auto x = data_.Activations(
      std::vector<float>{1, 2, 3, 4, 10, 20, 30, 40, 1, 2, 3, 4, 10, 20, 30, 40}, 2, 8);
  const DeviceBuffer offsets = data_.Upload(std::vector<float>{1, -2, 3, 8});
  ASSERT_TRUE(backend_->ops->model()
                  .Rope(*backend_->stream, {.x = x.view,
                                            .head_dim = 4,
                                            .cos = table.cos.as<const float>(),
                                            .sin = table.sin.as<const float>(),
                                            .offsets = offsets.as<const float>()})
                  .ok());
  const std::vector<float> got = data_.Values(x);
  const std::vector<float> want = {1, 2, 3, 4, 9, 22, 27, 32, -3, 2, 1, 4, -31, 22, 7, 32};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 4 * data_.Tolerance()) << i;
}

TEST_P(RopeTest, OffsetsMustBeOfWholeHeads) {
  const Table table = MakeTable({0}, {1.0f, 1.0f}, 1.0f);
  const auto x = data_.Activations(std::vector<float>(4), 1, 4);
  for (const size_t size : {3, 8}) {
    const DeviceBuffer offsets = data_.Upload(std::vector<float>(size));
    EXPECT_EQ(backend_->ops->model()
                  .Rope(*backend_->stream, {.x = x.view,
                                            .head_dim = 4,
                                            .cos = table.cos.as<const float>(),
                                            .sin = table.sin.as<const float>(),
                                            .offsets = offsets.as<const float>()})
                  .code(),
              absl::StatusCode::kInvalidArgument)
        << size;
  }
}

TEST_P(RopeTest, FollowsDoublesFarOutAndForAllSizes) {
  for (const uint32_t head_dim : {2u, 64u, 128u}) {
    std::vector<float> inv_freq;
    for (uint32_t i = 0; i < head_dim / 2; ++i) {
      inv_freq.push_back(std::pow(500000.0f, -2.0f * static_cast<float>(i) / head_dim));
    }
    for (const size_t rows : {0, 1, 31, 65}) {
      std::vector<int32_t> positions;
      for (size_t i = 0; i < rows; ++i) positions.push_back(static_cast<int32_t>(i * i * 211));
      constexpr float kFactor = 1.25f;
      const Table table = MakeTable(positions, inv_freq, kFactor);
      constexpr size_t kHeads = 3;
      const auto x = data_.Rounded(RandomNormal(rows * kHeads * head_dim, 4));
      const auto matrix =
          data_.Activations(x, static_cast<int64_t>(rows), int64_t{kHeads} * head_dim);
      ASSERT_TRUE(backend_->ops->model()
                      .Rope(*backend_->stream, {.x = matrix.view,
                                                .head_dim = head_dim,
                                                .cos = table.cos.as<const float>(),
                                                .sin = table.sin.as<const float>()})
                      .ok());
      std::vector<double> want(x.size());
      for (size_t h = 0; h < rows * kHeads; ++h) {
        for (size_t i = 0; i < head_dim / 2; ++i) {
          // As the models' reference does it: the angle itself is rounded to f32.
          const float angle = static_cast<float>(positions[h / kHeads]) * inv_freq[i];
          const double c = std::cos(double{angle}) * kFactor, s = std::sin(double{angle}) * kFactor;
          const size_t a = h * head_dim + i, b = a + head_dim / 2;
          want[a] = x[a] * c - x[b] * s;
          want[b] = x[b] * c + x[a] * s;
        }
      }
      EXPECT_LE(RelativeError(data_.Values(matrix), want), data_.Tolerance())
          << head_dim << ", " << rows;
    }
  }
}

// What is behind the rotated numbers of a head stays.
TEST_P(RopeTest, RotatesAPartOfEachHead) {
  for (const uint32_t head_dim : {4u, 64u, 96u, 128u}) {
    const uint32_t rotated = head_dim / 4 * 3 / 2 * 2;
    const uint32_t half = rotated / 2;
    constexpr size_t kRows = 3, kHeads = 2;
    std::vector<float> inv_freq;
    for (uint32_t i = 0; i < half; ++i) inv_freq.push_back(1.0f / static_cast<float>(i + 1));
    const std::vector<int32_t> positions = {0, 5, 911};
    const Table table = MakeTable(positions, inv_freq, 1.0f);
    const auto x = data_.Rounded(RandomNormal(kRows * kHeads * head_dim, 4));
    const auto matrix = data_.Activations(x, kRows, int64_t{kHeads} * head_dim);
    ASSERT_TRUE(backend_->ops->model()
                    .Rope(*backend_->stream, {.x = matrix.view,
                                              .head_dim = head_dim,
                                              .rotated_dims = rotated,
                                              .cos = table.cos.as<const float>(),
                                              .sin = table.sin.as<const float>()})
                    .ok());
    std::vector<double> want(x.begin(), x.end());
    for (size_t h = 0; h < kRows * kHeads; ++h) {
      for (size_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[h / kHeads]) * inv_freq[i];
        const double c = std::cos(double{angle}), s = std::sin(double{angle});
        const size_t a = h * head_dim + i, b = a + half;
        want[a] = x[a] * c - x[b] * s;
        want[b] = x[b] * c + x[a] * s;
      }
    }
    EXPECT_LE(RelativeError(data_.Values(matrix), want), data_.Tolerance()) << head_dim;
  }
}

TEST_P(RopeTest, ATableMayGrowWithThePosition) {
  const std::vector<int32_t> positions = {0, 15, 16, 33, 4000};
  const DeviceBuffer position_buffer = data_.Upload(positions);
  const DeviceBuffer inv_freq = data_.Upload(std::vector<float>{0.5f, 0.01f});
  const DeviceBuffer cos = data_.Allocate(positions.size() * 2 * sizeof(float));
  const DeviceBuffer sin = data_.Allocate(positions.size() * 2 * sizeof(float));
  RopeTableArgs args = {.positions = position_buffer.as<const int32_t>(),
                        .inv_freq = inv_freq.as<const float>(),
                        .attention_factor = 1.5f,
                        .growth = 0.1f,
                        .growth_positions = 16,
                        .cos = cos.as<float>(),
                        .sin = sin.as<float>()};
  ASSERT_TRUE(backend_->ops->model().RopeTable(*backend_->stream, args).ok());
  const auto got_cos = data_.Download<float>(cos), got_sin = data_.Download<float>(sin);
  for (size_t i = 0; i < got_cos.size(); ++i) {
    const int32_t position = positions[i / 2];
    const double angle = static_cast<float>(position) * (i % 2 == 0 ? 0.5f : 0.01f);
    const double factor = 1.5 * (1 + 0.1 * std::log(1.0 + position / 16));
    EXPECT_NEAR(got_cos[i], std::cos(angle) * factor, 1e-5) << i;
    EXPECT_NEAR(got_sin[i], std::sin(angle) * factor, 1e-5) << i;
  }
  args.growth_positions = 0;
  EXPECT_EQ(backend_->ops->model().RopeTable(*backend_->stream, args).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(RopeTest, RefusesOddHeadsAndShortTables) {
  const auto x = data_.Poisoned(2, 6);
  const DeviceBuffer table = data_.Allocate(2 * sizeof(float));
  for (const uint32_t head_dim : {0u, 3u, 4u, 6u}) {
    EXPECT_EQ(backend_->ops->model()
                  .Rope(*backend_->stream, {.x = x.view,
                                            .head_dim = head_dim,
                                            .cos = table.as<const float>(),
                                            .sin = table.as<const float>()})
                  .code(),
              absl::StatusCode::kInvalidArgument)
        << head_dim;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RopeTest, testing::ValuesIn(AvailableBackends()), BackendName);

}  // namespace
}  // namespace retroinfer
