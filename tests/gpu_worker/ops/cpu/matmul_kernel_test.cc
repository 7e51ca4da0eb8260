#include "gpu_worker/ops/cpu/matmul_kernel.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <thread>
#include <vector>

#include "gpu_worker/ops/cpu/cpu_features.h"
#include "tests/support/device_data.h"

namespace retroinfer::cpu {
namespace {

using namespace test_support;

struct alignas(64) Line {
  std::byte bytes[64];
};

class MatmulKernelTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (GetParam() == DType::kBf16 && !HasAvx512Bf16()) {
      GTEST_SKIP() << "this processor has no bf16 products";
    }
  }
};

TEST_P(MatmulKernelTest, MultipliesPackedWeightsOnAnyThread) {
  constexpr int64_t kRows = 16, kN = 48, kK = 80, kStride = 90;
  const auto kernel = *MatmulKernel::Get(kRows, kN, kK, GetParam());
  EXPECT_EQ(*MatmulKernel::Get(kRows, kN, kK, GetParam()), kernel) << "made once";
  const auto w = RandomNormal(kN * kStride, 1), x = RandomNormal(kRows * kK, 2);
  std::vector<Line> packed((kernel->packed_bytes() + 63) / 64);
  const auto weights = kernel->Pack(DType::kF32, reinterpret_cast<const std::byte*>(w.data()),
                                    kStride, packed[0].bytes);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto in = ToBytes(x, GetParam());
  const auto x_rounded = FromBytes(in, GetParam());
  const auto w_rounded = FromBytes(ToBytes(w, GetParam()), GetParam());
  std::vector<double> want;
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t n = 0; n < kN; ++n) {
      double& sum = want.emplace_back();
      for (int64_t k = 0; k < kK; ++k) {
        sum += double{x_rounded[static_cast<size_t>(r * kK + k)]} *
               w_rounded[static_cast<size_t>(n * kStride + k)];
      }
    }
  }
  const auto check = [&] {
    const float* got = kernel->Run(in.data(), *weights);
    EXPECT_LE(RelativeError({got, want.size()}, want), 1e-5);
  };
  check();
  std::thread(check).join();
}

TEST_P(MatmulKernelTest, KernelsOfOtherRowsTakeTheSameWeights) {
  const auto large = *MatmulKernel::Get(64, 32, 64, GetParam());
  const auto small = MatmulKernel::GetLike(large, 16);
  ASSERT_NE(small, nullptr);
  EXPECT_EQ(small->packed_bytes(), large->packed_bytes());
  const auto w = RandomNormal(32 * 64, 1), x = RandomNormal(64 * 64, 2);
  std::vector<Line> packed((large->packed_bytes() + 63) / 64);
  const auto weights =
      *large->Pack(DType::kF32, reinterpret_cast<const std::byte*>(w.data()), 64, packed[0].bytes);
  const auto in = ToBytes(x, GetParam());
  const float* all = large->Run(in.data(), weights);
  const std::vector<double> want(all, all + small->rows() * 32);
  EXPECT_LE(RelativeError({small->Run(in.data(), weights), want.size()}, want), 1e-5);
}

TEST_P(MatmulKernelTest, LeavesTheCallersThreadsAlone) {
  omp_set_num_threads(3);
  const auto kernel = *MatmulKernel::Get(16, 16, 32, GetParam());
  std::vector<Line> packed((kernel->packed_bytes() + 63) / 64), in(16 * 32 * 4 / 64);
  const std::vector<float> w(16 * 32);
  const auto weights =
      *kernel->Pack(DType::kF32, reinterpret_cast<const std::byte*>(w.data()), 32, packed[0].bytes);
  kernel->Run(in[0].bytes, weights);
  EXPECT_EQ(omp_get_max_threads(), 3);
}

INSTANTIATE_TEST_SUITE_P(Types, MatmulKernelTest, testing::Values(DType::kF32, DType::kBf16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace retroinfer::cpu
