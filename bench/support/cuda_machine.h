// A GPU for benchmarks of operations, and how their launches are timed.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "bench/cuda/decode_attention_kernels.h"
#include "bench/support/measure.h"
#include "bench/support/must.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/ops/backend/cuda/cuda_ops.h"

namespace retroinfer::bench {

inline void Must(cudaError_t code) {
  if (code != cudaSuccess) Fail(cudaGetErrorString(code));
}

class Machine {
 public:
  Machine()
      : device_(Must(CudaDevice::Create({.ordinal = 0, .memory_utilization = 0.5}))),
        ops_(Must(CudaOps::Create(*device_))),
        stream_owner_(Must(device_->CreateStream(StreamKind::kCompute))) {}

  CudaOps& ops() { return *ops_; }
  Stream& stream() { return *stream_owner_; }
  cudaStream_t cuda_stream() { return static_cast<CudaStream&>(*stream_owner_).get(); }
  bool multiplies_fp8() const { return device_->compute_capability() == 90; }
  DeviceBuffer Allocate(size_t bytes) {
    return Must(device_->Allocate(bytes, MemoryPurpose::kActivations));
  }
  DeviceBuffer Random(size_t bytes) {
    DeviceBuffer buffer = Allocate(bytes);
    FillBf16(buffer.bytes().device_data(), bytes, 1, cuda_stream());
    return buffer;
  }
  template <typename T>
  DeviceBuffer Upload(const std::vector<T>& host) {
    DeviceBuffer buffer = Allocate(host.size() * sizeof(T));
    Must(cudaMemcpy(buffer.bytes().device_data(), host.data(), host.size() * sizeof(T),
                    cudaMemcpyHostToDevice));
    return buffer;
  }

  // Microseconds of one of the `count` launches that `enqueue` makes.
  double Microseconds(size_t count, const std::function<void()>& enqueue) {
    enqueue();  // Whatever is chosen at the first use is chosen here.
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaEvent_t begin, end;
    Must(cudaStreamBeginCapture(cuda_stream(), cudaStreamCaptureModeThreadLocal));
    enqueue();
    Must(cudaStreamEndCapture(cuda_stream(), &graph));
    Must(cudaGraphInstantiate(&executable, graph, 0));
    Must(cudaEventCreate(&begin));
    Must(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < (IsSmoke() ? 3 : 11); ++i) {
      Must(cudaEventRecord(begin, cuda_stream()));
      Must(cudaGraphLaunch(executable, cuda_stream()));
      Must(cudaEventRecord(end, cuda_stream()));
      Must(cudaEventSynchronize(end));
      float milliseconds = 0;
      Must(cudaEventElapsedTime(&milliseconds, begin, end));
      times.push_back(milliseconds);
    }
    std::sort(times.begin(), times.end());
    Must(cudaEventDestroy(begin));
    Must(cudaEventDestroy(end));
    Must(cudaGraphExecDestroy(executable));
    Must(cudaGraphDestroy(graph));
    return 1000.0 * times[times.size() / 2] / static_cast<double>(count);
  }

  // What a plain read of memory reaches.
  double ReadGigabytesASecond() {
    const DeviceBuffer all = Random(size_t{4} << 30);
    const DeviceBuffer sink = Allocate(256);
    const double us = Microseconds(1, [&] {
      ReadAll(all.bytes().device_data(), all.size_bytes(), sink.as<uint32_t>().device_data(),
              cuda_stream());
    });
    return static_cast<double>(all.size_bytes()) / us / 1e3;
  }

 private:
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<CudaOps> ops_;
  std::unique_ptr<Stream> stream_owner_;
};

}  // namespace retroinfer::bench
