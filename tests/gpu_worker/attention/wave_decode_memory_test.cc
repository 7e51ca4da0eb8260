// What a step takes, by what a plan is told; that it is what is allocated is for
// tests/gpu_worker/assembly/memory_of_components_test.cc.
#include <gtest/gtest.h>

#include "gpu_worker/attention/wave_decode.h"
#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "gpu_worker/ops/backend/cuda/cuda_needs.h"

namespace retroinfer {
namespace {

// Of the 8B shape.
size_t BytesOf(const KvFormat& format, int32_t rows, int64_t tokens, const BackendNeeds& backend) {
  const KvGeometry geometry = {32, 8, 128, format};
  return WaveDecode::MemoryOf(geometry,
                              {.num_query_heads = 32,
                               .max_batch = rows,
                               .max_tokens = tokens,
                               .radius_weight = 0.25},
                              backend)
      .total();
}

TEST(WaveDecodeMemoryTest, EachRowTakesMemoryInProportionToTheContext) {
  for (const BackendNeeds* backend : {&kCpuNeeds, &kCudaNeeds}) {
    const auto of_row = [&](int64_t tokens) {
      const size_t more =
          BytesOf(kInt8Kv, 40, tokens, *backend) - BytesOf(kInt8Kv, 32, tokens, *backend);
      return static_cast<double>(more) / 8 / (1 << 20);
    };
    const double fixed = 2 * of_row(1 << 17) - of_row(1 << 18);
    EXPECT_NEAR(of_row(1 << 20), 8 * of_row(1 << 17) - 7 * fixed, 0.1);
    EXPECT_LE(of_row(1 << 17), 16) << "MiB; 64 rows are 1 GiB at most";
    EXPECT_LE(of_row(1 << 20), 96) << "MiB";
  }
}

TEST(WaveDecodeMemoryTest, PagesThatCodesChooseHaveListsOfTheirOwn) {
  EXPECT_GT(BytesOf(kInt8CodedKv, 8, 1 << 17, kCpuNeeds), BytesOf(kInt8Kv, 8, 1 << 17, kCpuNeeds));
}

}  // namespace
}  // namespace retroinfer
