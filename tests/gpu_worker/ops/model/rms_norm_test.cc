#include "gpu_worker/ops/model/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

class RmsNormTest : public testing::TestWithParam<BackendParam> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(RmsNormTest, NormalizesByHand) {
  const auto in = data_.Activations(std::vector<float>{3, 4, 0, 0}, 1, 4);
  const auto weight = data_.UploadMatrix(std::vector<float>{1, 2, 3, 4}, 1, 4, DType::kBf16);
  const auto out = data_.Poisoned(1, 4);
  ASSERT_TRUE(
      backend_->ops->model()
          .RmsNorm(*backend_->stream,
                   {.in = in.view, .weight = weight.view, .epsilon = 1e-12f, .out = out.view})
          .ok());
  const std::vector<float> got = data_.Values(out);  // mean of squares 6.25
  EXPECT_NEAR(got[0], 1.2, 2 * data_.Tolerance());
  EXPECT_NEAR(got[1], 3.2, 4 * data_.Tolerance());
  EXPECT_EQ(got[2], 0);
}

TEST_P(RmsNormTest, ScalesWhatIsNormalized) {
  const auto in = data_.Activations(std::vector<float>{3, 4, 0, 0}, 1, 4);
  const auto weight = data_.UploadMatrix(std::vector<float>{1, 2, 3, 4}, 1, 4, DType::kBf16);
  const auto out = data_.Poisoned(1, 4);
  ASSERT_TRUE(backend_->ops->model()
                  .RmsNorm(*backend_->stream, {.in = in.view,
                                               .weight = weight.view,
                                               .epsilon = 1e-12f,
                                               .scale = 0.3f,
                                               .out = out.view})
                  .ok());
  const std::vector<float> got = data_.Values(out);
  EXPECT_NEAR(got[0], 0.36, data_.Tolerance());
  EXPECT_NEAR(got[1], 0.96, 2 * data_.Tolerance());
}

TEST_P(RmsNormTest, FollowsDoublesInPlaceAndOutOfPlace) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const int64_t cols : {1, 31, 32, 33, 128, 3000}) {
      for (const int64_t rows : {0, 1, 33}) {
        const auto x = data_.Rounded(RandomNormal(static_cast<size_t>(rows * cols), 1, 3.0f));
        const auto weight =
            data_.UploadMatrix(RandomNormal(static_cast<size_t>(cols), 2), 1, cols, dtype);
        const auto in = data_.Activations(x, rows, cols);
        const auto out = data_.Poisoned(rows, cols);
        for (const MatrixView& target : {out.view, in.view}) {
          ASSERT_TRUE(
              backend_->ops->model()
                  .RmsNorm(*backend_->stream,
                           {.in = in.view, .weight = weight.view, .epsilon = 0.01f, .out = target})
                  .ok());
        }
        const std::vector<float> w = data_.Values(weight);
        std::vector<double> want;
        for (int64_t r = 0; r < rows; ++r) {
          double squares = 0;
          const float* row = x.data() + r * cols;
          for (int64_t i = 0; i < cols; ++i) squares += double{row[i]} * row[i];
          const double factor = 1 / std::sqrt(squares / static_cast<double>(cols) + double{0.01f});
          for (int64_t i = 0; i < cols; ++i) {
            want.push_back(row[i] * factor * w[static_cast<size_t>(i)]);
          }
        }
        EXPECT_LE(RelativeError(data_.Values(out), want), data_.Tolerance())
            << rows << " x " << cols;
        EXPECT_EQ(data_.Values(out), data_.Values(in));
      }
    }
  }
}

TEST_P(RmsNormTest, NormalizesEveryHeadOfARowAlone) {
  constexpr int64_t kRows = 3, kHeads = 5;
  for (const int64_t width : {31, 64, 128}) {
    const auto x = RandomNormal(static_cast<size_t>(kRows * kHeads * width), 1, 3.0f);
    const auto weight =
        data_.UploadMatrix(RandomNormal(static_cast<size_t>(width), 2), 1, width, DType::kBf16);
    // Columns of a wider matrix, and the same heads as rows.
    const auto wide = data_.Poisoned(kRows, (kHeads + 2) * width);
    const auto in = data_.Activations(x, kRows, kHeads * width);
    const auto heads = data_.Activations(x, kRows * kHeads, width);
    const MatrixView part = wide.view.Columns(width, kHeads * width);
    for (const auto& [from, to] : {std::pair(in.view, part), std::pair(heads.view, heads.view)}) {
      ASSERT_TRUE(backend_->ops->model()
                      .RmsNorm(*backend_->stream,
                               {.in = from, .weight = weight.view, .epsilon = 0.01f, .out = to})
                      .ok());
    }
    const std::vector<float> got = data_.Values(wide), want = data_.Values(heads);
    for (int64_t row = 0; row < kRows; ++row) {
      const auto first = got.begin() + (row * (kHeads + 2) + 1) * width;
      EXPECT_EQ(std::vector<float>(first, first + kHeads * width),
                std::vector<float>(want.begin() + row * kHeads * width,
                                   want.begin() + (row + 1) * kHeads * width));
    }
  }
}

TEST_P(RmsNormTest, AddsToWhatIsThereAndToWeights) {
  for (const int64_t cols : {1, 31, 128, 3000}) {
    constexpr int64_t kRows = 3;
    const auto size = static_cast<size_t>(kRows * cols);
    const auto x = data_.Rounded(RandomNormal(size, 1, 3.0f));
    const auto before = data_.Rounded(RandomNormal(size, 3));
    const auto weight =
        data_.UploadMatrix(RandomNormal(static_cast<size_t>(cols), 2), 1, cols, DType::kBf16);
    const auto in = data_.Activations(x, kRows, cols);
    const auto out = data_.Activations(before, kRows, cols);
    RmsNormArgs args = {.in = in.view,
                        .weight = weight.view,
                        .epsilon = 0.01f,
                        .weight_offset = 1,
                        .out = out.view,
                        .accumulate = true};
    ASSERT_TRUE(backend_->ops->model().RmsNorm(*backend_->stream, args).ok());
    const std::vector<float> w = data_.Values(weight);
    std::vector<double> want;
    for (int64_t row = 0; row < kRows; ++row) {
      double squares = 0;
      const auto first = static_cast<size_t>(row * cols);
      for (size_t i = 0; i < w.size(); ++i) squares += double{x[first + i]} * x[first + i];
      const double factor = 1 / std::sqrt(squares / static_cast<double>(cols) + double{0.01f});
      for (size_t i = 0; i < w.size(); ++i) {
        want.push_back(before[first + i] + x[first + i] * factor * (1.0 + w[i]));
      }
    }
    EXPECT_LE(RelativeError(data_.Values(out), want), data_.Tolerance()) << cols;
    args.out = in.view;
    EXPECT_EQ(backend_->ops->model().RmsNorm(*backend_->stream, args).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(RmsNormTest, RefusesOtherShapesAndNoEpsilon) {
  const auto x = data_.Poisoned(2, 4), narrow = data_.Poisoned(2, 3);
  const auto weight = data_.UploadMatrix(std::vector<float>(4), 1, 4, DType::kF32);
  RmsNormArgs args = {.in = x.view, .weight = weight.view, .epsilon = 1, .out = narrow.view};
  EXPECT_EQ(backend_->ops->model().RmsNorm(*backend_->stream, args).code(),
            absl::StatusCode::kInvalidArgument);
  args.out = args.in = narrow.view;
  EXPECT_EQ(backend_->ops->model().RmsNorm(*backend_->stream, args).code(),
            absl::StatusCode::kInvalidArgument);
  args.out = args.in = x.view;
  args.epsilon = 0;
  EXPECT_EQ(backend_->ops->model().RmsNorm(*backend_->stream, args).code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, RmsNormTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
