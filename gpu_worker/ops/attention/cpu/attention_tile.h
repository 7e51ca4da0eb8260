// The steps of prefill attention between its matrix products. A tile is 32 queries of one head; all
// of its matrices have the queries as columns, so that the softmax of each query runs down a lane
// of the vector registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/kv/dtype.h"
#include "gpu_worker/ops/attention/cpu/tile_gemm.h"

namespace retroinfer::cpu {

inline constexpr int64_t kKeyBlock = 128;  // keys between two updates of the running softmax
inline constexpr int64_t kMaxTileHeadDim = 256;

// out = transposed queries, times `factor`, as the operand b of a TileGemm of `dtype`: [head_dim,
// 32]. Columns from `rows` on are zero.
void PackQueries(const float* queries, int64_t row_stride, int64_t rows, int64_t head_dim,
                 float factor, DType dtype, std::byte* out);

// out [head_dim][kKeyBlock] of `out_dtype` = transposed values [keys][head_dim] of `in_dtype`. Keys
// from `keys` up to `padded_keys` are zero.
//
// REQUIRES: out_dtype is in_dtype or f32; padded_keys is a multiple of 32.
void TransposeValues(const std::byte* values, DType in_dtype, int64_t keys, int64_t padded_keys,
                     int64_t head_dim, DType out_dtype, std::byte* out);

// The running softmax of a tile, base 2.
struct alignas(64) TileSoftmax {
  float max[kTileCols];
  float sum[kTileCols];
};
void ResetSoftmax(TileSoftmax& softmax);

// Scores [keys, 32] of keys [first, ends[c]) become -inf for column c: it does not see them.
void HideKeys(int64_t first, std::span<const int64_t, kTileCols> ends, float* scores);

// Turns scores [keys, 32] (binary logarithms of weights) into weights relative to the new running
// maximum, written as the operand b of a TileGemm of `dtype`, [keys, 32]; brings acc [head_dim, 32]
// to the new maximum. Column c sees only keys up to `last_key + c`; the scores of others become
// -inf.
//
// A column that has seen no key so far, and sees none here, stays as it was.
//
// REQUIRES: keys is a multiple of 32.
void UpdateTile(float* scores, int64_t keys, int64_t last_key, int64_t head_dim, DType dtype,
                TileSoftmax& softmax, float* acc, std::byte* weights);

// out row c = acc column c / sum, for the first `rows` columns. `sink` is the binary logarithm of a
// weight that the sum gets as well; -inf: none.
void FinishTile(const float* acc, const TileSoftmax& softmax, float sink, int64_t rows,
                int64_t head_dim, float* out, int64_t out_stride);

}  // namespace retroinfer::cpu
