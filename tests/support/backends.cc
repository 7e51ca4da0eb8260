#include "tests/support/backends.h"

#include "common/log/check.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/ops/cpu/cpu_ops.h"

namespace retroinfer::test_support {
namespace {

std::unique_ptr<Backend> CreateCpu(ComputePrecision precision) {
  auto backend = std::make_unique<Backend>();
  auto device = std::make_unique<CpuDevice>(CpuDeviceOptions{.num_threads = 2});
  backend->ops = std::make_unique<CpuOps>(*device, precision);
  backend->device = std::move(device);
  auto stream = backend->device->CreateStream(StreamKind::kCompute);
  auto background = backend->device->CreateStream(StreamKind::kBackground);
  RI_CHECK(stream.ok() && background.ok());
  backend->stream = *std::move(stream);
  backend->background = *std::move(background);
  return backend;
}

}  // namespace

std::vector<BackendParam> AvailableBackends() {
  return {
      {"CpuF32", [] { return CreateCpu(ComputePrecision::kF32); }, 1e-5},
      {"CpuBf16", [] { return CreateCpu(ComputePrecision::kBf16); }, 1.0 / 128},
  };
}

}  // namespace retroinfer::test_support
