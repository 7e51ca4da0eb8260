#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/attention/layer_kv.h"

namespace retroinfer::cuda {

absl::Status StoreLayerKv(CudaStream& stream, const StoreLayerKvArgs& args);
absl::Status FillDense(CudaStream& stream, const FillDenseArgs& args);
absl::Status ReadDense(CudaStream& stream, const ReadDenseArgs& args);
absl::Status AppendDense(CudaStream& stream, const AppendDenseArgs& args);

}  // namespace retroinfer::cuda
