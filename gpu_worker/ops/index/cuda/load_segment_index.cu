// Bound by the bus: reads the layer's part of the index in the host's memory once. An entry is
// read once, checked in registers and only then written, as others can change the bytes.
#include "gpu_worker/ops/cuda/cuda_kv_format.h"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/index/cuda/load_segment_index.h"
#include "gpu_worker/ops/index/cuda/segment_place.cuh"
#include "gpu_worker/ops/index/load_segment_index_check.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocks = 16;
constexpr int kInFlight = 4;  // loads of a thread, as the bus is far away

struct Job {
  const std::byte* extent;
  uint64_t extent_pages;
  PageId extent_first_page;
  int32_t num_heads;
  uint32_t num_tokens;
  int32_t num_clusters;
  uint32_t tokens_per_page;
  LayerOffsets offsets;
  MetaLayer meta;
};

__device__ void LoadVectors(const Job& job, int64_t offset, int64_t head_bytes, int which,
                            int64_t thread, int64_t num_threads) {
  const int64_t count = job.num_heads * head_bytes / 16;
  const auto* const from = reinterpret_cast<const int4*>(job.extent + offset);
  for (int64_t first = thread; first < count; first += kInFlight * num_threads) {
    int4 chunks[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * num_threads < count) chunks[i] = from[first + i * num_threads];
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t at = first + i * num_threads;
      if (at < count) {
        *reinterpret_cast<int4*>(job.meta.Vector(at * 16, head_bytes, which)) = chunks[i];
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads) LoadSegmentIndexKernel(const Job job) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t num_threads = int64_t{gridDim.x} * kThreads;
  const LayerOffsets& offsets = job.offsets;
  LoadVectors(job, offsets.centroids, offsets.centroids_bytes, 0, thread, num_threads);
  LoadVectors(job, offsets.value_sums, offsets.value_sums_bytes, 1, thread, num_threads);
  const auto* const entries =
      reinterpret_cast<const volatile uint32_t*>(job.extent + job.offsets.clusters);
  for (int64_t i = thread; i < int64_t{job.num_heads} * job.num_clusters; i += num_threads) {
    const uint32_t first_page = entries[3 * i];
    const uint32_t num_tokens = entries[3 * i + 1];
    const float radius = __uint_as_float(entries[3 * i + 2]);
    const bool fits =
        num_tokens > 0 && num_tokens <= job.num_tokens &&
        uint64_t{first_page} + (num_tokens + job.tokens_per_page - 1) / job.tokens_per_page <=
            job.extent_pages;
    *job.meta.Entry(static_cast<int32_t>(i / job.num_clusters),
                    static_cast<int32_t>(i % job.num_clusters)) =
        fits ? MetaEntry{job.extent_first_page + first_page, num_tokens, radius}
             : MetaEntry{0, 0, 0.0f};
  }
}

}  // namespace

absl::Status LoadSegmentIndex(CudaStream& stream, const LoadSegmentIndexArgs& args) {
  RETURN_IF_ERROR(CheckLoadSegmentIndex(args));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  const KvGeometry& geometry = args.pool.geometry;
  LoadSegmentIndexKernel<<<kBlocks, kThreads, 0, stream.get()>>>(
      {.extent = args.extent.device_data(),
       .extent_pages = args.extent.size() / kPageBytes,
       .extent_first_page = args.extent_first_page,
       .num_heads = static_cast<int32_t>(geometry.num_kv_heads),
       .num_tokens = args.num_tokens,
       .num_clusters = static_cast<int32_t>(args.num_tokens / kTokensPerCluster),
       .tokens_per_page = geometry.tokens_per_page(),
       .offsets = LayerOffsets(geometry, args.num_tokens, args.layer),
       .meta = MetaLayer(args.pool, args.layer, args.meta_blocks)});
  return LaunchStatus("launching load_segment_index");
}

}  // namespace retroinfer::cuda
