#include "gpu_worker/device/cuda/cuda_status.h"

#include <spdlog/spdlog.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

namespace retroinfer {
namespace {

// Whether the context is unusable from now on (CUDA runtime API, "cudaError_t").
bool IsSticky(cudaError_t code) {
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorDevicesUnavailable:
    case cudaErrorAssert:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t code, std::string_view what) {
  if (code == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(std::string(what), ": ", cudaGetErrorName(code), ", ", cudaGetErrorString(code));
  if (IsSticky(code)) {
    spdlog::critical("the GPU cannot be used any more, the process ends: {}", message);
    spdlog::shutdown();
    std::_Exit(EXIT_FAILURE);
  }
  (void)cudaGetLastError();  // the error has been told; later calls shall not report it again
  switch (code) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(message);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorSystemDriverMismatch:
      return absl::FailedPreconditionError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace retroinfer
