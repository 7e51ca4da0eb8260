#include "gpu_worker/ops/model/silu_mul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

class SiluMulTest : public testing::TestWithParam<BackendParam> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(SiluMulTest, FollowsDoublesForAllSizes) {
  for (const int64_t cols : {1, 31, 32, 33, 1000}) {
    for (const int64_t rows : {0, 1, 40}) {
      const auto size = static_cast<size_t>(rows * cols);
      const auto gate = data_.Rounded(RandomNormal(size, 1, 5.0f));
      const auto up = data_.Rounded(RandomNormal(size, 2));
      const auto g = data_.Activations(gate, rows, cols), u = data_.Activations(up, rows, cols);
      const auto out = data_.Poisoned(rows, cols);
      for (const MatrixView& target : {out.view, g.view}) {
        ASSERT_TRUE(backend_->ops->model()
                        .SiluMul(*backend_->stream, {.gate = g.view, .up = u.view, .out = target})
                        .ok());
      }
      std::vector<double> want;
      for (size_t i = 0; i < size; ++i) {
        want.push_back(gate[i] / (1 + std::exp(-double{gate[i]})) * up[i]);
      }
      EXPECT_LE(RelativeError(data_.Values(out), want), data_.Tolerance());
      EXPECT_EQ(data_.Values(out), data_.Values(g));
    }
  }
}

TEST_P(SiluMulTest, HoldsAtTheEndsOfTheRange) {
  const auto gate = data_.Rounded(std::vector<float>{-1e30f, -200, -89, -87, 0, 87, 200, 1e30f});
  const auto g = data_.Activations(gate, 1, 8);
  const auto u = data_.Activations(std::vector<float>(8, 1.0f), 1, 8);
  const auto out = data_.Poisoned(1, 8);
  ASSERT_TRUE(backend_->ops->model()
                  .SiluMul(*backend_->stream, {.gate = g.view, .up = u.view, .out = out.view})
                  .ok());
  const std::vector<float> got = data_.Values(out);
  for (size_t i = 1; i < 4; ++i) EXPECT_NEAR(got[i], 0, 1e-35);
  EXPECT_EQ(got[4], 0);
  EXPECT_NEAR(got[0], 0, 1e-7);
  for (size_t i = 5; i < 8; ++i) EXPECT_EQ(got[i], gate[i]);
}

TEST_P(SiluMulTest, GeluByTanhFollowsDoubles) {
  for (const int64_t cols : {1, 33, 1000}) {
    auto gate = data_.Rounded(RandomNormal(static_cast<size_t>(cols), 1, 5.0f));
    const auto up = data_.Rounded(RandomNormal(static_cast<size_t>(cols), 2));
    gate[0] = cols == 1 ? -1e30f : 100.0f;
    const auto g = data_.Activations(gate, 1, cols), u = data_.Activations(up, 1, cols);
    const auto out = data_.Poisoned(1, cols);
    ASSERT_TRUE(backend_->ops->model()
                    .SiluMul(*backend_->stream, {.gate = g.view,
                                                 .up = u.view,
                                                 .out = out.view,
                                                 .activation = GatedActivation::kGeluTanh})
                    .ok());
    std::vector<double> want;
    for (size_t i = 0; i < gate.size(); ++i) {
      const double x = gate[i];
      const double inner = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
      want.push_back(x / 2 * (1 + std::tanh(inner)) * up[i]);
    }
    if (cols == 1) {
      EXPECT_NEAR(data_.Values(out)[0], 0, 1e-6);
    } else {
      EXPECT_LE(RelativeError(data_.Values(out), want), data_.Tolerance());
    }
  }
}

TEST_P(SiluMulTest, ClampedSwigluFollowsDoubles) {
  for (const int64_t cols : {1, 33, 1000}) {
    const auto gate = data_.Rounded(RandomNormal(static_cast<size_t>(cols), 1, 6.0f));
    const auto up = data_.Rounded(RandomNormal(static_cast<size_t>(cols), 2, 6.0f));
    const auto g = data_.Activations(gate, 1, cols), u = data_.Activations(up, 1, cols);
    const auto out = data_.Poisoned(1, cols);
    ASSERT_TRUE(backend_->ops->model()
                    .SiluMul(*backend_->stream, {.gate = g.view,
                                                 .up = u.view,
                                                 .out = out.view,
                                                 .activation = GatedActivation::kClampedSwiglu})
                    .ok());
    std::vector<double> want;
    for (size_t i = 0; i < gate.size(); ++i) {
      const double x = std::min(double{gate[i]}, 7.0);
      want.push_back(x / (1 + std::exp(-1.702 * x)) * (std::clamp(double{up[i]}, -7.0, 7.0) + 1));
    }
    EXPECT_LE(RelativeError(data_.Values(out), want), data_.Tolerance());
  }
}

TEST_P(SiluMulTest, RefusesDifferentShapes) {
  const auto a = data_.Poisoned(1, 8), b = data_.Poisoned(1, 7);
  EXPECT_EQ(backend_->ops->model()
                .SiluMul(*backend_->stream, {.gate = a.view, .up = b.view, .out = a.view})
                .code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, SiluMulTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
