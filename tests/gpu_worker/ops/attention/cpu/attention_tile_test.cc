#include "gpu_worker/ops/attention/cpu/attention_tile.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "tests/support/device_data.h"

namespace retroinfer::cpu {
namespace {

using namespace test_support;

// Element (row, col) of a packed operand b.
float Unpack(const std::vector<float>& packed, DType dtype, int64_t row, int64_t col) {
  const int64_t width = dtype == DType::kF32 ? 1 : 2;
  return packed[static_cast<size_t>((row / width * kTileCols + col) * width + row % width)];
}

struct alignas(64) Line {
  std::byte bytes[64];
};

// Memory that the vector loads of the kernels accept.
class Aligned {
 public:
  explicit Aligned(size_t bytes) : lines_((bytes + 63) / 64) {}
  std::byte* data() { return lines_.data()->bytes; }
  float* floats() { return reinterpret_cast<float*>(data()); }

 private:
  std::vector<Line> lines_;
};

TEST(AttentionTileTest, PacksQueriesScaledAndTransposed) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const auto queries = RandomNormal(7 * 80, 1);
    Aligned out(64 * kTileCols * sizeof(float));
    PackQueries(queries.data(), 80, 7, 64, 0.5f, dtype, out.data());
    const auto packed = FromBytes({out.data(), 64 * kTileCols * DTypeBytes(dtype)}, dtype);
    for (int64_t i = 0; i < 64; ++i) {
      for (int64_t c = 0; c < kTileCols; ++c) {
        const float value = c < 7 ? queries[static_cast<size_t>(c * 80 + i)] * 0.5f : 0.0f;
        ASSERT_EQ(Unpack(packed, dtype, i, c),
                  dtype == DType::kF32 ? value : FromBf16(ToBf16(value)));
      }
    }
  }
}

TEST(AttentionTileTest, TransposesValuesOfAnyNumberOfKeys) {
  for (const int64_t dim : {64, 128, 256}) {
    for (const int64_t keys : {1, 7, 8, 31, 33, 128}) {
      const auto values = RandomNormal(static_cast<size_t>(keys * dim), 2);
      const int64_t padded = (keys + 31) / 32 * 32;
      for (const auto& [in, out_type] : {std::pair{DType::kBf16, DType::kBf16},
                                         {DType::kBf16, DType::kF32},
                                         {DType::kF32, DType::kF32}}) {
        const auto bytes = ToBytes(values, in);
        const auto rounded = FromBytes(bytes, in);
        Aligned out(static_cast<size_t>(dim * kKeyBlock) * sizeof(float));
        TransposeValues(bytes.data(), in, keys, padded, dim, out_type, out.data());
        const auto got = FromBytes(
            {out.data(), static_cast<size_t>(dim * kKeyBlock) * DTypeBytes(out_type)}, out_type);
        for (int64_t i = 0; i < dim; ++i) {
          for (int64_t key = 0; key < padded; ++key) {
            ASSERT_EQ(got[static_cast<size_t>(i * kKeyBlock + key)],
                      key < keys ? rounded[static_cast<size_t>(key * dim + i)] : 0.0f);
          }
        }
      }
    }
  }
}

TEST(AttentionTileTest, UpdatesTheRunningSoftmaxWithAMask) {
  constexpr int64_t kKeys = 64, kDim = 32;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    TileSoftmax softmax;
    ResetSoftmax(softmax);
    Aligned scores(kKeys * kTileCols * 4), acc(kDim * kTileCols * 4),
        weights(kKeys * kTileCols * 4);
    std::fill_n(acc.floats(), kDim * kTileCols, 1.0f);
    std::vector<double> sum(kTileCols), max(kTileCols, -INFINITY);
    double factor_of_column_9 = 1;
    for (const int64_t last_key : {1000, 20}) {
      const auto random = RandomNormal(kKeys * kTileCols, static_cast<uint64_t>(last_key), 10.0f);
      std::copy(random.begin(), random.end(), scores.floats());
      UpdateTile(scores.floats(), kKeys, last_key, kDim, dtype, softmax, acc.floats(),
                 weights.data());
      const auto packed = FromBytes(
          {weights.data(), static_cast<size_t>(kKeys * kTileCols) * DTypeBytes(dtype)}, dtype);
      for (int64_t c = 0; c < kTileCols; ++c) {
        const auto col = static_cast<size_t>(c);
        double new_max = max[col];
        for (int64_t key = 0; key < kKeys && key <= last_key + c; ++key) {
          new_max = std::max(new_max, double{random[static_cast<size_t>(key * kTileCols + c)]});
        }
        const double factor = std::exp2(max[col] - new_max);
        if (c == 9) factor_of_column_9 *= factor;
        sum[col] *= factor;
        max[col] = new_max;
        for (int64_t key = 0; key < kKeys; ++key) {
          const bool seen = key <= last_key + c;
          const double weight =
              seen ? std::exp2(random[static_cast<size_t>(key * kTileCols + c)] - new_max) : 0;
          sum[col] += weight;
          const float got = Unpack(packed, dtype, key, c);
          if (!seen) {
            ASSERT_EQ(got, 0) << "a hidden key has weight";
          }
          ASSERT_NEAR(got, weight, weight * (dtype == DType::kF32 ? 5e-6 : 1.0 / 200) + 1e-37);
        }
        ASSERT_NEAR(softmax.sum[c], sum[col], 2e-4 * sum[col]);
        ASSERT_EQ(softmax.max[c], static_cast<float>(max[col]));
      }
    }
    EXPECT_NEAR(acc.floats()[5 * kTileCols + 9], factor_of_column_9, 1e-6);
  }
}

TEST(AttentionTileTest, FinishesRowsOnly) {
  TileSoftmax softmax;
  ResetSoftmax(softmax);
  Aligned acc(32 * kTileCols * 4);
  for (int i = 0; i < 32 * kTileCols; ++i) acc.floats()[i] = static_cast<float>(i);
  for (float& sum : softmax.sum) sum = 2;
  std::vector<float> out(3 * 40, kNan);
  FinishTile(acc.floats(), softmax, -INFINITY, 2, 32, out.data(), 40);
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[40 + 31], (31 * kTileCols + 1) / 2.0f);
  EXPECT_TRUE(std::isnan(out[32]));
  EXPECT_TRUE(std::isnan(out[80]));
}

TEST(AttentionTileTest, ASinkTakesItsShareOfTheSum) {
  TileSoftmax softmax;
  Aligned acc(32 * kTileCols * 4);
  std::fill_n(acc.floats(), 32 * kTileCols, 6.0f);
  std::fill_n(softmax.sum, kTileCols, 2.0f);
  std::fill_n(softmax.max, kTileCols, 5.0f);
  std::vector<float> out(32);
  for (const auto& [sink, want] :
       {std::pair{5.0f, 2.0f}, {7.0f, 1.0f}, {-200.0f, 3.0f}, {1000.0f, 0.0f}}) {
    FinishTile(acc.floats(), softmax, sink, 1, 32, out.data(), 32);
    EXPECT_EQ(out[31], want) << sink;
  }
}

TEST(AttentionTileTest, AColumnMaySeeItsFirstKeyInALaterBlock) {
  constexpr int64_t kKeys = 32, kDim = 32;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    TileSoftmax softmax;
    ResetSoftmax(softmax);
    Aligned scores(kKeys * kTileCols * 4), acc(kDim * kTileCols * 4),
        weights(kKeys * kTileCols * 4);
    std::fill_n(acc.floats(), kDim * kTileCols, 0.0f);
    const auto random = RandomNormal(kKeys * kTileCols, 3);
    for (const int64_t hidden_of_odd : {32, 30}) {
      std::copy(random.begin(), random.end(), scores.floats());
      std::array<int64_t, kTileCols> ends = {};
      for (size_t c = 1; c < ends.size(); c += 2) ends[c] = hidden_of_odd;
      HideKeys(0, ends, scores.floats());
      UpdateTile(scores.floats(), kKeys, 1000, kDim, dtype, softmax, acc.floats(), weights.data());
      const auto packed = FromBytes(
          {weights.data(), static_cast<size_t>(kKeys * kTileCols) * DTypeBytes(dtype)}, dtype);
      for (int64_t key = 0; key < kKeys; ++key) {
        ASSERT_EQ(Unpack(packed, dtype, key, 1) > 0, key >= hidden_of_odd) << key;
        ASSERT_GT(Unpack(packed, dtype, key, 2), 0) << key;
      }
      EXPECT_EQ(softmax.sum[1] > 0, hidden_of_odd < kKeys);
      EXPECT_EQ(std::isinf(softmax.max[1]), hidden_of_odd == kKeys);
      EXPECT_EQ(acc.floats()[1], 0);
    }
  }
}

}  // namespace
}  // namespace retroinfer::cpu
