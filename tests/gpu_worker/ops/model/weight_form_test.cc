#include "gpu_worker/ops/model/weight_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "gpu_worker/ops/backend/cuda/cuda_needs.h"
#include "tests/support/added_weight_forms.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;
using ::testing::HasSubstr;

TEST(WeightFormTest, RowsArePackedInWords) {
  EXPECT_EQ(kBf16Weights.Bytes(3, 5), 30u);
  EXPECT_EQ(kFp8Weights.Bytes(3, 5), 15u);
  EXPECT_EQ(kInt8Weights.RowBytes(5), 8u);
  EXPECT_EQ(kInt4Weights.RowBytes(1), 4u);
  EXPECT_EQ(kInt4Weights.RowBytes(8), 4u);
  EXPECT_EQ(kInt4Weights.Bytes(3, 9), 24u);
  EXPECT_EQ(kBf16Weights.ScaleBytes(3, 64), 0u);
  EXPECT_EQ(kFp8Weights.ScaleBytes(3, 64), 12u);
  EXPECT_EQ(kInt4Weights.ScaleBytes(3, 65), 3u * 3 * 5);
}

TEST(WeightFormTest, ATensorsTypeIsAForm) {
  EXPECT_TRUE(FormOf(WeightType::kF16).IsNumber(DType::kF16));
  EXPECT_FALSE(FormOf(WeightType::kF16).IsNumber(DType::kBf16));
  const WeightForm& fp8 = FormOf(WeightType::kF8E4M3);
  EXPECT_TRUE(fp8.is_code());
  const std::byte codes[] = {std::byte{0x38}, std::byte{0xb8}, std::byte{0x7f}};
  float numbers[3];
  fp8.decode(codes, 3, numbers);
  EXPECT_EQ(numbers[0], 1.0f);
  EXPECT_EQ(numbers[1], -1.0f);
  EXPECT_TRUE(std::isnan(numbers[2]));
}

TEST(WeightFormTest, NeedsFollowTheForm) {
  EXPECT_TRUE(kCudaNeeds.has_weight_form(kBf16Weights) && kCudaNeeds.has_weight_form(kFp8Weights));
  EXPECT_FALSE(kCudaNeeds.has_weight_form(kInt4Weights));
  EXPECT_TRUE(kCpuNeeds.has_weight_form(kInt4Weights));
  EXPECT_EQ(kCudaNeeds.weight_bytes(kFp8Weights, 64, 32), 64u * 32);
  EXPECT_EQ(kCpuNeeds.weight_bytes(kInt4Weights, 64, 32), 2u * 64 * 32);
}

// A weight of 4 bits with a scale and a zero for each group: columns, rows and bits that do not
// fill the last group, block or word.
class PackedWeightTest : public testing::TestWithParam<BackendParam> {
 protected:
  static constexpr int64_t kRows = 300;
  static constexpr int64_t kCols = 77;

  PackedWeightTest() {
    scales_.cols_each = 32;
    const int64_t groups = scales_.num_cols(kCols);
    for (int64_t i = 0; i < kRows * groups; ++i) {
      scales_.values.push_back(0.001f * static_cast<float>(1 + i % 13));
      scales_.zeros.push_back(static_cast<float>(i * 7 % 16));
    }
    codes_.resize(kInt4Weights.Bytes(kRows, kCols));
    for (size_t i = 0; i < codes_.size(); ++i) codes_[i] = static_cast<uint8_t>(i * 37 + i / 100);
  }
  // Computed apart from the form.
  double Number(int64_t row, int64_t col) const {
    const auto byte = static_cast<size_t>(row * 40 + col / 2);  // 77 columns are ten words
    const int code = col % 2 == 0 ? codes_[byte] & 15 : codes_[byte] >> 4;
    const auto index = static_cast<size_t>(row * 3 + col / 32);
    return (double{static_cast<float>(code)} - scales_.zeros[index]) * scales_.values[index];
  }
  absl::StatusOr<std::unique_ptr<PreparedLinear>> Prepare(const WeightScales& scales) {
    const DeviceBuffer codes = data_.Upload(codes_);
    return backend_->ops->model().PrepareLinear(
        {.weight = WeightView::Dense(codes.bytes(), kInt4Weights, kRows, kCols),
         .bias = {},
         .scales = scales});
  }
  bool IsCpu() const { return GetParam().name.starts_with("Cpu"); }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  std::vector<uint8_t> codes_;
  WeightScales scales_;
};

TEST_P(PackedWeightTest, IsMultipliedOrRefusedByName) {
  const auto linear = Prepare(scales_);
  if (!IsCpu()) {
    EXPECT_EQ(linear.status().code(), absl::StatusCode::kUnimplemented) << linear.status();
    EXPECT_THAT(std::string(linear.status().message()), HasSubstr("int4"));
    return;
  }
  ASSERT_TRUE(linear.ok()) << linear.status();
  for (const bool decode : {false, true}) {
    const auto drawn = data_.Rounded(RandomNormal(3 * kCols, 5));
    const auto x = data_.Activations(drawn, 3, kCols);
    const auto y = data_.Poisoned(3, kRows);
    ASSERT_TRUE(
        backend_->ops->model()
            .Linear(*backend_->stream,
                    {.linear = linear->get(), .in = x.view, .out = y.view, .decode = decode})
            .ok());
    std::vector<double> want;
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t row = 0; row < kRows; ++row) {
        double sum = 0;
        for (int64_t col = 0; col < kCols; ++col) {
          sum += Number(row, col) * drawn[static_cast<size_t>(i * kCols + col)];
        }
        want.push_back(sum);
      }
    }
    EXPECT_LE(RelativeError(data_.Values(y), want), GetParam().matmul_tolerance);
  }
}

TEST_P(PackedWeightTest, ScalesAndZerosAreChecked) {
  if (!IsCpu()) GTEST_SKIP() << "the form is refused before";
  const auto refused = [&](const WeightScales& scales) {
    return Prepare(scales).status().code() == absl::StatusCode::kInvalidArgument;
  };
  WeightScales wrong = scales_;
  wrong.zeros.pop_back();
  EXPECT_TRUE(refused(wrong));
  wrong = scales_;
  wrong.zeros[5] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(refused(wrong));
  wrong = scales_;
  wrong.cols_each = 0;
  EXPECT_TRUE(refused(wrong));
  wrong = scales_;
  wrong.values[7] = 0;
  EXPECT_TRUE(refused(wrong));
  EXPECT_FALSE(refused(scales_));
}

INSTANTIATE_TEST_SUITE_P(Backends, PackedWeightTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
