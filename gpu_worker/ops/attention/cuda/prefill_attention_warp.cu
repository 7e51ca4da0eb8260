// FlashAttention-2 (Dao 2023) with matrix products of single warps, for every device since compute
// capability 8.0. A block has a tile of 128 queries of one head, a warp 32 of them (64
// and 16 where a head has 256 numbers); tiles of 64
// keys and values come by asynchronous copies, one ahead. Bound by the tensor cores.
#include <cuda_bf16.h>

#include "gpu_worker/ops/attention/cuda/chosen_walk.cuh"
#include "gpu_worker/ops/attention/cuda/prefill_attention_window.cuh"
#include "gpu_worker/ops/attention/cuda/query_tile.cuh"
#include "gpu_worker/ops/cuda/warp_mma.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kStages = 2;

struct WarpParams {
  const __nv_bfloat16* queries;
  int64_t query_stride;
  const __nv_bfloat16* keys;
  const __nv_bfloat16* values;
  int64_t capacity;
  __nv_bfloat16* out;
  int64_t out_stride;
  int32_t group;
  int32_t num_queries;
  int32_t first_token;
  float scale_log2;
  PrefillWindow window;
  const float* sinks;
  ChosenBlocks chosen;
};

template <int kHeadDim>
constexpr int SharedBytes() {
  return (kTileQueries<kHeadDim> + 2 * kStages * kTileKeys) * kHeadDim *
         static_cast<int>(sizeof(__nv_bfloat16));
}

// Begins copying rows [0, num_rows) of [kRows, head_dim]; the others become zero.
template <int kHeadDim, int kRows>
__device__ void CopyRows(uint32_t tile, const __nv_bfloat16* rows, int64_t stride, int num_rows) {
  constexpr int kVectors = kHeadDim / 8;
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kVectors; i += kQueryThreads) {
    const int row = i / kVectors;
    const int column = i % kVectors * 8;
    const bool exists = row < num_rows;
    CopyAsync16(tile + TileOffset<kHeadDim>(row, column),
                rows + (exists ? row * stride + column : 0), exists ? 16 : 0);
  }
}

// A warp's queries.
template <int kHeadDim, bool kWindowed>
class WarpTile {
 public:
  using Walk = KeyWalk<kWindowed, kTileKeys>;

  __device__ WarpTile(const WarpParams& params, const Walk& walk, uint32_t queries, int first_query)
      : params_(params),
        walk_(walk),
        lane_(threadIdx.x % 32),
        first_query_(first_query + FirstRow()),
        tile_(queries, FirstRow(), params.scale_log2) {}

  __device__ void Attend(int step, uint32_t keys, uint32_t values) {
    const int first_position = params_.first_token + first_query_;
    const int last_position = first_position + 16 * kRowTiles<kHeadDim> - 1;
    if (walk_.HidesAll(step, first_position, last_position)) return;
    Scores scores = {};
    tile_.MultiplyKeys(keys, scores);
    if (walk_.Hides(step, first_position, last_position)) Mask(step, first_position, scores);
    tile_.Add(values, scores);
  }

  __device__ void Store(int query_head) const {
    __nv_bfloat16* out = params_.out + int64_t{query_head} * kHeadDim;
#pragma unroll
    for (int tile = 0; tile < kRowTiles<kHeadDim>; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = tile_.sum(tile, half);
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        sum +=
            WeightOfSink(params_.sinks, query_head, tile_.largest(tile, half) * params_.scale_log2);
        const int query = first_query_ + 16 * tile + 8 * half + lane_ / 4;
        if (query >= params_.num_queries) continue;
        __nv_bfloat16* row = out + query * params_.out_stride + 2 * (lane_ % 4);
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) {
          const float* acc = tile_.acc(tile, half, n);
          *reinterpret_cast<uint32_t*>(row + 8 * n) = PackBf16(acc[0] / sum, acc[1] / sum);
        }
      }
    }
  }

 private:
  using Tile = QueryTile<kHeadDim, kWindowed>;
  using Scores = typename Tile::Scores;

  __device__ static int FirstRow() {
    return static_cast<int>(threadIdx.x) / 32 * 16 * kRowTiles<kHeadDim>;
  }

  // Scores of keys that a query does not see become -inf.
  __device__ void Mask(int step, int first_position, Scores& scores) const {
    const int first_key = walk_.FirstKey(step);
#pragma unroll
    for (int tile = 0; tile < kRowTiles<kHeadDim>; ++tile) {
#pragma unroll
      for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first_key + 8 * n + 2 * (lane_ % 4) + i % 2;
          const int row = first_position + 16 * tile + lane_ / 4 + i / 2 * 8;
          const bool is_seen = key >= walk_.FirstOf(step, row) && key <= walk_.LastOf(step, row);
          if (!is_seen) scores[tile][n][i] = -INFINITY;
        }
      }
    }
  }

  const WarpParams& params_;
  const Walk& walk_;
  const int lane_;
  const int first_query_;
  Tile tile_;
};

// blockIdx.x: query head; blockIdx.y: tile from the last on, which sees the most keys.
// kChosen: blocks of keys are.
template <int kHeadDim, bool kWindowed, bool kChosen>
__global__ void __launch_bounds__(kQueryThreads, 2)
    WarpPrefillKernel(const __grid_constant__ WarpParams params) {
  extern __shared__ __align__(128) std::byte dynamic_shared[];
  constexpr uint32_t kTileBytes = kTileKeys * kHeadDim * sizeof(__nv_bfloat16);
  const uint32_t queries = SharedAddress(dynamic_shared);
  const uint32_t stages = queries + kTileQueries<kHeadDim> * kHeadDim * sizeof(__nv_bfloat16);
  const int query_head = static_cast<int>(blockIdx.x);
  const int first_query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kTileQueries<kHeadDim>;
  const int num_queries = min(kTileQueries<kHeadDim>, params.num_queries - first_query);
  const int end = params.first_token + first_query + num_queries;  // keys that the tile sees
  const KeyWalk<kWindowed, kTileKeys> walk(params.window, params.first_token + first_query);
  const int num_steps = walk.NumSteps(end);
  const int64_t kv_offset = query_head / params.group * params.capacity * kHeadDim;
  const auto copy_step = [&](int step, int stage) {
    const int first_key = walk.FirstKey(step);
    const int64_t offset = kv_offset + int64_t{first_key} * kHeadDim;
    const uint32_t keys = stages + stage * 2 * kTileBytes;
    const int rows = end - first_key;
    CopyRows<kHeadDim, kTileKeys>(keys, params.keys + offset, kHeadDim, rows);
    CopyRows<kHeadDim, kTileKeys>(keys + kTileBytes, params.values + offset, kHeadDim, rows);
  };
  CopyRows<kHeadDim, kTileQueries<kHeadDim>>(
      queries, params.queries + first_query * params.query_stride + int64_t{query_head} * kHeadDim,
      params.query_stride, num_queries);
  copy_step(0, 0);  // of the sink, which everybody passes
  CommitCopies();
  WarpTile<kHeadDim, kWindowed> tile(params, walk, queries, first_query);
  if constexpr (kChosen) {
    constexpr int kUnit = static_cast<int>(kQueryUnit);
    const ChosenWalk<kTileKeys> chosen(params.chosen, static_cast<int>(gridDim.x), query_head,
                                       first_query / kUnit, num_queries / kUnit);
    const int unit = static_cast<int>(threadIdx.x) / 32 * 16 * kRowTiles<kHeadDim> / kUnit;
    int stage = 0;
    for (int step = 0, next = 0; step < num_steps; step = next, stage ^= 1) {
      next = chosen.From(step + 1);
      WaitCopies<0>();
      __syncthreads();  // as below
      if (next < num_steps) copy_step(next, stage ^ 1);
      CommitCopies();
      const uint32_t keys = stages + stage * 2 * kTileBytes;
      if (chosen.Has(unit, step)) tile.Attend(step, keys, keys + kTileBytes);
    }
  } else {
    for (int step = 0; step < num_steps; ++step) {
      WaitCopies<0>();
      __syncthreads();  // the block is there, and nobody reads the other stage
      if (step + 1 < num_steps) copy_step(step + 1, (step + 1) % kStages);
      CommitCopies();
      const uint32_t keys = stages + step % kStages * 2 * kTileBytes;
      tile.Attend(step, keys, keys + kTileBytes);
    }
  }
  tile.Store(query_head);
}

template <int kHeadDim>
cudaError_t Launch(const PrefillLaunch& launch, cudaStream_t stream) {
  constexpr int kBytes = SharedBytes<kHeadDim>();
  const auto kernel = launch.chooses()       ? &WarpPrefillKernel<kHeadDim, false, true>
                      : launch.window.exists ? &WarpPrefillKernel<kHeadDim, true, false>
                                             : &WarpPrefillKernel<kHeadDim, false, false>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const auto elements = [](const std::byte* data) {
    return reinterpret_cast<const __nv_bfloat16*>(data);
  };
  const WarpParams params = {.queries = elements(launch.queries),
                             .query_stride = launch.query_stride,
                             .keys = elements(launch.keys),
                             .values = elements(launch.values),
                             .capacity = launch.capacity,
                             .out = reinterpret_cast<__nv_bfloat16*>(launch.out),
                             .out_stride = launch.out_stride,
                             .group = launch.group,
                             .num_queries = launch.num_queries,
                             .first_token = launch.first_token,
                             .scale_log2 = launch.scale_log2,
                             .window = launch.window,
                             .sinks = launch.sinks,
                             .chosen = launch.chosen};
  const dim3 grid(static_cast<unsigned>(launch.num_kv_heads * launch.group),
                  static_cast<unsigned>((int64_t{launch.num_queries} + kTileQueries<kHeadDim> - 1) /
                                        kTileQueries<kHeadDim>));
  kernel<<<grid, kQueryThreads, kBytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchWarpPrefill(const PrefillLaunch& launch, cudaStream_t stream) {
  switch (launch.head_dim) {
    case 64:
      return Launch<64>(launch, stream);
    case 128:
      return Launch<128>(launch, stream);
    case 256:
      return Launch<256>(launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace retroinfer::cuda
