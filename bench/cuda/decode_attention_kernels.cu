#include <cuda_bf16.h>

#include "bench/cuda/decode_attention_kernels.h"

namespace retroinfer::bench {
namespace {

constexpr int kThreads = 512;
constexpr int kHeadDim = 128;

__device__ uint32_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>(value ^ (value >> 31));
}

__global__ void FillKernel(uint4* data, size_t count, uint64_t seed) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    uint32_t words[4];
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t bits = Mix(seed + 4 * i + j);
      const float low = static_cast<float>(bits & 0xffff) / 32768.0f - 1.0f;
      const float high = static_cast<float>(bits >> 16) / 32768.0f - 1.0f;
      const __nv_bfloat162 pair = __floats2bfloat162_rn(1.7f * low, 1.7f * high);
      words[j] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    data[i] = {words[0], words[1], words[2], words[3]};
  }
}

__global__ void __launch_bounds__(kThreads)
    ReadKernel(const uint4* data, size_t count, uint32_t* sink) {
  constexpr int kAhead = 8;
  const size_t step = size_t{gridDim.x} * kThreads;
  uint32_t sum = 0;
  size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kAhead - 1) * step < count; i += kAhead * step) {
    uint4 words[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) words[j] = __ldcs(data + i + j * step);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) sum += words[j].x ^ words[j].y ^ words[j].z ^ words[j].w;
  }
  for (; i < count; i += step) sum += data[i].x;
  if (sum == 0x12345678) *sink = sum;
}

__device__ float Element(const std::byte* vector, int i) {
  return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(vector)[i]);
}

__global__ void ScoreKernel(const ReferenceArgs args) {
  const auto head = static_cast<int32_t>(blockIdx.y);
  const std::byte* query = args.queries + size_t(head) * kHeadDim * 2;
  const std::byte* const* tokens = args.tokens + int64_t{head / args.group} * args.num_tokens;
  const auto step = static_cast<int32_t>(gridDim.x * blockDim.x);
  for (auto t = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x); t < args.num_tokens;
       t += step) {
    const bool is_there = tokens[t] != nullptr;
    float score = 0;
    for (int i = 0; i < kHeadDim && is_there; ++i)
      score += Element(query, i) * Element(tokens[t], i);
    args.scores[int64_t{head} * args.num_tokens + t] = is_there ? expf(score * args.scale) : 0.0f;
  }
}

// A block for each query head, a thread for each dimension; scores are small enough to need no
// maximum.
__global__ void ValueKernel(const ReferenceArgs args) {
  const auto head = static_cast<int32_t>(blockIdx.x), i = static_cast<int32_t>(threadIdx.x);
  const std::byte* const* tokens = args.tokens + int64_t{head / args.group} * args.num_tokens;
  const float* weights = args.scores + int64_t{head} * args.num_tokens;
  double sum = 0, acc = 0;
#pragma unroll 8
  for (int32_t t = 0; t < args.num_tokens; ++t) {
    if (tokens[t] == nullptr) continue;
    sum += weights[t];
    acc += double{weights[t]} * Element(tokens[t] + args.value_offset, i);
  }
  args.out[head * kHeadDim + i] = static_cast<float>(acc / sum);
}

}  // namespace

void FillBf16(std::byte* data, size_t bytes, uint32_t seed, cudaStream_t stream) {
  FillKernel<<<2048, kThreads, 0, stream>>>(reinterpret_cast<uint4*>(data), bytes / 16,
                                            uint64_t{seed} << 40);
}

void ReadAll(const std::byte* data, size_t bytes, uint32_t* sink, cudaStream_t stream) {
  ReadKernel<<<132 * 4, kThreads, 0, stream>>>(reinterpret_cast<const uint4*>(data), bytes / 16,
                                               sink);
}

void Reference(const ReferenceArgs& args, cudaStream_t stream) {
  const auto heads = static_cast<unsigned>(args.kv_heads * args.group);
  ScoreKernel<<<dim3(64, heads), 256, 0, stream>>>(args);
  ValueKernel<<<heads, kHeadDim, 0, stream>>>(args);
}

}  // namespace retroinfer::bench
