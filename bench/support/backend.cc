#include "bench/support/backend.h"

#include <utility>

#include "bench/support/must.h"

#if RETROINFER_CUDA
#include "bench/cuda/drawn_choices.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/ops/backend/cuda/cuda_ops.h"
#endif

namespace retroinfer::bench {

test_support::Backend CreateBackend(const std::string& name,
                                    [[maybe_unused]] double memory_utilization,
                                    [[maybe_unused]] int ordinal) {
  for (const test_support::BackendParam& param : test_support::AvailableBackends()) {
    // Suites make small CUDA backends; this one takes the GPU.
    if (name == "cpu" && param.name == "CpuBf16") return std::move(*param.create());
  }
#if RETROINFER_CUDA
  if (name == "cuda") {
    test_support::Backend backend;
    auto device =
        Must(CudaDevice::Create({.ordinal = ordinal, .memory_utilization = memory_utilization}));
    backend.ops = Must(CudaOps::Create(*device));
    backend.device = std::move(device);
    backend.stream = Must(backend.device->CreateStream(StreamKind::kCompute));
    backend.background = Must(backend.device->CreateStream(StreamKind::kBackground));
    return backend;
  }
#endif
  Fail("no backend " + name + " here");
}

const BlockTotals* DrawChoices([[maybe_unused]] test_support::Backend& backend,
                               [[maybe_unused]] double density) {
#if RETROINFER_CUDA
  if (backend.device->info().backend == "cuda") {
    auto ops = std::make_unique<OpsWithDrawnChoices>(static_cast<CudaDevice&>(*backend.device),
                                                     std::move(backend.ops), density);
    const BlockTotals* const totals = &ops->attention().totals();
    backend.ops = std::move(ops);
    return totals;
  }
#endif
  Fail("blocks are drawn with --backend cuda alone");
}

}  // namespace retroinfer::bench
