// Bound by memory: each centroid is read once, 2 * head_dim bytes (in int8 head_dim + 2), for up to
// 8 query heads of a row, or of all rows where they share an index; groups of more take several
// launches.
//
// A warp multiplies 16 centroids by queries, 8 at a time, on tensor cores: those of one row after
// those of the other. A product's column depends on its own query alone, wherever it stands. Lanes
// read 16 bytes at a time: element k of the product is not dimension k, but the permutation is the
// same on both sides. int8 becomes bf16 in registers, which is exact.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/cuda/cuda_kv_format.h"
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/group_slice.h"
#include "gpu_worker/ops/cuda/joined_rows.cuh"
#include "gpu_worker/ops/cuda/meta_runs.cuh"
#include "gpu_worker/ops/index/centroid_score_check.h"
#include "gpu_worker/ops/index/cuda/centroid_score.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 128;     // one meta block: 4 warps of 16 clusters
constexpr int32_t kMaxHeads = 8;  // of a launch
constexpr int32_t kColumns = 8;   // of a product: queries
constexpr uint32_t kAllLanes = 0xffffffffu;

// Which rows and heads the columns of a product are of: four bits a column, from the lowest on.
struct ColumnMap {
  uint32_t rows = 0;     // from the product's first on
  uint32_t heads = 0;    // of the slice
  int32_t num_rows = 0;  // of a product

  ColumnMap() = default;
  explicit ColumnMap(const GroupSlice& slice) : num_rows(kColumns / slice.count) {
    for (int32_t column = 0; column < kColumns; ++column) {
      rows |= static_cast<uint32_t>(column / slice.count) << 4 * column;
      heads |= static_cast<uint32_t>(column % slice.count) << 4 * column;
    }
  }
  __device__ int32_t Row(int column) const { return static_cast<int32_t>(rows >> 4 * column & 15); }
  __device__ int32_t Head(int column) const {
    return static_cast<int32_t>(heads >> 4 * column & 15);
  }
};

struct ScoreParams {
  MetaRuns runs;
  const __nv_bfloat16* queries;  // [batch, query_heads * head_dim]
  int64_t query_stride;
  uint32_t num_rows;
  const MetaIndexView* indexes;
  uint32_t layer;
  GroupSlice slice;
  ColumnMap columns;
  int64_t max_clusters;
  float scale;
  float radius_weight;
  float* scores;
  float* ranks;  // null: none
};

// Row of the scores of a slice's first head.
__device__ int64_t FirstRow(const GroupSlice& slice, uint32_t sequence, uint32_t head) {
  return (static_cast<int64_t>(sequence) * gridDim.x + head) * slice.group + slice.first;
}

// What is needed of a cluster beside its centroid.
struct Cluster {
  uint32_t num_tokens;
  float scale;  // of its products
  float radius;
};

// Writes what is known of one (cluster, head).
__device__ void Write(const ScoreParams& params, int64_t at, const Cluster& cluster, float product,
                      float reach) {
  const bool is_empty = cluster.num_tokens == 0;
  const float score = cluster.scale * product;
  params.scores[at] = is_empty ? -INFINITY : score;
  if (params.ranks == nullptr) return;
  params.ranks[at] = is_empty ? -INFINITY : score + reach * cluster.radius;
}

// Two products of 16 centroids, 16 dimensions and 8 heads. `low` and `high`: 8 elements of rows
// lane / 4 and lane / 4 + 8 of the centroids; `query`: of head lane / 4.
__device__ void Multiply(const uint4& low, const uint4& high, const uint4& query, float (&even)[4],
                         float (&odd)[4]) {
  const auto multiply = [](uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                           uint32_t b1, float(&c)[4]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  };
  multiply(low.x, high.x, low.y, high.y, query.x, query.y, even);
  multiply(low.z, high.z, low.w, high.w, query.z, query.w, odd);
}

// Two int8, each in the lower half of 16 bits, as bf16: v = (128 + its low 7 bits) - (128 or, if
// its sign is set, 256), numbers that bf16 has.
__device__ uint32_t WidenPair(uint32_t pair) {
  const uint32_t magnitude = (pair & 0x007f007fu) | 0x43004300u;
  const uint32_t sign = (pair & 0x00800080u) | 0x43004300u;
  const __nv_bfloat162 numbers = __hsub2(reinterpret_cast<const __nv_bfloat162&>(magnitude),
                                         reinterpret_cast<const __nv_bfloat162&>(sign));
  return reinterpret_cast<const uint32_t&>(numbers);
}

// Eight int8 as bf16, in their order.
__device__ uint4 Widen(uint32_t first, uint32_t second) {
  return {WidenPair(__byte_perm(first, 0, 0x4140)), WidenPair(__byte_perm(first, 0, 0x4342)),
          WidenPair(__byte_perm(second, 0, 0x4140)), WidenPair(__byte_perm(second, 0, 0x4342))};
}

// Keeps the compiler from widening numbers ahead of a loop that does so: registers have no room for
// them.
template <int kChunks>
__device__ void StayPacked(uint4 (&chunks)[kChunks]) {
#pragma unroll
  for (uint4& chunk : chunks) {
    asm volatile("" : "+r"(chunk.x), "+r"(chunk.y), "+r"(chunk.z), "+r"(chunk.w));
  }
}

// The products of all chunks that a lane has of two rows of centroids, and of the queries.
template <typename Element, int kChunks, int kQueryChunks>
__device__ void MultiplyRows(const uint4 (&low)[kChunks], const uint4 (&high)[kChunks],
                             const uint4 (&query)[kQueryChunks], float (&even)[4],
                             float (&odd)[4]) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    if constexpr (std::is_same_v<Element, int8_t>) {
      Multiply(Widen(low[i].x, low[i].y), Widen(high[i].x, high[i].y), query[2 * i], even, odd);
      Multiply(Widen(low[i].z, low[i].w), Widen(high[i].z, high[i].w), query[2 * i + 1], even, odd);
    } else {
      Multiply(low[i], high[i], query[i], even, odd);
    }
  }
}

// What a lane has of two rows of centroids, eight rows apart: part `part` of four of each.
template <typename Element, int kDims>
struct LaneCentroids {
  static constexpr int kChunkElements = 16 / static_cast<int>(sizeof(Element));
  static constexpr int kChunks = kDims / 4 / kChunkElements;  // of 16 bytes
  uint4 low[kChunks], high[kChunks];

  // Begins to read rows `row` and `row` + 8 of those at `centroids`.
  __device__ LaneCentroids(const std::byte* centroids, int row, int part) {
    constexpr int kRowWords = kDims / kChunkElements;  // uint4
    const auto* from = reinterpret_cast<const uint4*>(centroids);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      low[i] = __ldcs(from + row * kRowWords + part + 4 * i);
      high[i] = __ldcs(from + (row + 8) * kRowWords + part + 4 * i);
    }
  }
};

// The scale of centroid `place` of a block in int8, behind the block's centroids.
template <int kDims>
__device__ float ScaleOf(const MetaRuns& runs, MetaBlockId block, uint32_t layer, uint32_t head,
                         uint32_t place) {
  return __half2float(reinterpret_cast<const __half*>(runs.Centroids(block, layer, head) +
                                                      kClustersPerMetaBlock * kDims)[place]);
}

__device__ float SumOfSquares(const uint4& packed) {
  float sum = 0;
  for (const uint32_t word : {packed.x, packed.y, packed.z, packed.w}) {
    const float low = __uint_as_float(word << 16);
    const float high = __uint_as_float(word & 0xffff0000u);
    sum += low * low + high * high;
  }
  return sum;
}

// What a lane has of one query: the dimensions that it has of centroids.
template <int kChunks>
struct LaneQuery {
  uint4 chunks[kChunks];

  __device__ float SumOfSquares() const {
    float sum = 0;
    for (const uint4& chunk : chunks) sum += cuda::SumOfSquares(chunk);
    return sum;
  }
};

// Begins to read this lane's part of a head's query of row `row`; zeros where it is not.
template <typename Element, int kDims>
__device__ LaneQuery<kDims / 32> ReadQuery(const ScoreParams& params, uint32_t row, int32_t head,
                                           bool is_there) {
  constexpr bool kIsInt8 = std::is_same_v<Element, int8_t>;
  const int part = static_cast<int>(threadIdx.x % 4);
  LaneQuery<kDims / 32> query = {};
  if (!is_there) return query;
  const int64_t first_head = static_cast<int64_t>(blockIdx.x) * params.slice.group;
  const auto* words =
      reinterpret_cast<const uint4*>(params.queries + row * params.query_stride +
                                     (first_head + params.slice.first + head) * kDims);
#pragma unroll
  for (int i = 0; i < kDims / 32; ++i) {
    const int word = kIsInt8 ? 8 * (i / 2) + i % 2 : 4 * i;
    query.chunks[i] = __ldcg(words + (kIsInt8 ? 2 : 1) * part + word);
  }
  return query;
}

// Scores the block's 64 clusters for `num_rows` rows from `first_row` on, which have this index.
template <typename Element, int kDims>
__device__ void ScoreRows(const ScoreParams& params, const MetaIndexView& index, uint32_t first_row,
                          int32_t num_rows, Cluster (&clusters)[kClustersPerMetaBlock]) {
  constexpr bool kIsInt8 = std::is_same_v<Element, int8_t>;
  const uint32_t head = blockIdx.x;
  const MetaBlockId block = index.block_ids[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x % 32), row = lane / 4, part = lane % 4;
  const uint32_t first = threadIdx.x / 32 * 16;

  LaneCentroids<Element, kDims> centroids(
      params.runs.Centroids(block, params.layer, head) + first * params.runs.centroid_bytes, row,
      part);
  // What products are multiplied with waits in shared memory: registers are full.
  __syncwarp();  // all lanes have read what was there for other rows
  if (part < 2) {
    const uint32_t place = first + static_cast<uint32_t>(row + 8 * part);
    const MetaEntry& entry = params.runs.Entries(block, params.layer, head)[place];
    float scale = params.scale;
    if constexpr (kIsInt8) {
      scale *= ScaleOf<kDims>(params.runs, block, params.layer, head, place);
    }
    clusters[place] = {entry.num_tokens, scale, entry.radius};
  }
  __syncwarp();
  // Of an index in use nothing is written, so all that was there before the queries.
  AwaitLastKernel();
#pragma unroll 1
  for (int32_t base = 0; base < num_rows; base += params.columns.num_rows) {
    // Columns of no row, at the end of a product or of the rows, have zeros.
    const int32_t end = min(params.columns.num_rows, num_rows - base);
    const uint32_t product_row = first_row + static_cast<uint32_t>(base);
    const int32_t own_row = params.columns.Row(row);
    const LaneQuery<kDims / 32> query =
        ReadQuery<Element, kDims>(params, product_row + static_cast<uint32_t>(own_row),
                                  params.columns.Head(row), own_row < end);
    float squares = query.SumOfSquares();
    squares += __shfl_xor_sync(kAllLanes, squares, 1);
    squares += __shfl_xor_sync(kAllLanes, squares, 2);
    const float reach = params.radius_weight * params.scale * sqrtf(squares);
    float even[4] = {}, odd[4] = {};
    if constexpr (kIsInt8) {
      StayPacked(centroids.low);
      StayPacked(centroids.high);
    }
    MultiplyRows<Element>(centroids.low, centroids.high, query.chunks, even, odd);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float reach_of_column = __shfl_sync(kAllLanes, reach, 8 * part + 4 * i);
      const int32_t row_of_column = params.columns.Row(2 * part + i);
      if (row_of_column >= end) continue;
      const uint32_t of_batch = product_row + static_cast<uint32_t>(row_of_column);
      const int64_t to =
          (FirstRow(params.slice, of_batch, head) + params.columns.Head(2 * part + i)) *
              params.max_clusters +
          blockIdx.y * kClustersPerMetaBlock;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t place = first + static_cast<uint32_t>(row + 8 * j);
        Write(params, to + place, clusters[place], even[i + 2 * j] + odd[i + 2 * j],
              reach_of_column);
      }
    }
  }
}

// Rows of one sequence together. grid: [kv_heads, max_clusters / 64]. A block takes all rows, those
// that are neighbours with the same index together.
template <typename Element, int kDims>
__global__ void __launch_bounds__(kThreads, kDims > 128 ? 4 : 8)
    ScoreJoinedRows(const ScoreParams params) {
  __shared__ Cluster clusters[kClustersPerMetaBlock];
  AllowNextKernel();
  for (uint32_t row = 0; row < params.num_rows;) {
    const MetaIndexView index = params.indexes[row];
    const uint32_t num_rows = NumJoined(params.indexes, row, params.num_rows);
    if (static_cast<int32_t>(blockIdx.y) < index.num_blocks) {
      ScoreRows<Element, kDims>(params, index, row, static_cast<int32_t>(num_rows), clusters);
    }
    row += num_rows;
  }
  AwaitLastKernel();
}

// A row by itself, which for rows of several sequences is a fifth faster than the above: what its
// products are multiplied with stays in registers. grid: [kv_heads, max_clusters / 64, batch]: the
// heads of a block are neighbours in memory, and of a long index each block is in another page of
// the address translation. Element: bf16, or int8 with scales behind the block's centroids.
template <typename Element, int kDims>
__global__ void __launch_bounds__(kThreads) ScoreTensor(const ScoreParams params) {
  constexpr bool kIsInt8 = std::is_same_v<Element, int8_t>;
  const uint32_t head = blockIdx.x, sequence = blockIdx.z;
  const MetaIndexView index = params.indexes[sequence];
  AllowNextKernel();
  if (static_cast<int32_t>(blockIdx.y) >= index.num_blocks) {
    AwaitLastKernel();
    return;
  }
  const MetaBlockId block = index.block_ids[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x % 32), row = lane / 4, part = lane % 4;
  const uint32_t first = threadIdx.x / 32 * 16;

  const LaneCentroids<Element, kDims> centroids(
      params.runs.Centroids(block, params.layer, head) + first * params.runs.centroid_bytes, row,
      part);
  const MetaEntry* entries = params.runs.Entries(block, params.layer, head) + first + row;
  Cluster of_lane[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    of_lane[i] = {entries[8 * i].num_tokens, params.scale, entries[8 * i].radius};
    if constexpr (kIsInt8) {
      of_lane[i].scale *= ScaleOf<kDims>(params.runs, block, params.layer, head,
                                         first + static_cast<uint32_t>(row + 8 * i));
    }
  }
  // Of an index in use nothing is written, so all that was there before the queries.
  AwaitLastKernel();
  const LaneQuery<kDims / 32> query =
      ReadQuery<Element, kDims>(params, sequence, row, row < params.slice.count);
  float squares = query.SumOfSquares();
  squares += __shfl_xor_sync(kAllLanes, squares, 1);
  squares += __shfl_xor_sync(kAllLanes, squares, 2);
  const float reach = params.radius_weight * params.scale * sqrtf(squares);
  const float reaches[2] = {__shfl_sync(kAllLanes, reach, 8 * part),
                            __shfl_sync(kAllLanes, reach, 8 * part + 4)};
  float even[4] = {}, odd[4] = {};
  MultiplyRows<Element>(centroids.low, centroids.high, query.chunks, even, odd);

  const int64_t first_row = FirstRow(params.slice, sequence, head) * params.max_clusters;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kClustersPerMetaBlock + first + row;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int query_head = 2 * part + i % 2;
    if (query_head >= params.slice.count) continue;
    Write(params, first_row + query_head * params.max_clusters + column + i / 2 * 8, of_lane[i / 2],
          even[i] + odd[i], reaches[i % 2]);
  }
}

// For f32 KV: a warp takes one cluster at a time. grid: [kv_heads, max_clusters / 64, batch].
template <int kDims>
__global__ void __launch_bounds__(kThreads) ScoreF32(const ScoreParams params) {
  constexpr int kPerLane = kDims / 32;
  const uint32_t head = blockIdx.x, sequence = blockIdx.z;
  const MetaIndexView index = params.indexes[sequence];
  AllowNextKernel();
  AwaitLastKernel();
  if (static_cast<int32_t>(blockIdx.y) >= index.num_blocks) return;
  const MetaBlockId block = index.block_ids[blockIdx.y];
  const uint32_t lane = threadIdx.x % 32;
  const auto* centroids =
      reinterpret_cast<const float*>(params.runs.Centroids(block, params.layer, head));
  const MetaEntry* entries = params.runs.Entries(block, params.layer, head);
  const auto sum_of_lanes = [](float sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    return sum;
  };
  for (int g = 0; g < params.slice.count; ++g) {
    const __nv_bfloat16* queries =
        params.queries + sequence * params.query_stride +
        (static_cast<int64_t>(head) * params.slice.group + params.slice.first + g) * kDims;
    float query[kPerLane];
    float squares = 0;
    for (int i = 0; i < kPerLane; ++i) {
      query[i] = __bfloat162float(queries[lane + 32 * i]);
      squares += query[i] * query[i];
    }
    const float reach = params.radius_weight * params.scale * sqrtf(sum_of_lanes(squares));
    for (uint32_t cluster = threadIdx.x / 32; cluster < kClustersPerMetaBlock;
         cluster += kThreads / 32) {
      float sum = 0;
      for (int i = 0; i < kPerLane; ++i) {
        sum += query[i] * centroids[cluster * kDims + lane + 32 * i];
      }
      sum = sum_of_lanes(sum);
      if (lane != 0) continue;
      const int64_t row = FirstRow(params.slice, sequence, head) + g;
      Write(params,
            row * params.max_clusters + static_cast<int64_t>(blockIdx.y) * kClustersPerMetaBlock +
                cluster,
            {entries[cluster].num_tokens, params.scale, entries[cluster].radius}, sum, reach);
    }
  }
}

template <int kDims>
auto KernelFor(DType centroid, bool joins_rows) {
  if (centroid == DType::kF32) return ScoreF32<kDims>;
  const bool is_int8 = centroid == DType::kInt8;
  if (joins_rows) {
    return is_int8 ? ScoreJoinedRows<int8_t, kDims> : ScoreJoinedRows<__nv_bfloat16, kDims>;
  }
  return is_int8 ? ScoreTensor<int8_t, kDims> : ScoreTensor<__nv_bfloat16, kDims>;
}

}  // namespace

absl::Status CentroidScore(CudaStream& stream, const CentroidScoreArgs& args) {
  RETURN_IF_ERROR(CheckCentroidScore(args, DType::kBf16));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  const KvGeometry& geometry = args.pool.geometry;
  const int64_t group = args.queries.cols / geometry.head_dim / geometry.num_kv_heads;
  RETURN_IF_ERROR(CheckArg(args.queries.row_stride % 8 == 0, "centroid_score",
                           "needs rows of queries aligned to 16 bytes"));
  if (args.queries.rows == 0 || args.max_clusters == 0) return absl::OkStatus();
  ScoreParams params{
      .runs = MetaRuns(args.pool),
      .queries = reinterpret_cast<const __nv_bfloat16*>(args.queries.data),
      .query_stride = args.queries.row_stride,
      .num_rows = static_cast<uint32_t>(args.queries.rows),
      .indexes = args.indexes.device_data(),
      .layer = args.layer,
      .slice = {},
      .columns = {},
      .max_clusters = args.max_clusters,
      .scale = args.scale,
      .radius_weight = args.radius_weight,
      .scores = args.scores.device_data(),
      .ranks = args.radius_weight != 0 ? args.ranks.device_data() : nullptr,
  };
  const DType centroid = geometry.format.centroid.element;
  const bool joins_rows = args.share_an_index && centroid != DType::kF32;
  const dim3 grid(geometry.num_kv_heads,
                  static_cast<uint32_t>(args.max_clusters / kClustersPerMetaBlock),
                  joins_rows ? 1 : static_cast<uint32_t>(args.queries.rows));
  const auto kernel = geometry.head_dim == 256   ? KernelFor<256>(centroid, joins_rows)
                      : geometry.head_dim == 128 ? KernelFor<128>(centroid, joins_rows)
                                                 : KernelFor<64>(centroid, joins_rows);
  return ForSlices(static_cast<int32_t>(group), kMaxHeads, [&](const GroupSlice& slice) {
    params.slice = slice;
    params.columns = ColumnMap(slice);
    return CudaStatus(
        LaunchDependent({.grid = grid, .block = dim3(kThreads), .stream = stream.get()}, kernel,
                        params),
        "centroid_score");
  });
}

}  // namespace retroinfer::cuda
