#include "gpu_worker/ops/attention/cpu/attend_chunk.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/device_data.h"

namespace retroinfer::cpu {
namespace {

using namespace test_support;

TEST(AttendChunkTest, AttendsScatteredTokensInAnyNumberOfChunks) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const uint32_t dim : kHeadDims) {
      for (int32_t group = 1; group <= kMaxGroup; ++group) {
        constexpr size_t kTokens = 3 * kChunkTokens + 5;
        const auto keys = RandomNormal(kTokens * dim, 1), values = RandomNormal(kTokens * dim, 2);
        const auto key_bytes = ToBytes(keys, dtype), value_bytes = ToBytes(values, dtype);
        const auto k = FromBytes(key_bytes, dtype), v = FromBytes(value_bytes, dtype);
        const auto q = RandomNormal(static_cast<size_t>(group) * dim, 3);
        constexpr float kScale = 0.2f;
        AttentionState state;
        BeginAttention(dtype, dim, group, q.data(), kScale, state);
        AttentionChunk none;
        const size_t row_bytes = dim * DTypeBytes(dtype);
        for (size_t next = 0; next < kTokens;) {
          AttentionChunk chunk;
          const size_t count = std::min<size_t>(kTokens - next, 1 + next % kChunkTokens);
          for (size_t i = 0; i < count; ++i, ++next) {
            const size_t token = next * 37 % kTokens;
            const auto place = static_cast<size_t>(chunk.num_tokens++);
            chunk.keys[place] = key_bytes.data() + token * row_bytes;
            chunk.values[place] = value_bytes.data() + token * row_bytes;
          }
          AttendChunk(chunk, none, state);
          AttendChunk(none, chunk, state);
        }
        for (int32_t g = 0; g < group; ++g) {
          std::vector<double> want(dim);
          double sum = 0;
          const auto row = static_cast<size_t>(g);
          for (size_t t = 0; t < kTokens; ++t) {
            double score = 0;
            for (size_t i = 0; i < dim; ++i) score += double{q[row * dim + i]} * k[t * dim + i];
            const double weight = std::exp(kScale * score - double{state.max[row]});
            ASSERT_LE(weight, 1 + 1e-5);
            sum += weight;
            for (size_t i = 0; i < dim; ++i) want[i] += weight * v[t * dim + i];
          }
          std::vector<float> acc(dim);
          ReadAccumulator(state, g, acc.data());
          EXPECT_LE(RelativeError(acc, want), 1e-5);
          EXPECT_NEAR(state.sum[row], sum, 1e-5 * sum);
        }
      }
    }
  }
}

}  // namespace
}  // namespace retroinfer::cpu
