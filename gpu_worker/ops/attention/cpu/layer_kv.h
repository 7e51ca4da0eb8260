#pragma once

#include "absl/status/status.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/ops/attention/layer_kv.h"

namespace retroinfer::cpu {

absl::Status StoreLayerKv(CpuStream& stream, const StoreLayerKvArgs& args);
absl::Status FillDense(CpuStream& stream, const FillDenseArgs& args);
absl::Status ReadDense(CpuStream& stream, const ReadDenseArgs& args);
absl::Status AppendDense(CpuStream& stream, const AppendDenseArgs& args);

}  // namespace retroinfer::cpu
