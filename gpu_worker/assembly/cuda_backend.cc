#include <string>
#include <utility>

#include "common/status/status_macros.h"
#include "gpu_worker/assembly/compute_backend.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/gpu_names.h"
#include "gpu_worker/engine/memory_plan.h"
#include "gpu_worker/ops/backend/cuda/cuda_needs.h"
#include "gpu_worker/ops/backend/cuda/cuda_ops.h"
#include "spdlog/spdlog.h"

namespace retroinfer {

bool HasCuda() { return true; }

std::vector<std::string> CudaGpuNames() { return cuda::GpuNames(); }

absl::StatusOr<ComputeBackend> CreateCudaBackend(const ServedEngineOptions& options, int ordinal,
                                                 RankMemory* ranks) {
  ComputeBackend backend;
  ASSIGN_OR_RETURN(backend.compute_dtype,
                   ParseDType(options.compute_dtype, "--compute-dtype", DType::kBf16));
  if (backend.compute_dtype != DType::kBf16) {
    return absl::InvalidArgumentError(
        "--compute-dtype f32 is for --device cpu; a GPU computes in bf16");
  }
  ASSIGN_OR_RETURN(backend.kv_format, ParseKvFormat(options, DType::kBf16, kCudaNeeds));
  ASSIGN_OR_RETURN(auto device,
                   CudaDevice::Create(
                       {.ordinal = ordinal, .memory_utilization = options.gpu_memory_utilization}));
  ASSIGN_OR_RETURN(auto ops, CudaOps::Create(*device, ranks));
  if (!ops->peer_access().ok() && ranks->parallel().rank == 0) {
    spdlog::warn("{}; ranks meet in the host's memory: each sum goes over PCIe",
                 std::string(ops->peer_access().message()));
  }
  backend.ops = std::move(ops);
  backend.memory_bytes = PlannableGpuBytes(device->info().memory_bytes);
  backend.needs = kCudaNeeds;
  backend.owns_memory = true;
  backend.weight_source = WeightSource::kReading;
  backend.device = std::move(device);
  return backend;
}

}  // namespace retroinfer
