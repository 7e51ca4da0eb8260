#include "gpu_worker/ops/model/linear.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

struct Size {
  int64_t rows;
  int64_t in;
  int64_t out;
};

class LinearTest : public testing::TestWithParam<BackendParam> {
 protected:
  std::unique_ptr<PreparedLinear> Prepare(const MatrixView& weight,
                                          std::optional<MatrixView> bias = std::nullopt) {
    LinearWeights weights{.weight = AsWeights(weight), .bias = {}};
    if (bias.has_value()) weights.bias = AsWeights(*bias);
    auto linear = backend_->ops->model().PrepareLinear(weights);
    EXPECT_TRUE(linear.ok()) << linear.status();
    return *std::move(linear);
  }

  std::vector<float> Run(const PreparedLinear& linear, std::span<const float> in, int64_t rows,
                         bool decode) {
    const auto x = data_.Activations(in, rows, linear.in_features());
    const auto y = data_.Poisoned(rows, linear.out_features());
    const absl::Status status = backend_->ops->model().Linear(
        *backend_->stream, {.linear = &linear, .in = x.view, .out = y.view, .decode = decode});
    EXPECT_TRUE(status.ok()) << status;
    return data_.Values(y);
  }

  void CheckAgainstDoubles(const Size& size, DType dtype, bool decode) {
    const auto w = RandomNormal(static_cast<size_t>(size.out * size.in), 1);
    const auto x = RandomNormal(static_cast<size_t>(size.rows * size.in), 2);
    const auto b = RandomNormal(static_cast<size_t>(size.out), 3);
    const auto weight = data_.UploadMatrix(w, size.out, size.in, dtype);
    const auto bias = data_.UploadMatrix(b, 1, size.out, dtype);
    const auto linear = Prepare(weight.view, bias.view);
    const auto got = Run(*linear, x, size.rows, decode);
    const auto w_rounded = data_.Values(weight);
    const auto b_rounded = data_.Values(bias);
    std::vector<double> want;
    for (int64_t r = 0; r < size.rows; ++r) {
      for (int64_t o = 0; o < size.out; ++o) {
        double sum = b_rounded[static_cast<size_t>(o)];
        for (int64_t i = 0; i < size.in; ++i) {
          sum += double{x[static_cast<size_t>(r * size.in + i)]} *
                 w_rounded[static_cast<size_t>(o * size.in + i)];
        }
        want.push_back(sum);
      }
    }
    EXPECT_LE(RelativeError(got, want), GetParam().matmul_tolerance)
        << size.rows << " x " << size.in << " x " << size.out;
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(LinearTest, MultipliesByHand) {
  const auto weight = data_.UploadMatrix(std::vector<float>{1, 2, 3, 0, -1, 4}, 2, 3, DType::kF32);
  const auto bias = data_.UploadMatrix(std::vector<float>{10, 20}, 1, 2, DType::kF32);
  const auto linear = Prepare(weight.view, bias.view);
  EXPECT_EQ(linear->in_features(), 3);
  EXPECT_EQ(linear->out_features(), 2);
  const std::vector<float> in = {1, 1, 1, 2, 0, -1};
  EXPECT_EQ(Run(*linear, in, 2, true), (std::vector<float>{16, 23, 9, 16}));
  EXPECT_EQ(Run(*linear, in, 2, false), (std::vector<float>{16, 23, 9, 16}));
}

TEST_P(LinearTest, FollowsDoublesForAllSizesAndTypes) {
  for (const bool decode : {false, true}) {
    for (const DType dtype : {DType::kBf16, DType::kF32}) {
      for (const Size& size : {Size{0, 32, 32}, Size{1, 1, 1}, Size{1, 64, 300}, Size{15, 31, 33},
                               Size{16, 32, 31}, Size{17, 33, 256}, Size{33, 128, 257},
                               Size{64, 96, 32}, Size{65, 200, 512}, Size{600, 64, 64}}) {
        CheckAgainstDoubles(size, dtype, decode);
      }
    }
  }
}

TEST_P(LinearTest, TakesHalfPrecisionWeights) {
  const std::vector<float> values = {0.5f, -3.0f, 1.25f, 0.0f, 2.0f, -0.125f};
  std::vector<uint16_t> halves;
  for (const float value : values) halves.push_back(ToF16(value));
  const DeviceBuffer buffer = data_.Upload(halves);
  const auto linear = Prepare(MatrixView::Dense(buffer.bytes(), DType::kF16, 2, 3));
  EXPECT_EQ(Run(*linear, std::vector<float>{1, 2, 4}, 1, true), (std::vector<float>{-0.5f, 3.5f}));
}

TEST_P(LinearTest, AddsToTheOutputAndKeepsWhatLiesBesideIt) {
  const auto weight = data_.UploadMatrix(std::vector<float>{1, 0, 0, 1, 1, 1}, 3, 2, DType::kF32);
  const auto linear = Prepare(weight.view);
  const auto x = data_.Activations(std::vector<float>{9, 1, 2, 9, 9, 3, 4, 9}, 2, 4);
  const auto y = data_.Activations(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 2, 5);
  ASSERT_TRUE(backend_->ops->model()
                  .Linear(*backend_->stream, {.linear = linear.get(),
                                              .in = x.view.Columns(1, 2),
                                              .out = y.view.Columns(1, 3),
                                              .accumulate = true})
                  .ok());
  EXPECT_EQ(data_.Values(y), (std::vector<float>{1, 3, 5, 7, 5, 6, 10, 12, 16, 10}));
}

TEST_P(LinearTest, ARowDoesNotDependOnTheOthers) {
  constexpr int64_t kIn = 160, kRows = 130;
  const auto x = RandomNormal(kRows * kIn, 5);
  // 300 rows of 2-byte results are not all aligned, 512 are.
  for (const int64_t out : {300, 512}) {
    const auto w = RandomNormal(static_cast<size_t>(out * kIn), 4);
    const auto weight = data_.UploadMatrix(w, out, kIn, DType::kBf16);
    const auto linear = Prepare(weight.view);
    for (const bool decode : {false, true}) {
      const auto all = Run(*linear, x, kRows, decode);
      for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, 1},
                                        {1, 1},
                                        {7, 20},
                                        {63, 2},
                                        {15, 64},
                                        {3, 9},
                                        {129, 1},
                                        {50, 80}}) {
        const auto some = Run(
            *linear,
            std::span(x).subspan(static_cast<size_t>(first * kIn), static_cast<size_t>(rows * kIn)),
            rows, decode);
        const auto same = std::span(all).subspan(static_cast<size_t>(first * out), some.size());
        EXPECT_TRUE(std::equal(some.begin(), some.end(), same.begin()))
            << first << ", " << rows << " of " << out << (decode ? ", decode" : "");
      }
    }
  }
}

TEST_P(LinearTest, WeightsAreCountedAndFreed) {
  const auto weight = data_.UploadMatrix(RandomNormal(64 * 64, 6), 64, 64, DType::kF32);
  const size_t before = backend_->device->allocated_bytes(MemoryPurpose::kWeights);
  auto linear = Prepare(weight.view);
  EXPECT_GE(backend_->device->allocated_bytes(MemoryPurpose::kWeights), before + 64 * 64 * 2);
  linear.reset();
  EXPECT_EQ(backend_->device->allocated_bytes(MemoryPurpose::kWeights), before);
}

TEST_P(LinearTest, RefusesWrongShapes) {
  const auto weight = data_.UploadMatrix(RandomNormal(6, 7), 2, 3, DType::kF32);
  const auto linear = Prepare(weight.view);
  const auto x = data_.Poisoned(1, 2);
  const auto y = data_.Poisoned(1, 2);
  Ops& ops = *backend_->ops;
  EXPECT_EQ(ops.model()
                .Linear(*backend_->stream, {.linear = linear.get(), .in = x.view, .out = y.view})
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ops.model().Linear(*backend_->stream, {.in = x.view, .out = y.view}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ops.model()
                .PrepareLinear({.weight = AsWeights(weight.view.Rows(0, 0)), .bias = {}})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(LinearTest, GatesTheFirstHalfOfTheFeaturesByTheOther) {
  for (const Size& size : {Size{1, 64, 48}, Size{3, 72, 32}, Size{9, 512, 40}, Size{16, 128, 256},
                           Size{20, 64, 48}, Size{40, 96, 16}}) {
    const int64_t half = size.out / 2;
    const auto x = RandomNormal(static_cast<size_t>(size.rows * size.in), 2);
    const auto weight =
        data_.UploadMatrix(RandomNormal(static_cast<size_t>(size.out * size.in), 1, 0.1f), size.out,
                           size.in, DType::kBf16);
    const auto linear = Prepare(weight.view);
    const auto w = data_.Values(weight);
    std::vector<double> want, gelu;
    for (int64_t r = 0; r < size.rows; ++r) {
      const auto product = [&](int64_t feature) {
        double sum = 0;
        for (int64_t i = 0; i < size.in; ++i) {
          sum += double{x[static_cast<size_t>(r * size.in + i)]} *
                 w[static_cast<size_t>(feature * size.in + i)];
        }
        return sum;
      };
      for (int64_t o = 0; o < half; ++o) {
        const double gate = product(o);
        const double up = product(half + o);
        want.push_back(gate / (1 + std::exp(-gate)) * up);
        const double inner = std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate);
        gelu.push_back(gate / 2 * (1 + std::tanh(inner)) * up);
      }
    }
    for (const bool decode : {false, true}) {
      const auto in = data_.Activations(x, size.rows, size.in);
      const auto gate_up = data_.Poisoned(size.rows, size.out);
      const auto out = data_.Poisoned(size.rows, half);
      GatedLinearArgs args = {.linear = linear.get(),
                              .in = in.view,
                              .gate_up = gate_up.view,
                              .out = out.view,
                              .decode = decode};
      ASSERT_TRUE(backend_->ops->model().GatedLinear(*backend_->stream, args).ok());
      EXPECT_LE(RelativeError(data_.Values(out), want), 2 * GetParam().matmul_tolerance)
          << size.rows << " x " << size.in << " x " << size.out << " decode " << decode;
      const std::vector<float> apart = data_.Values(out);
      args.out = gate_up.view.Columns(0, half);
      ASSERT_TRUE(backend_->ops->model().GatedLinear(*backend_->stream, args).ok());
      const std::vector<float> wide = data_.Values(gate_up);
      for (int64_t r = 0; r < size.rows; ++r) {
        for (int64_t o = 0; o < half; ++o) {
          ASSERT_EQ(wide[static_cast<size_t>(r * size.out + o)],
                    apart[static_cast<size_t>(r * half + o)]);
        }
      }
      // Another activation of the same products.
      args.out = out.view;
      args.activation = GatedActivation::kGeluTanh;
      ASSERT_TRUE(backend_->ops->model().GatedLinear(*backend_->stream, args).ok());
      EXPECT_LE(RelativeError(data_.Values(out), gelu), 2 * GetParam().matmul_tolerance);
      args.activation = GatedActivation::kSilu;
      // A row does not depend on how many there are.
      if (!decode) continue;
      args.in = in.view.Rows(0, 1);
      args.gate_up = gate_up.view.Rows(0, 1);
      const auto alone = data_.Poisoned(1, half);
      args.out = alone.view;
      ASSERT_TRUE(backend_->ops->model().GatedLinear(*backend_->stream, args).ok());
      EXPECT_EQ(data_.Values(alone), std::vector<float>(apart.begin(), apart.begin() + half));
    }
  }
}

TEST_P(LinearTest, GatedLinearRefusesWhatDoesNotFit) {
  const auto weight = data_.UploadMatrix(RandomNormal(3 * 8, 1), 3, 8, DType::kBf16);
  const auto linear = Prepare(weight.view);
  const auto in = data_.Poisoned(2, 8), gate_up = data_.Poisoned(2, 3), out = data_.Poisoned(2, 1);
  EXPECT_EQ(
      backend_->ops->model()
          .GatedLinear(
              *backend_->stream,
              {.linear = linear.get(), .in = in.view, .gate_up = gate_up.view, .out = out.view})
          .code(),
      absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, LinearTest, testing::ValuesIn(AvailableBackends()), BackendName);

}  // namespace
}  // namespace retroinfer
