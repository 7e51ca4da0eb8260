// FlashAttention-3 (Shah et al. 2024): a block has a tile of 128 queries of one head. One warpgroup
// copies tiles of 128 keys and values to shared memory, two take 64 queries each. Bound by the
// tensor cores; the exponentials need as long as the products, so they must run beside them:
//   - in a warpgroup, the softmax of block j runs beside the product of weights and values of
//     block j - 1, whose weights stay in registers;
//   - the two warpgroups take turns to issue products, so that one multiplies while the other is
//     at its softmax.
#include "gpu_worker/ops/attention/cuda/prefill_attention_hopper.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kStages = 2;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kHeadDim>
using Tiles = HopperTiles<kHeadDim, kStages>;

// Stage of a step's block of keys, and the parity of its phase there.
__device__ int StageOf(int step) { return step % kStages; }
__device__ uint32_t ParityOf(int step) { return step / kStages & 1; }

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

// A consumer warpgroup.
template <int kHeadDim, bool kWindowed>
class Consumer : HopperQueries<kHeadDim, Tiles<kHeadDim>> {
  using Base = HopperQueries<kHeadDim, Tiles<kHeadDim>>;

 public:
  using Walk = KeyWalk<kWindowed, kTileKeys>;

  __device__ Consumer(const HopperParams& params, const Walk& walk, const Tiles<kHeadDim>& tiles,
                      int first_query, int index)
      : Base(params, tiles, first_query, index), walk_(walk) {}

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
  using Base::acc_, Base::column_, Base::first_query_, Base::index_, Base::kTurn,
      Base::kTurnThreads, Base::params_, Base::row_, Base::softmax_, Base::tiles_, Base::weights_;
  using Base::IssueScores, Base::IssueValues, Base::PackWeights, Base::Release, Base::Store;

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

  const Walk& walk_;
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// blockIdx.x: query head within its turn, then tiles from the last, which sees the most keys.
template <int kHeadDim, bool kWindowed>
__global__ void __launch_bounds__(kHopperThreads, 1)
    HopperPrefillKernel(const __grid_constant__ HopperPrefillMaps maps,
                        const __grid_constant__ HopperParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte dynamic_shared[];
  constexpr uint32_t kAlignment = HopperLayout<kHeadDim, kStages>::kAlignment;
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
  constexpr int kBytes =
      HopperLayout<kHeadDim, kStages>::kBytes + HopperLayout<kHeadDim, kStages>::kAlignment;
  const auto kernel = launch.window.exists ? &HopperPrefillKernel<kHeadDim, true>
                                           : &HopperPrefillKernel<kHeadDim, false>;
  return LaunchHopperKernel(kernel, kBytes, launch, maps, stream);
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
