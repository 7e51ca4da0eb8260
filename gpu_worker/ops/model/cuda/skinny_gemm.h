// out = in * weight^T (+ bias) (+ out) for few rows, at the speed at which the weight can be read;
// and for shapes and alignments that cuBLASLt does not take, at any speed.
//
// Batch-invariant: the order in which the products of an element are added depends on in_features
// and the form of the weight alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/model/silu_mul.h"

namespace retroinfer::cuda {

// Columns of a prepared weight are a multiple of this, of one in 8 bits of the second; those added
// are zero.
inline constexpr int64_t kWeightColumnAlignment = 8;
inline constexpr int64_t kFp8ColumnAlignment = 16;

struct SkinnyGemmLaunch {
  const void* weight = nullptr;  // [out_features][padded_in] bf16; with scales as fp8_weight.h says
  int64_t out_features = 0;
  int64_t in_features = 0;
  int64_t padded_in = 0;  // in_features rounded up to the alignment
  // Of a weight in 8 bits: feature f has those from (f >> scale_shift) * scale_cols on, one for
  // every WeightScales::kBlock columns, or one for all if scale_cols is 1.
  const float* scales = nullptr;
  int64_t scale_cols = 0;
  int scale_shift = 0;
  const float* bias = nullptr;  // [out_features] or null
  const void* in = nullptr;     // [rows] rows of in_features bf16
  int64_t in_stride = 0;        // elements
  int64_t rows = 0;
  std::byte* out = nullptr;  // [rows] rows of out_features, f32 or bf16
  int64_t out_stride = 0;    // elements
  bool out_is_f32 = false;
  bool accumulate = false;
  // out = activation(first half of the features, second half), out_features / 2 columns. Needs rows
  // of `in` aligned to 16 bytes, and neither bias nor accumulate.
  bool gated = false;
  GatedActivation activation = GatedActivation::kSilu;
};

// Allows the kernels the shared memory that they need. Once, before the first launch.
cudaError_t PrepareSkinnyGemm();

// REQUIRES: rows, out_features and in_features above zero.
cudaError_t LaunchSkinnyGemm(const SkinnyGemmLaunch& launch, cudaStream_t stream);

// What the two above call for weights in 8 bits. `aligned`: rows of `in` can be read 16 bytes at a
// time.
cudaError_t PrepareSkinnyGemmFp8();
cudaError_t LaunchSkinnyGemmFp8(const SkinnyGemmLaunch& launch, bool aligned, cudaStream_t stream);

}  // namespace retroinfer::cuda
