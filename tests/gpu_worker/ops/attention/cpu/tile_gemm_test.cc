#include "gpu_worker/ops/attention/cpu/tile_gemm.h"

#include <gtest/gtest.h>

#include "gpu_worker/ops/cpu/cpu_features.h"
#include "tests/gpu_worker/ops/attention/cpu/tile_gemm_check.h"

namespace retroinfer::cpu {
namespace {

TEST(TileGemmTest, F32FollowsDoubles) { CheckTileGemm(F32TileGemm(), 1e-6); }

TEST(TileGemmTest, ChoosesByTypeAndProcessor) {
  EXPECT_EQ(&ChooseTileGemm(DType::kF32), &F32TileGemm());
  if (HasAvx512Bf16()) {
    EXPECT_EQ(ChooseTileGemm(DType::kBf16).dtype, DType::kBf16);
    EXPECT_EQ(&ChooseTileGemm(DType::kBf16) == &AmxBf16TileGemm(), HasAmxBf16());
  }
}

}  // namespace
}  // namespace retroinfer::cpu
