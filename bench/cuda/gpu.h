// What benchmarks of the CUDA backend's kernels share.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/log/check.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "tests/support/device_data.h"

namespace retroinfer::bench {

inline void Check(cudaError_t error) { RI_CHECK(error == cudaSuccess); }
inline void Check(const absl::Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  RI_CHECK(status.ok());
}

// A GPU, memory with random contents on it, and times of what a stream does.
class Gpu {
 public:
  Gpu() {
    auto device = CudaDevice::Create({.ordinal = 0, .memory_utilization = 0.5});
    RI_CHECK(device.ok());
    device_ = *std::move(device);
    auto stream = CudaStream::Create(StreamKind::kCompute);
    RI_CHECK(stream.ok());
    stream_ = *std::move(stream);
    Check(cudaEventCreate(&begin_));
    Check(cudaEventCreate(&end_));
  }
  ~Gpu() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }

  CudaDevice& device() { return *device_; }
  CudaStream& stream() { return *stream_; }
  DeviceBuffer Allocate(size_t bytes) {
    auto buffer = device_->Allocate(bytes, MemoryPurpose::kActivations);
    RI_CHECK(buffer.ok());
    return *std::move(buffer);
  }
  // bf16; repeats after a prime number of elements.
  DeviceBuffer Random(int64_t elements, uint64_t seed) {
    constexpr size_t kPeriod = 1'000'003;
    const auto values = test_support::RandomNormal(kPeriod, seed);
    const auto bytes = test_support::ToBytes(values, DType::kBf16);
    DeviceBuffer buffer = Allocate(static_cast<size_t>(elements) * 2);
    for (size_t at = 0; at < buffer.bytes().size(); at += bytes.size()) {
      const size_t size = std::min(bytes.size(), buffer.bytes().size() - at);
      Check(device_->Upload(*stream_, std::span(bytes).first(size),
                            buffer.bytes().subspan(at, size)));
    }
    Check(stream_->Synchronize());
    return buffer;
  }
  template <typename Body>
  double Seconds(const Body& body) {
    Check(cudaEventRecord(begin_, stream_->get()));
    body();
    Check(cudaEventRecord(end_, stream_->get()));
    Check(cudaEventSynchronize(end_));
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return double{milliseconds} / 1000;
  }

 private:
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<CudaStream> stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace retroinfer::bench
