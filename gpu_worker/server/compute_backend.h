// The processor that a worker computes on. main.cc chooses it, once; nothing after it asks which it
// is.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/ops.h"
#include "gpu_worker/server/worker_options.h"

namespace retroinfer {

// `ops` refers to `device` and is destroyed first.
struct ComputeBackend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  DType kv_dtype = DType::kBf16;
  DType compute_dtype =
      DType::kBf16;  // of matrix products; f32 weights are multiplied in f32 anyway
};

// This machine's cores. Precision "auto" is bf16; KV pages follow the precision of the computation
// unless options.kv_dtype says otherwise.
//
// Returns: INVALID_ARGUMENT for a dtype other than "auto", "bf16" and "f32".
absl::StatusOr<ComputeBackend> CreateCpuBackend(const WorkerOptions& options);

}  // namespace retroinfer
