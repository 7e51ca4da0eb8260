// Bound by the bus between the device and the host's memory, where the extent lies: every page is
// written there once, by one warp, in whole lines; the copy in a slot costs next to nothing. A few
// blocks are enough to fill the bus, so that the model's own work keeps the other multiprocessors.
//
// Invariants:
// * The clusters of (layer, head) take consecutive pages in cluster order; heads follow each other.
//   First pages are running sums of ceil(size / tokens_per_page), so no two clusters overlap; first
//   places of packed clusters are running sums of sizes, so token i of a head's page order is token
//   i of its pages.
// * Tokens keep their order inside a cluster; the order table says which token went where.
#include <type_traits>

#include "gpu_worker/ops/cuda/cuda_kv_format.h"
#include "gpu_worker/ops/cuda/eight_bit_vector.cuh"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/index/cuda/member_order.h"
#include "gpu_worker/ops/index/cuda/segment_place.cuh"
#include "gpu_worker/ops/index/cuda/token_codes.h"
#include "gpu_worker/ops/index/cuda/write_segment.h"
#include "gpu_worker/ops/index/write_segment_check.h"

namespace retroinfer::cuda {
namespace {

constexpr int kPlaceThreads = 512;
constexpr int kWriteThreads = 512;
constexpr int kWriteBlocks = 8;
constexpr unsigned kAllLanes = 0xffffffff;
constexpr int kChunksPerPage = kPageBytes / 16;
constexpr int kChunksPerLane = kChunksPerPage / 32;
static_assert(kMaxOrderedClusters <= kPlaceThreads);

// What kernels of one call share.
struct Job {
  LayerKv kv;
  int64_t first_token;
  int32_t num_heads;
  int32_t num_tokens;
  int32_t num_clusters;
  int32_t tokens_per_page;
  uint32_t places_per_page;  // 1: clusters are not packed
  int32_t vector_bytes;      // of a key, as pages have it
  DType centroid;            // element types of the index
  DType value_sum;
  const int32_t* sizes;
  const float* centroids;
  const float* value_sums;
  const float* radii;
  MemberOrder order;
  uint32_t* first_places;  // [heads, m], from the start of the extent
  uint32_t* end_page;      // behind the layer's last page
  std::byte* extent;
  uint32_t region_end;  // behind the last page that the heads may have
  PageId extent_first_page;
  uint32_t* next_page;
  std::byte* fill_slots;  // null: no pages go to slots
  const SlotListHead* fill_head;
  const SlotId* fill_list;
  uint32_t first_kv_page;
  LayerOffsets offsets;
  MetaLayer meta;
  int32_t head_dim;
};

// Gives the clusters of every head their pages, from *next_page on, which is advanced. One block.
__global__ void __launch_bounds__(kPlaceThreads) PlacePagesKernel(const Job job) {
  __shared__ uint32_t warp_sums[kPlaceThreads / 32];
  const auto cluster = static_cast<int32_t>(threadIdx.x);
  const int lane = cluster % 32;
  const bool is_packed = job.places_per_page > 1;
  uint32_t place = *job.next_page * job.places_per_page;
  for (int32_t head = 0; head < job.num_heads; ++head) {
    const int32_t at = head * job.num_clusters + cluster;
    const int32_t size = cluster < job.num_clusters ? job.sizes[at] : 0;
    const auto places = static_cast<uint32_t>(
        is_packed ? size : (size + job.tokens_per_page - 1) / job.tokens_per_page);
    uint32_t sum = places;
    for (int distance = 1; distance < 32; distance *= 2) {
      const uint32_t other = __shfl_up_sync(kAllLanes, sum, distance);
      if (lane >= distance) sum += other;
    }
    if (lane == 31) warp_sums[cluster / 32] = sum;
    __syncthreads();
    uint32_t before = 0, total = 0;
    for (int i = 0; i < kPlaceThreads / 32; ++i) {
      if (i < cluster / 32) before += warp_sums[i];
      total += warp_sums[i];
    }
    __syncthreads();
    if (cluster < job.num_clusters) job.first_places[at] = place + before + sum - places;
    place += total;
  }
  const uint32_t page = place / job.places_per_page;
  if (page > job.region_end) __trap();  // The caller moved next_page past its own layers.
  if (cluster == 0) {
    *job.end_page = page;
    *job.next_page = page;
  }
}

// The last of `count` clusters whose first page is not behind `page`.
__device__ int32_t ClusterOfPage(const uint32_t* first_pages, int32_t count, uint32_t page) {
  int32_t low = 0, high = count;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (first_pages[middle] <= page ? low : high) = middle;
  }
  return low;
}

// Numbers `place` to `place` + 15 of a vector in eight bits; `lanes` neighbours have its numbers.
__device__ int4 EncodeSixteen(const Bf16x8& low, const Bf16x8& high, int32_t place, int32_t lanes) {
  const int32_t code = CodeOfLanes(max(LargestBits(low), LargestBits(high)), lanes);
  const uint2 first = EncodeEight(low, place, code), last = EncodeEight(high, place + 8, code);
  return make_int4(static_cast<int>(first.x), static_cast<int>(first.y), static_cast<int>(last.x),
                   static_cast<int>(last.y));
}

// What a page holds: tokens `first` to `size` of some members of a head, as many as it has room
// for.
struct PageTokens {
  int32_t head;
  const uint16_t* members;
  int32_t first;
  int32_t size;
};
__device__ PageTokens TokensOf(const Job& job, uint32_t page) {
  if (job.places_per_page > 1) {  // members of all clusters
    const auto pages_of_head = static_cast<uint32_t>(job.num_tokens / job.tokens_per_page);
    const uint32_t index = page - job.first_places[0] / job.places_per_page;
    const auto head = static_cast<int32_t>(index / pages_of_head);
    return {head, job.order.tokens + int64_t{head} * job.num_tokens,
            static_cast<int32_t>(index % pages_of_head) * job.tokens_per_page, job.num_tokens};
  }
  const int32_t at = ClusterOfPage(job.first_places, job.num_heads * job.num_clusters, page);
  const int32_t head = at / job.num_clusters;
  return {head, job.order.tokens + int64_t{head} * job.num_tokens + job.order.first[at],
          static_cast<int32_t>(page - job.first_places[at]) * job.tokens_per_page, job.sizes[at]};
}

// One warp writes a page: 16 bytes a lane, four times. `kEightBits`: the page's elements are, else
// it has those of the KV.
template <bool kEightBits>
__device__ void WritePage(const Job& job, uint32_t page) {
  const auto [head, members, first, size] = TokensOf(job, page);
  const int64_t head_row = head * job.kv.capacity + job.first_token;
  constexpr int kWidth = kEightBits ? 2 : 1;  // bytes of the KV for each of the page
  using Piece = std::conditional_t<kEightBits, Bf16x8, int4>;
  Piece numbers[kChunksPerLane][kWidth];
#pragma unroll
  for (int i = 0; i < kChunksPerLane; ++i) {
    const int32_t offset = (i * 32 + static_cast<int32_t>(threadIdx.x) % 32) * 16;
    constexpr auto kHalf = static_cast<int32_t>(kPageBytes / 2);
    const int32_t member = first + offset % kHalf / job.vector_bytes;
    const std::byte* const rows = offset < kHalf ? job.kv.keys : job.kv.values;
    for (Piece& piece : numbers[i]) piece = {};
    if (member < size) {
      const auto* const from = reinterpret_cast<const Piece*>(
          rows +
          ((head_row + members[member]) * job.vector_bytes + offset % job.vector_bytes) * kWidth);
      for (int part = 0; part < kWidth; ++part) numbers[i][part] = from[part];
    }
  }
  int4 chunks[kChunksPerLane];
#pragma unroll
  for (int i = 0; i < kChunksPerLane; ++i) {
    if constexpr (kEightBits) {
      const int32_t place = static_cast<int32_t>(threadIdx.x) % 32 * 16 % job.vector_bytes;
      chunks[i] = EncodeSixteen(numbers[i][0], numbers[i][1], place, job.vector_bytes / 16);
    } else {
      chunks[i] = numbers[i][0];
    }
  }
  auto* const to = reinterpret_cast<int4*>(job.extent + int64_t{page} * int64_t{kPageBytes});
#pragma unroll
  for (int i = 0; i < kChunksPerLane; ++i) to[i * 32 + threadIdx.x % 32] = chunks[i];
  const uint32_t index = page - job.first_kv_page;
  if (job.fill_slots == nullptr || index >= job.fill_head->num_slots) return;
  const SlotId slot = job.fill_list[index];
  auto* const copy = reinterpret_cast<int4*>(job.fill_slots + int64_t{slot} * int64_t{kPageBytes});
#pragma unroll
  for (int i = 0; i < kChunksPerLane; ++i) copy[i * 32 + threadIdx.x % 32] = chunks[i];
}

// 16 bytes of vectors in bf16 or f32, from chunk `chunk` of f32 vectors.
__device__ int4 ConvertChunk(const float* vectors, bool is_bf16, int64_t chunk) {
  if (!is_bf16) return reinterpret_cast<const int4*>(vectors)[chunk];
  const float4 low = reinterpret_cast<const float4*>(vectors)[2 * chunk];
  const float4 high = reinterpret_cast<const float4*>(vectors)[2 * chunk + 1];
  const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  int4 packed;
  Store8(reinterpret_cast<__nv_bfloat16*>(&packed), 0, values);
  return packed;
}

__device__ void WriteVectors(const Job& job, const float* vectors, DType element, int64_t offset,
                             int64_t head_bytes, int which, int64_t thread, int64_t num_threads) {
  const bool is_bf16 = element == DType::kBf16;
  for (int64_t i = thread; i < job.num_heads * head_bytes / 16; i += num_threads) {
    const int4 chunk = ConvertChunk(vectors, is_bf16, i);
    reinterpret_cast<int4*>(job.extent + offset)[i] = chunk;
    *reinterpret_cast<int4*>(job.meta.Vector(i * 16, head_bytes, which)) = chunk;
  }
}

// What 16 numbers of a vector are in int8. `lanes`: that have one vector, 16 numbers each.
struct Int8Chunk {
  int4 elements;
  __half scale;  // of the vector
};
__device__ Int8Chunk RoundToInt8(const float4* numbers, int32_t lanes) {
  float4 values[4];
  uint32_t largest = 0;  // as integers, so that NaN is the largest of all
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[i] = numbers[i];
    for (const float value : {values[i].x, values[i].y, values[i].z, values[i].w}) {
      largest = max(largest, __float_as_uint(value) & 0x7fffffffu);
    }
  }
  for (int32_t step = lanes / 2; step > 0; step /= 2) {
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, step));
  }
  constexpr uint32_t kInfinity = 0x7f800000;
  constexpr unsigned short kLargestHalf = 0x7bff, kNanHalf = 0x7e00;
  Int8Chunk chunk{make_int4(0, 0, 0, 0), __ushort_as_half(0)};
  if (largest >= kInfinity) chunk.scale = __ushort_as_half(kNanHalf);
  if (largest == 0 || largest >= kInfinity) return chunk;
  chunk.scale = __float2half_ru(__fdiv_rn(__uint_as_float(largest), 127.0f));
  if (__hisinf(chunk.scale)) chunk.scale = __ushort_as_half(kLargestHalf);
  const float scale = __half2float(chunk.scale);
  const auto round = [scale](float value, int place) {
    const int number = min(max(__float2int_rn(__fdiv_rn(value, scale)), -127), 127);
    return (static_cast<uint32_t>(number) & 0xffu) << (8 * place);
  };
  const auto pack = [&round](const float4& four) {
    return static_cast<int>(round(four.x, 0) | round(four.y, 1) | round(four.z, 2) |
                            round(four.w, 3));
  };
  chunk.elements = make_int4(pack(values[0]), pack(values[1]), pack(values[2]), pack(values[3]));
  return chunk;
}

// The same as WriteVectors in int8: by 64 vectors, whose scales lie behind them.
__device__ void WriteInt8Vectors(const Job& job, const float* vectors, int64_t offset,
                                 int64_t head_bytes, int which, int64_t thread,
                                 int64_t num_threads) {
  constexpr auto kPerBlock = static_cast<int64_t>(kClustersPerMetaBlock);
  const int32_t lanes = job.head_dim / 16;
  const int64_t block_bytes = head_bytes / (job.num_clusters / kPerBlock);
  // A whole number of warps, so that all lanes of one come here together.
  const int64_t count = int64_t{job.num_heads} * job.num_clusters * lanes;
  for (int64_t i = thread; i < count; i += num_threads) {
    const int64_t vector = i / lanes;
    const auto part = static_cast<int32_t>(i % lanes);
    const Int8Chunk chunk = RoundToInt8(reinterpret_cast<const float4*>(vectors + 16 * i), lanes);
    const int64_t block = vector / kPerBlock * block_bytes;
    const int64_t at = block + vector % kPerBlock * job.head_dim + 16 * part;
    *reinterpret_cast<int4*>(job.extent + offset + at) = chunk.elements;
    *reinterpret_cast<int4*>(job.meta.Vector(at, head_bytes, which)) = chunk.elements;
    if (part == 0) {
      const int64_t scale_at = block + kPerBlock * job.head_dim + vector % kPerBlock * 2;
      *reinterpret_cast<__half*>(job.extent + offset + scale_at) = chunk.scale;
      *reinterpret_cast<__half*>(job.meta.Vector(scale_at, head_bytes, which)) = chunk.scale;
    }
  }
}

// Entries as 32-bit words, so that a warp writes whole lines of them.
__device__ void WriteEntries(const Job& job, int64_t thread, int64_t num_threads) {
  static_assert(sizeof(ClusterEntry) == 12 && sizeof(MetaEntry) == 12);
  auto* const words = reinterpret_cast<uint32_t*>(job.extent + job.offsets.clusters);
  const int64_t num_words = int64_t{job.num_heads} * job.num_clusters * 3;
  for (int64_t i = thread; i < num_words; i += num_threads) {
    const auto at = static_cast<int32_t>(i / 3);
    const int field = static_cast<int>(i % 3);
    const auto size = static_cast<uint32_t>(job.sizes[at]);
    uint32_t word = 0, meta_word = 0;
    if (size > 0) {
      word = field == 0 ? job.first_places[at] : field == 1 ? size : __float_as_uint(job.radii[at]);
      meta_word = field == 0 ? word + job.extent_first_page * job.places_per_page : word;
    }
    words[i] = word;
    reinterpret_cast<uint32_t*>(
        job.meta.Entry(at / job.num_clusters, at % job.num_clusters))[field] = meta_word;
  }
}

// `kHasInt8`: the index has vectors in int8; `kEightBits`: pages are in eight bits.
template <bool kHasInt8, bool kEightBits>
__global__ void __launch_bounds__(kWriteThreads) WriteSegmentKernel(const Job job) {
  const int64_t thread = int64_t{blockIdx.x} * kWriteThreads + threadIdx.x;
  const int64_t num_threads = int64_t{gridDim.x} * kWriteThreads;
  const uint32_t begin = job.first_places[0] / job.places_per_page;
  const uint32_t end = *job.end_page;
  for (int64_t page = begin + thread / 32; page < end; page += num_threads / 32) {
    WritePage<kEightBits>(job, static_cast<uint32_t>(page));
  }
  const LayerOffsets& offsets = job.offsets;
  const auto write = [&](const float* vectors, DType element, int64_t offset, int64_t head_bytes,
                         int which) {
    if (kHasInt8 && element == DType::kInt8) {
      WriteInt8Vectors(job, vectors, offset, head_bytes, which, thread, num_threads);
    } else {
      WriteVectors(job, vectors, element, offset, head_bytes, which, thread, num_threads);
    }
  };
  write(job.centroids, job.centroid, offsets.centroids, offsets.centroids_bytes, 0);
  write(job.value_sums, job.value_sum, offsets.value_sums, offsets.value_sums_bytes, 1);
  WriteEntries(job, thread, num_threads);
  const int64_t order_bytes = int64_t{job.num_heads} * job.num_tokens * 2;
  for (int64_t i = thread; i < order_bytes / 16; i += num_threads) {
    reinterpret_cast<int4*>(job.extent + job.offsets.order)[i] =
        reinterpret_cast<const int4*>(job.order.tokens)[i];
  }
}

// Zeros the pages behind the layer's last one, to the end of the heads' region.
__global__ void __launch_bounds__(kWriteThreads) ZeroRestKernel(const Job job) {
  constexpr int64_t kChunks = kChunksPerPage;
  const int64_t num_threads = int64_t{gridDim.x} * kWriteThreads;
  const int64_t end = int64_t{job.region_end} * kChunks;
  for (int64_t i = *job.end_page * kChunks + int64_t{blockIdx.x} * kWriteThreads + threadIdx.x;
       i < end; i += num_threads) {
    reinterpret_cast<int4*>(job.extent)[i] = make_int4(0, 0, 0, 0);
  }
}

}  // namespace

absl::Status WriteSegment(CudaStream& stream, const WriteSegmentArgs& args) {
  RETURN_IF_ERROR(CheckWriteSegment(args));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.geometry.format));
  const KvGeometry& geometry = args.geometry;
  const int64_t heads = geometry.num_kv_heads;
  const auto num_tokens = static_cast<uint32_t>(args.num_tokens);
  const KvRegion region =
      SegmentLayout(args.heads.ArenaOf(geometry), num_tokens).RegionOf(args.heads.Of(geometry));
  // Of the scratch's 8 h (n + m) bytes: 2 h n for tokens, 4 h m each for first tokens and pages.
  std::byte* scratch = args.scratch.device_data();
  auto* const tokens = reinterpret_cast<uint16_t*>(scratch);
  auto* const first = reinterpret_cast<uint32_t*>(scratch + 2 * heads * args.num_tokens);
  uint32_t* const first_places = first + heads * args.num_clusters;
  const Job job{.kv = args.kv,
                .first_token = args.first_token,
                .num_heads = static_cast<int32_t>(heads),
                .num_tokens = args.num_tokens,
                .num_clusters = args.num_clusters,
                .tokens_per_page = static_cast<int32_t>(geometry.tokens_per_page()),
                .places_per_page = geometry.places_per_page(),
                .vector_bytes = static_cast<int32_t>(geometry.page().vector_bytes),
                .centroid = geometry.format.centroid.element,
                .value_sum = geometry.format.value_sum.element,
                .sizes = args.sizes.device_data(),
                .centroids = args.centroids.device_data(),
                .value_sums = args.value_sums.device_data(),
                .radii = args.radii.device_data(),
                .order = {.tokens = tokens, .first = first},
                .first_places = first_places,
                .end_page = first_places + heads * args.num_clusters,
                .extent = args.extent.device_data(),
                .region_end = region.end,
                .extent_first_page = args.extent_first_page,
                .next_page = args.next_page,
                .fill_slots = args.fill.slots.device_data(),
                .fill_head = args.fill.list.head,
                .fill_list = args.fill.list.slots.device_data(),
                .first_kv_page = region.begin,
                .offsets = LayerOffsets(geometry, args.heads, num_tokens, args.layer),
                .meta = MetaLayer(args.pool, args.layer, args.meta_blocks),
                .head_dim = static_cast<int32_t>(geometry.head_dim)};
  RETURN_IF_ERROR(OrderMembers(stream, args.assignment.device_data(), geometry.num_kv_heads,
                               args.num_tokens, args.num_clusters, job.order, nullptr));
  PlacePagesKernel<<<1, kPlaceThreads, 0, stream.get()>>>(job);
  RETURN_IF_ERROR(LaunchStatus("launching write_segment's pages"));
  const bool has_int8 = job.centroid == DType::kInt8 || job.value_sum == DType::kInt8;
  auto kernel = has_int8 ? WriteSegmentKernel<true, false> : WriteSegmentKernel<false, false>;
  if (geometry.format.token == kEightBitTokens) kernel = WriteSegmentKernel<true, true>;
  kernel<<<kWriteBlocks, kWriteThreads, 0, stream.get()>>>(job);
  RETURN_IF_ERROR(LaunchStatus("launching write_segment"));
  if (args.zero_rest) {
    ZeroRestKernel<<<kWriteBlocks, kWriteThreads, 0, stream.get()>>>(job);
    RETURN_IF_ERROR(LaunchStatus("launching write_segment's zeros"));
  }
  return WriteTokenCodes(stream, args, job.order);
}

}  // namespace retroinfer::cuda
