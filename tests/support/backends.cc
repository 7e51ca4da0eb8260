#include "tests/support/backends.h"

#include <cstdlib>
#include <string_view>

#include "common/log/check.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/ops/backend/cpu/cpu_ops.h"
#include "hwy/highway.h"
#if RETROINFER_CUDA
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/ops/backend/cuda/cuda_ops.h"
#endif

namespace retroinfer::test_support {
namespace {

// RETROINFER_TEST_SIMD limits the vector instructions of this process, so that what runs on older
// processors is tested on newer ones: "avx2", or "baseline" for none beyond any x86-64.
void LimitVectorInstructions() {
  const char* simd = std::getenv("RETROINFER_TEST_SIMD");
  if (simd == nullptr) return;
  int64_t avx512 = HWY_AVX3 | HWY_AVX3_DL;
#if defined(HWY_AVX3_ZEN4)  // newer versions of Highway
  avx512 |= HWY_AVX3_ZEN4;
#endif
#if defined(HWY_AVX3_SPR)
  avx512 |= HWY_AVX3_SPR;
#endif
  const int64_t all = avx512 | HWY_AVX2 | HWY_SSE4 | HWY_SSSE3;
  const std::string_view name = simd;
  RI_CHECK(name == "avx2" || name == "baseline");
  hwy::DisableTargets(name == "avx2" ? avx512 : all);
}

void CreateStreams(Backend& backend) {
  auto stream = backend.device->CreateStream(StreamKind::kCompute);
  auto background = backend.device->CreateStream(StreamKind::kBackground);
  RI_CHECK(stream.ok() && background.ok());
  backend.stream = *std::move(stream);
  backend.background = *std::move(background);
}

std::unique_ptr<Backend> CreateCpu(ComputePrecision precision) {
  auto backend = std::make_unique<Backend>();
  auto device = std::make_unique<CpuDevice>(CpuDeviceOptions{.num_threads = 2});
  backend->ops = std::make_unique<CpuOps>(*device, precision);
  backend->device = std::move(device);
  CreateStreams(*backend);
  return backend;
}

#if RETROINFER_CUDA
bool HasGpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// Suites make a backend for each test: a small share of the memory each.
std::unique_ptr<Backend> CreateCuda() {
  auto backend = std::make_unique<Backend>();
  auto device = CudaDevice::Create({.ordinal = 0, .memory_utilization = 0.2});
  RI_CHECK(device.ok());
  auto ops = CudaOps::Create(**device);
  RI_CHECK(ops.ok());
  backend->device = *std::move(device);
  backend->ops = *std::move(ops);
  CreateStreams(*backend);
  return backend;
}
#endif

}  // namespace

std::vector<BackendParam> AvailableBackends() {
  LimitVectorInstructions();
  std::vector<BackendParam> backends = {
      {"CpuF32", [] { return CreateCpu(ComputePrecision::kF32); }, 1e-5},
      {"CpuBf16", [] { return CreateCpu(ComputePrecision::kBf16); }, 1.0 / 128},
  };
#if RETROINFER_CUDA
  if (HasGpu()) backends.push_back({"Cuda", CreateCuda, 1.0 / 128});
#endif
  return backends;
}

}  // namespace retroinfer::test_support
