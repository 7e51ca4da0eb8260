// FlashAttention-3 (Shah et al. 2024): a block has a tile of 128 queries of one head. One warpgroup
// copies tiles of 128 keys and values to shared memory, two take 64 queries each. Bound by the
// tensor cores; the exponentials need as long as the products, so they must run beside them:
//   - in a warpgroup, the softmax of block j runs beside the product of weights and values of
//     block j - 1, whose weights stay in registers;
//   - the two warpgroups take turns to issue products, so that one multiplies while the other is
//     at its softmax.
#include <cuda_bf16.h>

#include "gpu_worker/ops/attention/cuda/prefill_attention_window.cuh"
#include "gpu_worker/ops/cuda/warpgroup_mma.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kTileQueries = 128;
constexpr int kStages = 2;
constexpr int kConsumers = 2;  // warpgroups, of 64 queries each
constexpr int kThreads = 128 * (1 + kConsumers);
constexpr int kChunk = 64;              // columns of a swizzled row of 128 bytes
constexpr int kChunkBytes = 128 * 128;  // of a tile: 128 rows

struct HopperParams {
  __nv_bfloat16* out;
  int64_t out_stride;
  int32_t num_query_heads;
  int32_t group;
  int32_t num_queries;
  int32_t first_token;
  float scale_log2;
  PrefillWindow window;
  const float* sinks;
};

// Offsets in shared memory.
template <int kHeadDim>
struct Layout {
  static constexpr int kTileBytes = kHeadDim / kChunk * kChunkBytes;
  static constexpr int kQueries = 0;
  static constexpr int kKeys = kQueries + kTileBytes;
  static constexpr int kValues = kKeys + kStages * kTileBytes;
  static constexpr int kBarriers = kValues + kStages * kTileBytes;
  static constexpr int kBytes = kBarriers + 8 * (1 + 4 * kStages);
  static constexpr int kAlignment = 1024;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kTileKeys = 128;
constexpr int kGroupBytes = 8 * 128;  // of rows of a chunk that are swizzled together

// Addresses of a block's tiles and barriers.
template <int kHeadDim>
struct Tiles {
  using At = Layout<kHeadDim>;
  uint32_t base;

  __device__ uint32_t queries() const { return base + At::kQueries; }
  __device__ uint32_t keys(int stage) const { return base + At::kKeys + stage * At::kTileBytes; }
  __device__ uint32_t values(int stage) const {
    return base + At::kValues + stage * At::kTileBytes;
  }
  __device__ uint32_t queries_full() const { return base + At::kBarriers; }
  __device__ uint32_t keys_full(int stage) const { return Barrier(0, stage); }
  __device__ uint32_t keys_free(int stage) const { return Barrier(1, stage); }
  __device__ uint32_t values_full(int stage) const { return Barrier(2, stage); }
  __device__ uint32_t values_free(int stage) const { return Barrier(3, stage); }

 private:
  __device__ uint32_t Barrier(int kind, int stage) const {
    return base + At::kBarriers + 8 * (1 + kind * kStages + stage);
  }
};

// Stage of a step's block of keys, and the parity of its phase there.
__device__ int StageOf(int step) { return step % kStages; }
__device__ uint32_t ParityOf(int step) { return step / kStages & 1; }

// Copies [128 rows, head_dim] from row y on, chunk by chunk of columns.
template <int kHeadDim>
__device__ void CopyRows(const CUtensorMap& map, uint32_t shared, uint32_t barrier, int x, int y,
                         int z) {
  ArriveExpecting(barrier, Layout<kHeadDim>::kTileBytes);
#pragma unroll
  for (int chunk = 0; chunk < kHeadDim / kChunk; ++chunk) {
    CopyTile(map, shared + chunk * kChunkBytes, barrier, x + chunk * kChunk, y, z);
  }
}

// One thread's work.
template <int kHeadDim, typename Walk>
__device__ void Produce(const HopperPrefillMaps& maps, const Tiles<kHeadDim>& tiles,
                        const Walk& walk, int query_head, int kv_head, int first_query,
                        int num_steps) {
  CopyRows<kHeadDim>(maps.queries, tiles.queries(), tiles.queries_full(), query_head * kHeadDim,
                     first_query, 0);
  for (int step = 0; step < num_steps; ++step) {
    const int stage = StageOf(step);
    const int first_key = walk.FirstKey(step);
    const uint32_t free_parity = ParityOf(step) ^ 1;
    WaitBarrier(tiles.keys_free(stage), free_parity);
    CopyRows<kHeadDim>(maps.keys, tiles.keys(stage), tiles.keys_full(stage), 0, first_key, kv_head);
    WaitBarrier(tiles.values_free(stage), free_parity);
    CopyRows<kHeadDim>(maps.values, tiles.values(stage), tiles.values_full(stage), 0, first_key,
                       kv_head);
  }
}

// The softmax of the two rows that a thread shares with three others: lane i of a warp has rows
// i / 4 and i / 4 + 8, and of every 8 columns 2 (i % 4) and the next. Row r of a thread is in
// elements with bit 1 equal to r.
struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};  // of this thread's columns

  // Turns scores into weights; returns in `keep` what the sums so far have to be multiplied by.
  template <bool kWindowed>
  __device__ void Update(float (&scores)[64], float scale_log2, float (&keep)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float next = largest[row];
#pragma unroll
      for (int i = 0; i < 64; i += 4) {
        next = fmaxf(next, fmaxf(scores[i + 2 * row], scores[i + 2 * row + 1]));
      }
      next = fmaxf(next, __shfl_xor_sync(~0u, next, 1));
      next = fmaxf(next, __shfl_xor_sync(~0u, next, 2));
      const float anchor = Anchor<kWindowed>(next);
      const float offset = anchor * scale_log2;
      // The difference first: a block that a query sees nothing of must keep sums as they are.
      keep[row] = Exp2((largest[row] - anchor) * scale_log2);
      largest[row] = next;
      float total = 0;
#pragma unroll
      for (int i = 0; i < 64; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& score = scores[i + 2 * row + j];
          score = Exp2(fmaf(score, scale_log2, -offset));
          total += score;
        }
      }
      sum[row] = sum[row] * keep[row] + total;
    }
  }
  __device__ float WholeSum(int row) const {
    float whole = sum[row];
    whole += __shfl_xor_sync(~0u, whole, 1);
    whole += __shfl_xor_sync(~0u, whole, 2);
    return whole;
  }
};

// A consumer warpgroup.
template <int kHeadDim, bool kWindowed>
class Consumer {
 public:
  using Walk = KeyWalk<kWindowed, kTileKeys>;

  __device__ Consumer(const HopperParams& params, const Walk& walk, const Tiles<kHeadDim>& tiles,
                      int first_query, int index)
      : params_(params),
        walk_(walk),
        tiles_(tiles),
        index_(index),
        first_query_(first_query + 64 * index_),
        row_(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4),
        column_(2 * (threadIdx.x % 4)) {}

  __device__ void Run(int num_steps, int query_head) {
    float scores[64];
    float keep[2];
    WaitBarrier(tiles_.queries_full(), 0);
    if (index_ == 1 && num_steps > 1) ArriveThreads(kTurn, kTurnThreads);
    WaitBarrier(tiles_.keys_full(0), 0);
    BeginProducts();
    IssueScores(0, scores);
    CommitProducts();
    WaitProducts<0>();
    KeepOrder(scores);
    Release(tiles_.keys_free(0));
    Mask(0, scores);
    softmax_.template Update<kWindowed>(scores, params_.scale_log2, keep);
    PackWeights(scores);
    for (int step = 1; step < num_steps; ++step) {
      const int stage = StageOf(step);
      const int last_stage = StageOf(step - 1);
      WaitBarrier(tiles_.keys_full(stage), ParityOf(step));
      SyncThreads(kTurn + index_, kTurnThreads);
      KeepOrder(acc_);
      KeepOrder(weights_);
      BeginProducts();
      IssueScores(stage, scores);
      CommitProducts();
      WaitBarrier(tiles_.values_full(last_stage), ParityOf(step - 1));
      IssueValues(last_stage);
      CommitProducts();
      if (index_ == 0 || step + 1 < num_steps) {
        ArriveThreads(kTurn + (index_ ^ 1), kTurnThreads);
      }
      WaitProducts<1>();
      KeepOrder(scores);
      Release(tiles_.keys_free(stage));
      Mask(step, scores);
      softmax_.template Update<kWindowed>(scores, params_.scale_log2, keep);
      WaitProducts<0>();
      KeepOrder(acc_);
      KeepOrder(scores);
      Release(tiles_.values_free(last_stage));
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) acc_[i] *= keep[i / 2 % 2];
      PackWeights(scores);
    }
    WaitBarrier(tiles_.values_full(StageOf(num_steps - 1)), ParityOf(num_steps - 1));
    KeepOrder(acc_);
    KeepOrder(weights_);
    BeginProducts();
    IssueValues(StageOf(num_steps - 1));
    CommitProducts();
    WaitProducts<0>();
    KeepOrder(acc_);
    Store(query_head);
  }

 private:
  static constexpr int kTurn = 1;  // and the next: barriers of the two warpgroups' turns
  static constexpr int kTurnThreads = 128 * kConsumers;
  static constexpr int kSteps = kHeadDim / 16;

  __device__ void IssueScores(int stage, float (&scores)[64]) {
    const uint32_t queries = tiles_.queries() + index_ * 64 * 128;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t offset = step / 4 * kChunkBytes + step % 4 * 32;
      MultiplyShared(TileDescriptor(queries + offset, kGroupBytes, 16),
                     TileDescriptor(tiles_.keys(stage) + offset, kGroupBytes, 16), step > 0,
                     scores);
    }
  }
  __device__ void IssueValues(int stage) {
#pragma unroll
    for (int step = 0; step < kTileKeys / 16; ++step) {
      const uint32_t values = tiles_.values(stage) + step * 2 * kGroupBytes;
      MultiplyRegisters(weights_ + 4 * step, TileDescriptor(values, kGroupBytes, kChunkBytes),
                        acc_);
    }
  }
  // Scores of keys that a query does not see become -inf.
  __device__ void Mask(int step, float (&scores)[64]) const {
    const int first_key = walk_.FirstKey(step);
    const int first_position = params_.first_token + first_query_;
    if (!walk_.Hides(step, first_position, first_position + 63)) return;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int position = first_position + row_ + 8 * row;
      const int last_column = walk_.LastOf(step, position) - first_key - column_;
      const int first_column = walk_.FirstOf(step, position) - first_key - column_;
#pragma unroll
      for (int i = 0; i < 64; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (2 * i + j > last_column) scores[i + 2 * row + j] = -INFINITY;
          if constexpr (kWindowed) {
            if (2 * i + j < first_column) scores[i + 2 * row + j] = -INFINITY;
          }
        }
      }
    }
  }
  // Products' results lie as their operands do, but for the rounding.
  __device__ void PackWeights(const float (&scores)[64]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) weights_[i] = PackBf16(scores[2 * i], scores[2 * i + 1]);
  }
  __device__ void Release(uint32_t barrier) const {
    if (threadIdx.x % 32 == 0) Arrive(barrier);
  }
  __device__ void Store(int query_head) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float of_sink =
          WeightOfSink(params_.sinks, query_head, softmax_.largest[row] * params_.scale_log2);
      const float factor = 1.0f / (softmax_.WholeSum(row) + of_sink);
      const int query = first_query_ + row_ + 8 * row;
      if (query >= params_.num_queries) continue;
      __nv_bfloat16* out =
          params_.out + query * params_.out_stride + int64_t{query_head} * kHeadDim + column_;
#pragma unroll
      for (int i = 2 * row; i < kHeadDim / 2; i += 4) {
        *reinterpret_cast<uint32_t*>(out + i / 4 * 8) =
            PackBf16(acc_[i] * factor, acc_[i + 1] * factor);
      }
    }
  }

  const HopperParams& params_;
  const Walk& walk_;
  const Tiles<kHeadDim>& tiles_;
  const int index_;
  const int first_query_;
  const int row_;     // of this thread's first row in the warpgroup's 64
  const int column_;  // of its first column in 8
  Softmax softmax_;
  float acc_[kHeadDim / 2] = {};
  uint32_t weights_[32];
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// blockIdx.x: query head within its turn, then tiles from the last, which sees the most keys.
template <int kHeadDim, bool kWindowed>
__global__ void __launch_bounds__(kThreads, 1)
    HopperPrefillKernel(const __grid_constant__ HopperPrefillMaps maps,
                        const __grid_constant__ HopperParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte dynamic_shared[];
  constexpr uint32_t kAlignment = Layout<kHeadDim>::kAlignment;
  const Tiles<kHeadDim> tiles{(SharedAddress(dynamic_shared) + kAlignment - 1) / kAlignment *
                              kAlignment};
  const int query_head = blockIdx.x % params.num_query_heads;
  const int num_tiles = (params.num_queries + kTileQueries - 1) / kTileQueries;
  const int first_query =
      (num_tiles - 1 - static_cast<int>(blockIdx.x) / params.num_query_heads) * kTileQueries;
  const int end =
      params.first_token + min(first_query + kTileQueries, params.num_queries);  // keys seen
  const KeyWalk<kWindowed, kTileKeys> walk(params.window, params.first_token + first_query);
  const int num_steps = walk.NumSteps(end);
  if (threadIdx.x == 0) {
    InitBarrier(tiles.queries_full(), 1);
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(tiles.keys_full(stage), 1);
      InitBarrier(tiles.values_full(stage), 1);
      InitBarrier(tiles.keys_free(stage), 4 * kConsumers);
      InitBarrier(tiles.values_free(stage), 4 * kConsumers);
    }
    PublishBarriers();
  }
  __syncthreads();
  // As a value that the compiler knows to be the same in a whole warp.
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == 0) {
    GiveRegisters<24>();
    if (threadIdx.x == 0) {
      Produce(maps, tiles, walk, query_head, query_head / params.group, first_query, num_steps);
    }
  } else {
    TakeRegisters<240>();
    Consumer<kHeadDim, kWindowed>(params, walk, tiles, first_query, warpgroup - 1)
        .Run(num_steps, query_head);
  }
#endif
}

template <int kHeadDim>
cudaError_t Launch(const PrefillLaunch& launch, const HopperPrefillMaps& maps,
                   cudaStream_t stream) {
  constexpr int kBytes = Layout<kHeadDim>::kBytes + Layout<kHeadDim>::kAlignment;
  const auto kernel = launch.window.exists ? &HopperPrefillKernel<kHeadDim, true>
                                           : &HopperPrefillKernel<kHeadDim, false>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const int32_t query_heads = launch.num_kv_heads * launch.group;
  const int64_t tiles = (int64_t{launch.num_queries} + kTileQueries - 1) / kTileQueries;
  const HopperParams params = {.out = reinterpret_cast<__nv_bfloat16*>(launch.out),
                               .out_stride = launch.out_stride,
                               .num_query_heads = query_heads,
                               .group = launch.group,
                               .num_queries = launch.num_queries,
                               .first_token = launch.first_token,
                               .scale_log2 = launch.scale_log2,
                               .window = launch.window,
                               .sinks = launch.sinks};
  kernel<<<static_cast<unsigned>(tiles * query_heads), kThreads, kBytes, stream>>>(maps, params);
  return cudaGetLastError();
}

}  // namespace

bool HasHopperPrefill() { return RETROINFER_SM90A != 0; }

cudaError_t LaunchHopperPrefill(const PrefillLaunch& launch, const HopperPrefillMaps& maps,
                                cudaStream_t stream) {
  switch (launch.head_dim) {
    case 64:
      return Launch<64>(launch, maps, stream);
    case 128:
      return Launch<128>(launch, maps, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace retroinfer::cuda
