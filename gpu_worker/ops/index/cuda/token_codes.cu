// A warp codes 32 tokens that follow each other in page order, one after the other: each lane has a
// few channels of the residual. Factors are kept by the lanes, token by token, and written
// together. Bound by the bus, where the extent lies: d / 4 + 4 bytes a token, next to the pages' 4
// d.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/arg_check.h"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/index/cuda/segment_place.cuh"
#include "gpu_worker/ops/index/cuda/token_codes.h"
#include "gpu_worker/ops/index/cuda/turned_vector.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 16;
constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr float kLargestHalf = 65504.0f;

struct Job {
  const __nv_bfloat16* keys;  // [heads, capacity, d]
  int64_t capacity;
  int64_t first_token;
  int32_t num_heads;
  int32_t num_tokens;
  int32_t num_clusters;
  MemberOrder order;
  std::byte* extent;
  LayerOffsets offsets;
  MetaLayer meta;
};

__device__ float WarpSum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

// The last cluster that does not begin behind token `at` in page order: empty ones come before it.
__device__ int32_t ClusterOfToken(const uint32_t* first, int32_t num_clusters, uint32_t at) {
  int32_t low = 0, high = num_clusters;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (first[middle] <= at ? low : high) = middle;
  }
  return low;
}

// The residual of a key to its cluster's stored centroid: this lane's channels.
template <int kDim>
__device__ void ReadResidual(const Job& job, int32_t head, int32_t token, int32_t cluster,
                             float (&channels)[kDim / 32]) {
  constexpr int kPerLane = kDim / 32;
  constexpr auto kPerBlock = static_cast<int32_t>(kClustersPerMetaBlock);
  const int first = static_cast<int>(threadIdx.x % 32) * kPerLane;
  const __nv_bfloat16* const key =
      job.keys + (head * job.capacity + job.first_token + token) * kDim + first;
  const std::byte* const run = job.meta.Run(head, cluster / kPerBlock);
  const auto* const centroid =
      reinterpret_cast<const int8_t*>(run) + cluster % kPerBlock * kDim + first;
  const float scale =
      __half2float(reinterpret_cast<const __half*>(run + kPerBlock * kDim)[cluster % kPerBlock]);
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    // Not fused: the centroid counts as it is read.
    channels[j] =
        __fsub_rn(__bfloat162float(key[j]), __fmul_rn(static_cast<float>(centroid[j]), scale));
  }
}

// Codes a residual: the bits of this lane's channels, from bit 0 on, and the factors.
template <int kDim>
__device__ uint32_t CodeResidual(float (&channels)[kDim / 32], TokenCodeFactors& factors) {
  constexpr int kPerLane = kDim / 32;
  TurnedVector<kDim>::Turn(channels);
  const float turn_scale = rsqrtf(static_cast<float>(kDim));
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    channels[j] *= turn_scale;
    squares += channels[j] * channels[j];
  }
  squares = WarpSum(squares);
  factors = {0, 0};
  if (!(squares > 0) || squares > 3.402823e38f) return 0;
  const float edge = kLevelEdge * sqrtf(squares / static_cast<float>(kDim));
  uint32_t bits = 0;
  float levels[kPerLane], inner = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const uint32_t code = CodeOfLevel(fabsf(channels[j]) > edge, channels[j] < 0);
    bits |= code << (2 * j);
    levels[j] = static_cast<float>(CodeLevel(code));
    inner += levels[j] * channels[j];
  }
  const __half scale = __float2half_rn(fminf(squares / WarpSum(inner), kLargestHalf));
  float error = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const float difference = channels[j] - __half2float(scale) * levels[j];
    error += difference * difference;
  }
  factors = {__half_as_ushort(scale),
             __half_as_ushort(__float2half_rn(fminf(sqrtf(WarpSum(error)), kLargestHalf)))};
  return bits;
}

// Writes this lane's bits of the code at `to`.
template <int kDim>
__device__ void StoreBits(uint32_t bits, std::byte* extent, std::byte* meta) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (kDim == 256) {
    reinterpret_cast<uint16_t*>(extent)[lane] = reinterpret_cast<uint16_t*>(meta)[lane] =
        static_cast<uint16_t>(bits);
  } else if constexpr (kDim == 128) {
    extent[lane] = meta[lane] = static_cast<std::byte>(bits);
  } else {
    const uint32_t byte = bits | __shfl_down_sync(kAllLanes, bits, 1) << 4;
    if (lane % 2 == 0) extent[lane / 2] = meta[lane / 2] = static_cast<std::byte>(byte);
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads) WriteCodesKernel(const Job job) {
  constexpr int32_t kCodeBytes = kDim / 4;
  constexpr auto kPerBlock = static_cast<int32_t>(kDecodeSegmentTokens);
  constexpr int64_t kFactors = int64_t{kPerBlock} * kCodeBytes;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t warp = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int64_t num_warps = int64_t{gridDim.x} * kThreads / 32;
  const int32_t groups = job.num_tokens / 32;  // of a head
  for (int64_t i = warp; i < int64_t{job.num_heads} * groups; i += num_warps) {
    const auto head = static_cast<int32_t>(i / groups);
    const auto first = static_cast<int32_t>(i % groups) * 32;
    const uint16_t* const tokens = job.order.tokens + int64_t{head} * job.num_tokens;
    const int32_t my_token = tokens[first + lane];
    const int32_t my_cluster =
        ClusterOfToken(job.order.first + int64_t{head} * job.num_clusters, job.num_clusters,
                       static_cast<uint32_t>(first + lane));
    const int32_t block = first / kPerBlock, place = first % kPerBlock;
    std::byte* const image = job.extent + job.offsets.codes + head * job.offsets.codes_bytes +
                             block * job.meta.codes_bytes;
    std::byte* const meta = job.meta.Codes(head, block);
    TokenCodeFactors my_factors{};
    for (int j = 0; j < 32; ++j) {
      float channels[kDim / 32];
      ReadResidual<kDim>(job, head, __shfl_sync(kAllLanes, my_token, j),
                         __shfl_sync(kAllLanes, my_cluster, j), channels);
      TokenCodeFactors factors;
      const uint32_t bits = CodeResidual<kDim>(channels, factors);
      if (lane == j) my_factors = factors;
      StoreBits<kDim>(bits, image + (place + j) * kCodeBytes, meta + (place + j) * kCodeBytes);
    }
    reinterpret_cast<TokenCodeFactors*>(image + kFactors)[place + lane] = my_factors;
    reinterpret_cast<TokenCodeFactors*>(meta + kFactors)[place + lane] = my_factors;
  }
  const int64_t num_threads = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
       i < int64_t{job.num_heads} * job.num_clusters; i += num_threads) {
    *job.meta.FirstCode(static_cast<int32_t>(i / job.num_clusters),
                        static_cast<int32_t>(i % job.num_clusters)) =
        static_cast<int32_t>(job.order.first[i]) -
        static_cast<int32_t>(i % job.num_clusters / int64_t{kClustersPerMetaBlock}) * kPerBlock;
  }
}

}  // namespace

absl::Status WriteTokenCodes(CudaStream& stream, const WriteSegmentArgs& args,
                             const MemberOrder& order) {
  const KvGeometry& geometry = args.geometry;
  if (geometry.format.token_code_bits == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckArg(
      geometry.format.centroid == kInt8Vectors && args.kv.dtype == DType::kBf16, "write_segment",
      "needs centroids in int8 and the KV of a prompt in bf16 to code tokens"));
  const Job job{.keys = reinterpret_cast<const __nv_bfloat16*>(args.kv.keys),
                .capacity = args.kv.capacity,
                .first_token = args.first_token,
                .num_heads = static_cast<int32_t>(geometry.num_kv_heads),
                .num_tokens = args.num_tokens,
                .num_clusters = args.num_clusters,
                .order = order,
                .extent = args.extent.device_data(),
                .offsets = LayerOffsets(geometry, args.heads,
                                        static_cast<uint32_t>(args.num_tokens), args.layer),
                .meta = MetaLayer(args.pool, args.layer, args.meta_blocks)};
  const auto kernel = geometry.head_dim == 256   ? WriteCodesKernel<256>
                      : geometry.head_dim == 128 ? WriteCodesKernel<128>
                                                 : WriteCodesKernel<64>;
  kernel<<<kBlocks, kThreads, 0, stream.get()>>>(job);
  return LaunchStatus("launching write_segment's codes");
}

}  // namespace retroinfer::cuda
