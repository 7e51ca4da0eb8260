// Of programs that are built without CUDA.
#include "gpu_worker/assembly/compute_backend.h"

namespace retroinfer {

bool HasCuda() { return false; }

std::vector<std::string> CudaGpuNames() { return {}; }

absl::StatusOr<ComputeBackend> CreateCudaBackend(const ServedEngineOptions& /*options*/,
                                                 int /*ordinal*/, RankMemory* /*ranks*/) {
  return absl::FailedPreconditionError(
      "this program was built without CUDA; use --device cpu, or build it where the CUDA toolkit "
      "is installed");
}

}  // namespace retroinfer
