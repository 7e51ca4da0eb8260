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
  uint32_t places_per_page;
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

// The codes of all heads, 16 bytes at a time.
__device__ void LoadCodes(const Job& job, int64_t thread, int64_t num_threads) {
  const int64_t head_bytes = job.offsets.codes_bytes;
  const int64_t count = job.num_heads * head_bytes / 16;
  const auto* const from = reinterpret_cast<const int4*>(job.extent + job.offsets.codes);
  for (int64_t first = thread; first < count; first += kInFlight * num_threads) {
    int4 chunks[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * num_threads < count) chunks[i] = from[first + i * num_threads];
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t at = (first + i * num_threads) * 16;
      if (at >= count * 16) continue;
      const int64_t in_head = at % head_bytes;
      std::byte* const codes = job.meta.Codes(static_cast<int32_t>(at / head_bytes),
                                              static_cast<int32_t>(in_head / job.meta.codes_bytes));
      *reinterpret_cast<int4*>(codes + in_head % job.meta.codes_bytes) = chunks[i];
    }
  }
}

struct Entry {
  uint32_t first_place;
  uint32_t num_tokens;
  float radius;
};
__device__ Entry ReadEntry(const Job& job, int64_t i) {
  const auto* const words =
      reinterpret_cast<const volatile uint32_t*>(job.extent + job.offsets.clusters);
  return {words[3 * i], words[3 * i + 1], __uint_as_float(words[3 * i + 2])};
}
__device__ MetaEntry CheckedEntry(const Job& job, const Entry& entry, bool fits) {
  const ClusterPlace place(entry.first_place, job.places_per_page);
  fits =
      fits && entry.num_tokens > 0 && entry.num_tokens <= job.num_tokens &&
      place.first_page + place.NumPages(entry.num_tokens, job.tokens_per_page) <= job.extent_pages;
  return fits ? MetaEntry{job.extent_first_page * job.places_per_page + entry.first_place,
                          entry.num_tokens, entry.radius}
              : MetaEntry{0, 0, 0.0f};
}

// Entries and first codes where tokens have codes: a warp adds up a head's clusters.
__device__ void LoadCodedEntries(const Job& job, int64_t thread, int64_t num_threads) {
  constexpr uint32_t kAllLanes = 0xffffffffu;
  const auto lane = static_cast<int32_t>(thread % 32);
  for (int64_t head = thread / 32; head < job.num_heads; head += num_threads / 32) {
    uint32_t before = 0;
    for (int32_t base = 0; base < job.num_clusters; base += 32) {
      const int32_t cluster = base + lane;
      const Entry entry = ReadEntry(job, head * job.num_clusters + cluster);
      // Every entry counts, at most as one that is too large.
      const uint32_t size = min(entry.num_tokens, job.num_tokens + 1);
      uint32_t end = size;
      for (int step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(kAllLanes, end, step);
        if (lane >= step) end += other;
      }
      const uint32_t first = before + end - size;
      *job.meta.Entry(static_cast<int32_t>(head), cluster) =
          CheckedEntry(job, entry, first + size <= job.num_tokens);
      *job.meta.FirstCode(static_cast<int32_t>(head), cluster) =
          static_cast<int32_t>(first) - cluster / static_cast<int32_t>(kClustersPerMetaBlock) *
                                            static_cast<int32_t>(kDecodeSegmentTokens);
      before += __shfl_sync(kAllLanes, end, 31);
    }
  }
}

__global__ void __launch_bounds__(kThreads) LoadSegmentIndexKernel(const Job job) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t num_threads = int64_t{gridDim.x} * kThreads;
  const LayerOffsets& offsets = job.offsets;
  LoadVectors(job, offsets.centroids, offsets.centroids_bytes, 0, thread, num_threads);
  LoadVectors(job, offsets.value_sums, offsets.value_sums_bytes, 1, thread, num_threads);
  if (offsets.codes_bytes != 0) {
    LoadCodedEntries(job, thread, num_threads);
    LoadCodes(job, thread, num_threads);
    return;
  }
  for (int64_t i = thread; i < int64_t{job.num_heads} * job.num_clusters; i += num_threads) {
    *job.meta.Entry(static_cast<int32_t>(i / job.num_clusters),
                    static_cast<int32_t>(i % job.num_clusters)) =
        CheckedEntry(job, ReadEntry(job, i), true);
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
       .places_per_page = geometry.places_per_page(),
       .offsets = LayerOffsets(geometry, args.heads, args.num_tokens, args.layer),
       .meta = MetaLayer(args.pool, args.layer, args.meta_blocks)});
  return LaunchStatus("launching load_segment_index");
}

}  // namespace retroinfer::cuda
