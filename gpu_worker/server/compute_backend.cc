#include "gpu_worker/server/compute_backend.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/ops/cpu/cpu_ops.h"

namespace retroinfer {
namespace {

absl::StatusOr<DType> ParseDType(const std::string& name, const char* option, DType otherwise) {
  if (name == "auto") return otherwise;
  if (name == "bf16") return DType::kBf16;
  if (name == "f32") return DType::kF32;
  return absl::InvalidArgumentError(
      absl::StrCat(option, " is '", name, "': use auto, bf16 or f32"));
}

}  // namespace

absl::StatusOr<ComputeBackend> CreateCpuBackend(const WorkerOptions& options) {
  ComputeBackend backend;
  ASSIGN_OR_RETURN(backend.compute_dtype,
                   ParseDType(options.compute_dtype, "--compute-dtype", DType::kBf16));
  ASSIGN_OR_RETURN(backend.kv_dtype,
                   ParseDType(options.kv_dtype, "--kv-dtype", backend.compute_dtype));
  auto device = std::make_unique<CpuDevice>(CpuDeviceOptions{.num_threads = options.num_threads});
  backend.ops = std::make_unique<CpuOps>(*device, backend.compute_dtype == DType::kBf16
                                                      ? ComputePrecision::kBf16
                                                      : ComputePrecision::kF32);
  backend.device = std::move(device);
  return backend;
}

}  // namespace retroinfer
