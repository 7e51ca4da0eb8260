// The contract's suite takes the fastest kernel for its arguments; here each one on its own.
#include "gpu_worker/ops/attention/cuda/prefill_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "gpu_worker/device/cuda/cuda_device.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"

namespace retroinfer::cuda {
namespace {

using namespace test_support;

struct Case {
  uint32_t head_dim;
  uint32_t kv_heads;
  uint32_t group;
  int64_t first_token;
  int64_t num_queries;
  AttentionWindow window = {};
};

class CudaPrefillKernelTest : public testing::TestWithParam<PrefillKernel> {
 protected:
  void SetUp() override {
    for (const BackendParam& param : AvailableBackends()) {
      if (param.name == "Cuda") backend_ = param.create();
    }
    if (backend_ == nullptr) GTEST_SKIP() << "no GPU";
    auto context = PrefillAttentionContext::Create(static_cast<CudaDevice&>(*backend_->device));
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
    data_ = std::make_unique<DeviceData>(*backend_);
  }

  // Keys and values of `tokens` tokens; the 70 places behind them are NaN.
  LayerKvImage MakeKv(const Case& c, int64_t tokens) {
    std::vector<float> keys, values;
    for (uint32_t head = 0; head < c.kv_heads; ++head) {
      for (auto [seed, out] : {std::pair{10 + head, &keys}, {20 + head, &values}}) {
        const auto random = RandomNormal(static_cast<size_t>(tokens) * c.head_dim, seed);
        out->insert(out->end(), random.begin(), random.end());
        out->insert(out->end(), size_t{70} * c.head_dim, kNan);
      }
    }
    return LayerKvImage(*data_, keys, values, c.kv_heads, c.head_dim, DType::kBf16);
  }

  // Rows of `cols` queries; between the rows of the output, and behind them, nothing is written.
  std::vector<float> Run(PrefillKernel kernel, const Case& c, const LayerKv& kv,
                         std::span<const float> queries, int64_t first_token) {
    const int64_t cols = int64_t{c.kv_heads} * c.group * c.head_dim;
    const auto rows = static_cast<int64_t>(queries.size()) / cols;
    const auto q = data_->Activations(queries, rows, cols);
    const auto out = data_->Poisoned(rows + 3, cols + 8);
    const PrefillAttentionArgs args = {.queries = q.view,
                                       .kv = kv,
                                       .first_token = first_token,
                                       .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                                       .window = c.window,
                                       .out = out.view.Rows(0, rows).Columns(0, cols)};
    const auto fastest = context_->Choose(args);
    EXPECT_LE(kernel, fastest);
    const absl::Status status =
        context_->Run(kernel, static_cast<CudaStream&>(*backend_->stream), args);
    EXPECT_TRUE(status.ok()) << status;
    const auto all = data_->Values(out);
    std::vector<float> got;
    for (int64_t row = 0; row < rows + 3; ++row) {
      for (int64_t col = 0; col < cols + 8; ++col) {
        const float value = all[static_cast<size_t>(row * (cols + 8) + col)];
        const bool is_output = row < rows && col < cols;
        if (is_output) got.push_back(value);
        if (is_output == std::isnan(value)) {
          ADD_FAILURE() << "row " << row << ", column " << col << " is " << value;
          return got;
        }
      }
    }
    return got;
  }

  bool IsHere(PrefillKernel kernel, uint32_t head_dim = 64) {
    const Case c = {head_dim, 1, 1, 0, 1};
    const auto kv = MakeKv(c, 1);
    const auto q = data_->Poisoned(1, head_dim);
    return kernel <= context_->Choose({.queries = q.view, .kv = kv.view(), .out = q.view});
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<PrefillAttentionContext> context_;
  std::unique_ptr<DeviceData> data_;
};

TEST_P(CudaPrefillKernelTest, AgreesWithThePlainKernel) {
  if (!IsHere(GetParam())) GTEST_SKIP() << "not on this device";
  for (const Case& c :
       {Case{128, 2, 4, 0, 1}, Case{128, 2, 4, 0, 700}, Case{128, 1, 7, 1000, 129},
        Case{128, 8, 4, 3000, 1024}, Case{64, 2, 7, 0, 700}, Case{64, 1, 8, 1111, 257},
        Case{64, 3, 1, 127, 2}, Case{128, 2, 10, 0, 300}, Case{128, 1, 16, 500, 129},
        Case{256, 2, 2, 0, 1}, Case{256, 2, 2, 0, 700}, Case{256, 1, 16, 1111, 257}}) {
    if (!IsHere(GetParam(), c.head_dim)) continue;
    const auto kv = MakeKv(c, c.first_token + c.num_queries);
    const auto q = RandomNormal(
        static_cast<size_t>(c.num_queries) * c.kv_heads * c.group * c.head_dim, 3, 3.0f);
    const auto want = Run(PrefillKernel::kPlain, c, kv.view(), q, c.first_token);
    const auto got = Run(GetParam(), c, kv.view(), q, c.first_token);
    const std::vector<double> exact(want.begin(), want.end());
    EXPECT_LE(RelativeError(got, exact), 1.0 / 128)
        << "head_dim " << c.head_dim << ", group " << c.group << ", first " << c.first_token
        << ", queries " << c.num_queries;
  }
}

TEST_P(CudaPrefillKernelTest, AgreesWithThePlainKernelInAWindow) {
  if (!IsHere(GetParam())) GTEST_SKIP() << "not on this device";
  constexpr AttentionWindow kSteps = {.tokens = 4160, .step = 64, .always_seen = 4};
  for (const Case& c :
       {Case{128, 2, 4, 0, 700, {.tokens = 128}}, Case{128, 1, 7, 1000, 129, {.tokens = 100}},
        Case{128, 8, 4, 3000, 1024, {.tokens = 1024}}, Case{64, 2, 7, 0, 700, {.tokens = 1}},
        Case{64, 1, 8, 1111, 257, {.tokens = 65}}, Case{64, 3, 1, 127, 2, {.tokens = 2}},
        Case{128, 2, 4, 6000, 900, kSteps}, Case{64, 1, 8, 0, 5000, kSteps},
        Case{256, 2, 2, 1000, 300, {.tokens = 512}}, Case{256, 1, 4, 0, 4500, kSteps}}) {
    if (!IsHere(GetParam(), c.head_dim)) continue;
    const auto kv = MakeKv(c, c.first_token + c.num_queries);
    const auto q = RandomNormal(
        static_cast<size_t>(c.num_queries) * c.kv_heads * c.group * c.head_dim, 3, 3.0f);
    const auto want = Run(PrefillKernel::kPlain, c, kv.view(), q, c.first_token);
    const auto got = Run(GetParam(), c, kv.view(), q, c.first_token);
    const std::vector<double> exact(want.begin(), want.end());
    EXPECT_LE(RelativeError(got, exact), 1.0 / 128)
        << "head_dim " << c.head_dim << ", first " << c.first_token << ", queries " << c.num_queries
        << ", window " << c.window.tokens;
  }
}

TEST_P(CudaPrefillKernelTest, AResultDoesNotDependOnTheChunk) {
  if (!IsHere(GetParam())) GTEST_SKIP() << "not on this device";
  for (const uint32_t head_dim : kHeadDims) {
    if (!IsHere(GetParam(), head_dim)) continue;
    const Case c = {head_dim, 2, 3, 0, 1500};
    const auto kv = MakeKv(c, c.num_queries);
    const size_t cols = size_t{6} * c.head_dim;
    const auto q = RandomNormal(static_cast<size_t>(c.num_queries) * cols, 5);
    const auto whole = Run(GetParam(), c, kv.view(), q, 0);
    int64_t first = 0;
    for (const int64_t rows : {1, 7, 56, 64, 100, 128, 44, 511, 77, 512}) {
      const size_t begin = static_cast<size_t>(first) * cols;
      const auto part = Run(GetParam(), c, kv.view(),
                            std::span(q).subspan(begin, static_cast<size_t>(rows) * cols), first);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<int64_t>(begin)))
          << "rows " << first << " to " << first + rows;
      first += rows;
    }
    ASSERT_EQ(first, c.num_queries);
  }
}

TEST_P(CudaPrefillKernelTest, ALargeScoreAnywhereTakesAllTheWeight) {
  if (!IsHere(GetParam())) GTEST_SKIP() << "not on this device";
  constexpr int64_t kTokens = 520;
  const auto values = RandomNormal(kTokens * 64, 8);
  for (const int64_t place : {0, 63, 64, 127, 128, 300, 519}) {
    std::vector<float> keys(kTokens * 64, 0.0f);
    keys[static_cast<size_t>(place) * 64] = 1.0f;
    const LayerKvImage kv(*data_, keys, values, 1, 64, DType::kBf16);
    std::vector<float> q(kTokens * 64, 0.0f);
    for (size_t row = 0; row < kTokens; ++row) q[row * 64] = 50'000.0f;
    const auto got = Run(GetParam(), {64, 1, 1, 0, kTokens}, kv.view(), q, 0);
    for (int64_t row = place; row < kTokens; ++row) {
      for (size_t i = 0; i < 64; ++i) {
        ASSERT_EQ(got[static_cast<size_t>(row) * 64 + i], kv.Value(0, place)[i])
            << "row " << row << ", key " << place;
      }
    }
  }
}

std::string KernelName(const testing::TestParamInfo<PrefillKernel>& info) {
  switch (info.param) {
    case PrefillKernel::kPlain:
      return "Plain";
    case PrefillKernel::kWarp:
      return "Warp";
    case PrefillKernel::kHopper:
      return "Hopper";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaPrefillKernelTest,
                         testing::Values(PrefillKernel::kPlain, PrefillKernel::kWarp,
                                         PrefillKernel::kHopper),
                         KernelName);

}  // namespace
}  // namespace retroinfer::cuda
