// Bound by the bus: reads every KV byte of the layer in the host's memory once.
//
// Invariants:
// * The order table is walked in step with the pages, cluster by cluster, so that its i-th index
//   belongs to the i-th token of the pages; the walk ends at the first entry that does not fit.
// * Each block follows its own copy of the entries, read once and checked, as others can change the
//   bytes.
#include "gpu_worker/ops/cuda/cuda_kv_format.h"
#include "gpu_worker/ops/cuda/eight_bit_vector.cuh"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/index/cuda/read_segment_layer.h"
#include "gpu_worker/ops/index/cuda/segment_place.cuh"
#include "gpu_worker/ops/index/read_segment_layer_check.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocksPerHead = 4;
constexpr int kInFlight = 4;  // loads of a thread, as the bus is far away
constexpr unsigned kAllLanes = 0xffffffff;
constexpr auto kMaxTokens = static_cast<int32_t>(kPrefillSegmentTokens);
constexpr int32_t kMaxClusters = kMaxTokens / static_cast<int32_t>(kTokensPerCluster);
static_assert(kMaxClusters <= kThreads);

struct Job {
  const std::byte* extent;
  uint64_t extent_pages;
  int32_t num_tokens;
  int32_t num_clusters;
  int32_t tokens_per_page;
  uint32_t places_per_page;
  int32_t vector_bytes;  // of a key, as pages have it
  LayerOffsets offsets;
  LayerKv out;
  int64_t first_token;
};

// The clusters of a head that can be followed.
struct Clusters {
  uint32_t first_place[kMaxClusters];
  int32_t first_token[kMaxClusters];  // in page order
  unsigned long long warp_sums[kThreads / 32];
  int32_t num_clusters;  // before the first entry that does not fit
  int32_t num_tokens;    // of them
};

// A thread for each cluster. Hostile sizes are summed in 64 bits.
__device__ void ReadClusters(const Job& job, int64_t head, Clusters& clusters) {
  const auto cluster = static_cast<int32_t>(threadIdx.x);
  const auto* const entries =
      reinterpret_cast<const volatile uint32_t*>(job.extent + job.offsets.clusters) +
      head * job.num_clusters * 3;
  uint32_t first_place = 0, size = 0;
  if (cluster < job.num_clusters) {
    first_place = entries[3 * cluster];
    size = entries[3 * cluster + 1];
  }
  unsigned long long sum = size;
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned long long other = __shfl_up_sync(kAllLanes, sum, distance);
    if (cluster % 32 >= distance) sum += other;
  }
  if (cluster % 32 == 31) clusters.warp_sums[cluster / 32] = sum;
  if (cluster == 0) {
    clusters.num_clusters = job.num_clusters;
    clusters.num_tokens = 0;
  }
  __syncthreads();
  for (int i = 0; i < cluster / 32; ++i) sum += clusters.warp_sums[i];
  const ClusterPlace place(first_place, job.places_per_page);
  const uint64_t num_pages = place.NumPages(size, static_cast<uint32_t>(job.tokens_per_page));
  const bool fits = sum <= static_cast<uint64_t>(job.num_tokens) &&
                    place.first_page + num_pages <= job.extent_pages;
  if (cluster < job.num_clusters && !fits) atomicMin(&clusters.num_clusters, cluster);
  __syncthreads();
  if (cluster < clusters.num_clusters) {
    clusters.first_place[cluster] = first_place;
    clusters.first_token[cluster] = static_cast<int32_t>(sum - size);
    if (cluster == clusters.num_clusters - 1) clusters.num_tokens = static_cast<int32_t>(sum);
  }
  __syncthreads();
}

// The cluster of the token at place `place` of the page order: the last that begins there or
// before.
__device__ int32_t ClusterOf(const Clusters& clusters, int32_t place) {
  int32_t low = 0, high = clusters.num_clusters;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (clusters.first_token[middle] <= place ? low : high) = middle;
  }
  return low;
}

// 16 bytes of a token: where they are and where they belong. `to` is null for what is skipped.
struct Move {
  const int4* from;
  int4* to;
};

// `chunk` counts the 16-byte pieces of tokens in page order, key before value. `kWidth`: bytes of
// the KV for each of a page.
template <int kWidth>
__device__ Move MoveOf(const Job& job, const Clusters& clusters, int64_t head,
                       const TokenOrder* order, int32_t first_place, int32_t chunk) {
  const int32_t chunks_per_vector = job.vector_bytes / 16;
  const int32_t place = first_place + chunk / (2 * chunks_per_vector);
  const int32_t token = order[place - first_place];
  if (token >= job.num_tokens) return {nullptr, nullptr};
  const int32_t cluster = ClusterOf(clusters, place);
  const ClusterPlace of_cluster(clusters.first_place[cluster], job.places_per_page);
  const int32_t member =
      static_cast<int32_t>(of_cluster.skipped) + place - clusters.first_token[cluster];
  const int32_t piece = chunk % (2 * chunks_per_vector);
  const bool is_value = piece >= chunks_per_vector;
  const int64_t offset =
      (int64_t{of_cluster.first_page} + member / job.tokens_per_page) * int64_t{kPageBytes} +
      (is_value ? int64_t{kPageBytes / 2} : 0) + member % job.tokens_per_page * job.vector_bytes +
      piece % chunks_per_vector * 16;
  std::byte* const rows = is_value ? job.out.values : job.out.keys;
  return {reinterpret_cast<const int4*>(job.extent + offset),
          reinterpret_cast<int4*>(
              rows + ((head * job.out.capacity + job.first_token + token) * job.vector_bytes +
                      piece % chunks_per_vector * 16) *
                         kWidth)};
}

// Writes 16 elements of a vector as bf16. The lanes that have a vector are neighbours: the first of
// them has its code. Called by all lanes of a warp.
__device__ void StoreDecoded(const int4& bytes, int32_t lanes, int4* to) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const uint2 first = {static_cast<uint32_t>(bytes.x), static_cast<uint32_t>(bytes.y)};
  const uint2 last = {static_cast<uint32_t>(bytes.z), static_cast<uint32_t>(bytes.w)};
  const int32_t code = __shfl_sync(kAllLanes, CodeOfFirst(first), lane - lane % lanes);
  if (to == nullptr) return;
  const int32_t place = lane % lanes * 16;
  reinterpret_cast<Bf16x8*>(to)[0] = DecodeEight(first, place, code);
  reinterpret_cast<Bf16x8*>(to)[1] = DecodeEight(last, place + 8, code);
}

// blockIdx.x: a share of the head's tokens in page order; blockIdx.y: head. `kEightBits`: pages
// are, else the KV has their elements.
template <bool kEightBits>
__global__ void __launch_bounds__(kThreads) ReadSegmentLayerKernel(const Job job) {
  __shared__ Clusters clusters;
  __shared__ TokenOrder order[DivideUp(kMaxTokens, kBlocksPerHead)];
  const int64_t head = blockIdx.y;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  ReadClusters(job, head, clusters);
  const auto share = static_cast<int32_t>(DivideUp(clusters.num_tokens, kBlocksPerHead));
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * share;
  const int32_t end = min(begin + share, clusters.num_tokens);
  const auto* const from =
      reinterpret_cast<const TokenOrder*>(job.extent + job.offsets.order) + head * job.num_tokens;
  for (int32_t i = begin + thread; i < end; i += kThreads) order[i - begin] = from[i];
  __syncthreads();
  const int32_t num_chunks = (end - begin) * (2 * job.vector_bytes / 16);
  constexpr int kWidth = kEightBits ? 2 : 1;
  // Lanes that share vectors stay together to the end.
  const int32_t ahead = kEightBits ? thread % 32 : 0;
  for (int32_t first = thread; first - ahead < num_chunks; first += kInFlight * kThreads) {
    Move moves[kInFlight];
    int4 bytes[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int32_t chunk = first + i * kThreads;
      moves[i] = chunk < num_chunks ? MoveOf<kWidth>(job, clusters, head, order, begin, chunk)
                                    : Move{nullptr, nullptr};
      if (kEightBits) bytes[i] = make_int4(0, 0, 0, 0);
      if (moves[i].to != nullptr) bytes[i] = *moves[i].from;
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if constexpr (kEightBits) {
        StoreDecoded(bytes[i], job.vector_bytes / 16, moves[i].to);
      } else {
        if (moves[i].to != nullptr) *moves[i].to = bytes[i];
      }
    }
  }
}

}  // namespace

absl::Status ReadSegmentLayer(CudaStream& stream, const ReadSegmentLayerArgs& args) {
  RETURN_IF_ERROR(CheckReadSegmentLayer(args));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.geometry.format));
  const KvGeometry& geometry = args.geometry;
  const dim3 grid(kBlocksPerHead, geometry.num_kv_heads);
  const auto kernel = geometry.format.token == kEightBitTokens ? ReadSegmentLayerKernel<true>
                                                               : ReadSegmentLayerKernel<false>;
  kernel<<<grid, kThreads, 0, stream.get()>>>(
      {.extent = args.extent.device_data(),
       .extent_pages = args.extent.size() / kPageBytes,
       .num_tokens = static_cast<int32_t>(args.num_tokens),
       .num_clusters = static_cast<int32_t>(args.num_tokens / kTokensPerCluster),
       .tokens_per_page = static_cast<int32_t>(geometry.tokens_per_page()),
       .places_per_page = geometry.places_per_page(),
       .vector_bytes = static_cast<int32_t>(geometry.page().vector_bytes),
       .offsets = LayerOffsets(geometry, args.heads, args.num_tokens, args.layer),
       .out = args.out,
       .first_token = args.first_token});
  return LaunchStatus("launching read_segment_layer");
}

}  // namespace retroinfer::cuda
