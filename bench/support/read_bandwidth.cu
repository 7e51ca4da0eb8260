#include <cstdint>

#include "bench/support/read_bandwidth.h"

namespace retroinfer::bench {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocks = 132 * 4;

__global__ void __launch_bounds__(kThreads) Read(const uint4* data, size_t count, float* sink) {
  constexpr size_t kAtOnce = 8;
  const size_t step = size_t{gridDim.x} * kThreads;
  uint32_t sum = 0;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += kAtOnce * step) {
    uint4 words[kAtOnce];
#pragma unroll
    for (size_t j = 0; j < kAtOnce; ++j) {
      words[j] = i + j * step < count ? __ldcs(data + i + j * step) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (size_t j = 0; j < kAtOnce; ++j) sum += words[j].x ^ words[j].y ^ words[j].z ^ words[j].w;
  }
  if (sum == 0x9e3779b9u) *sink = 1;  // hardly ever
}

}  // namespace

void LaunchRead(const std::byte* data, size_t bytes, float* sink, CudaStream& stream) {
  Read<<<kBlocks, kThreads, 0, stream.get()>>>(reinterpret_cast<const uint4*>(data),
                                               bytes / sizeof(uint4), sink);
}

}  // namespace retroinfer::bench
