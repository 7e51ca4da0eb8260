#include <gtest/gtest.h>

#include "gpu_worker/ops/attention/cpu/tile_gemm.h"
#include "gpu_worker/ops/cpu/cpu_features.h"
#include "tests/gpu_worker/ops/attention/cpu/tile_gemm_check.h"

namespace retroinfer::cpu {
namespace {

TEST(TileGemmBf16Test, Avx512FollowsDoubles) {
  if (!HasAvx512Bf16()) GTEST_SKIP() << "this processor has no AVX-512 BF16";
  CheckTileGemm(Avx512Bf16TileGemm(), 1e-6);
}

TEST(TileGemmBf16Test, AmxFollowsDoubles) {
  if (!HasAmxBf16()) GTEST_SKIP() << "this processor has no AMX";
  CheckTileGemm(AmxBf16TileGemm(), 1e-6);
}

}  // namespace
}  // namespace retroinfer::cpu
