// As prefill_attention_hopper.cu, over blocks that are chosen. The two warpgroups of a block have
// neighbouring units of a head, which choose alike (docs/decisions/0097-sparse-prefill.md), so the
// blocks that either of them has are copied once, in order; a warpgroup lets those pass that are
// not its own.
//
// Invariants:
//   - What a unit sums up, and in which order, follows from its own blocks alone.
//   - A warpgroup holds weights back for its next own block only where that is within kStages
//   steps:
//     until then the values stay in their stage, and the producer gets no further.
//   - Turns are taken at blocks of both.
#include "gpu_worker/ops/attention/cuda/prefill_attention_hopper.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kStages = 3;

// A step as the producer tells of it, in shared memory behind the barriers: a block, whose it is,
// and who may hold weights of it back.
template <int kHeadDim>
struct Layout : HopperLayout<kHeadDim, kStages> {
  static constexpr int kEntries = HopperLayout<kHeadDim, kStages>::kBytes;
  static constexpr int kBytes = kEntries + 4 * kStages;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr uint32_t kEnd = ~0u;
constexpr uint32_t kBlockMask = (1u << 24) - 1;
constexpr uint32_t kIsOf = 1u << 24;  // shifted by the warpgroup
constexpr uint32_t kIsOfBoth = 3 * kIsOf;
constexpr uint32_t kMayHold = 1u << 26;  // shifted by the warpgroup

template <int kHeadDim>
struct Tiles : HopperTiles<kHeadDim, kStages> {
  __device__ uint32_t entry(int stage) const {
    return this->base + Layout<kHeadDim>::kEntries + 4 * stage;
  }
};

__device__ void StoreShared(uint32_t shared, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(shared), "r"(value) : "memory");
}
__device__ uint32_t LoadShared(uint32_t shared) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(value) : "r"(shared) : "memory");
  return value;
}

// A stage of a step, and the parity of its phase there.
struct Place {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void Advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// The blocks of two units, in order.
class BlockWalk {
 public:
  // `second`: null if there is one unit.
  __device__ BlockWalk(const uint32_t* first, const uint32_t* second, int num_words)
      : first_(first), second_(second), num_words_(num_words) {
    Load();
  }

  __device__ uint32_t Next() {
    while ((of_first_ | of_second_) == 0) {
      if (word_ == num_words_) return kEnd;
      of_first_ = next_of_first_;
      of_second_ = next_of_second_;
      ++word_;
      Load();
    }
    const uint32_t any = of_first_ | of_second_;
    const uint32_t bit = any & (0u - any);
    uint32_t entry = static_cast<uint32_t>(32 * (word_ - 1) + __ffs(static_cast<int>(any)) - 1);
    if ((of_first_ & bit) != 0) entry |= kIsOf;
    if ((of_second_ & bit) != 0) entry |= kIsOf << 1;
    of_first_ &= ~bit;
    of_second_ &= ~bit;
    return entry;
  }

 private:
  // Begins to load the word behind those that were taken.
  __device__ void Load() {
    if (word_ == num_words_) return;
    next_of_first_ = __ldg(first_ + word_);
    next_of_second_ = second_ == nullptr ? 0 : __ldg(second_ + word_);
  }

  const uint32_t* const first_;
  const uint32_t* const second_;
  const int num_words_;
  int word_ = 0;  // words taken
  uint32_t of_first_ = 0, of_second_ = 0;
  uint32_t next_of_first_ = 0, next_of_second_ = 0;
};

// One thread's work.
template <int kHeadDim>
__device__ void Produce(const HopperPrefillMaps& maps, const Tiles<kHeadDim>& tiles, BlockWalk walk,
                        int query_head, int kv_head, int first_query) {
  CopyRows<kHeadDim>(maps.queries, tiles.queries(), tiles.queries_full(), query_head * kHeadDim,
                     first_query, 0);
  uint32_t upcoming[kStages + 1];
#pragma unroll
  for (uint32_t& entry : upcoming) entry = walk.Next();
  for (Place at;; at.Advance()) {
    uint32_t entry = upcoming[0];
    WaitBarrier(tiles.keys_free(at.stage), at.parity ^ 1);
    if (entry == kEnd) {
      StoreShared(tiles.entry(at.stage), kEnd);
      Arrive(tiles.keys_full(at.stage));
      return;
    }
    const int first_key = static_cast<int>(entry & kBlockMask) * kTileKeys;
#pragma unroll
    for (int i = 1; i <= kStages; ++i) {
      if (upcoming[i] != kEnd) entry |= (upcoming[i] & kIsOfBoth) * (kMayHold / kIsOf);
    }
    StoreShared(tiles.entry(at.stage), entry);
    CopyRows<kHeadDim>(maps.keys, tiles.keys(at.stage), tiles.keys_full(at.stage), 0, first_key,
                       kv_head);
    WaitBarrier(tiles.values_free(at.stage), at.parity ^ 1);
    CopyRows<kHeadDim>(maps.values, tiles.values(at.stage), tiles.values_full(at.stage), 0,
                       first_key, kv_head);
#pragma unroll
    for (int i = 0; i < kStages; ++i) upcoming[i] = upcoming[i + 1];
    upcoming[kStages] = walk.Next();
  }
}

// A consumer warpgroup.
template <int kHeadDim>
class Consumer : HopperQueries<kHeadDim, Tiles<kHeadDim>> {
  using Base = HopperQueries<kHeadDim, Tiles<kHeadDim>>;

 public:
  using Base::Base;

  __device__ void Run(int query_head) {
    WaitBarrier(tiles_.queries_full(), 0);
    if (index_ == 1) ArriveThreads(kTurn, kTurnThreads);
    bool holds = false;
    Place held;
    for (Place at;; at.Advance()) {
      WaitBarrier(tiles_.keys_full(at.stage), at.parity);
      // As a value that the compiler knows to be the same in a whole warp.
      const uint32_t entry = __shfl_sync(~0u, LoadShared(tiles_.entry(at.stage)), 0);
      if (entry == kEnd) break;
      if ((entry & kIsOf << index_) == 0) {
        LetPass(at);
        continue;
      }
      if (holds) {
        AttendBehind(entry, at, held);
      } else {
        Attend(entry, at);
      }
      holds = (entry & kMayHold << index_) != 0;
      held = at;
      if (!holds) MultiplyHeld(held);
    }
    // The turn that the other's last block gave.
    if (index_ == 0) SyncThreads(kTurn, kTurnThreads);
    Store(query_head);
  }

 private:
  using Base::acc_, Base::column_, Base::first_query_, Base::index_, Base::kTurn,
      Base::kTurnThreads, Base::params_, Base::row_, Base::softmax_, Base::tiles_, Base::weights_;
  using Base::IssueScores, Base::IssueValues, Base::PackWeights, Base::Release, Base::Store;

  // A stage is left only when it is full: only then has everybody left its phase before.
  __device__ void LetPass(const Place& at) const {
    Release(tiles_.keys_free(at.stage));
    WaitBarrier(tiles_.values_full(at.stage), at.parity);
    Release(tiles_.values_free(at.stage));
  }
  __device__ void AwaitTurn(uint32_t entry) const {
    if ((entry & kIsOfBoth) == kIsOfBoth) SyncThreads(kTurn + index_, kTurnThreads);
  }
  __device__ void GiveTurn(uint32_t entry) const {
    if ((entry & kIsOfBoth) == kIsOfBoth) ArriveThreads(kTurn + (index_ ^ 1), kTurnThreads);
  }

  // Makes weights of the block's keys.
  __device__ void Attend(uint32_t entry, const Place& at) {
    float scores[64];
    float keep[2];
    AwaitTurn(entry);
    BeginProducts();
    IssueScores(at.stage, scores);
    CommitProducts();
    GiveTurn(entry);
    WaitProducts<0>();
    KeepOrder(scores);
    Release(tiles_.keys_free(at.stage));
    Mask(entry, scores);
    softmax_.template Update<false>(scores, params_.scale_log2, keep);
    Scale(keep);
    PackWeights(scores);
  }
  // The same, while weights that were held back are multiplied with their values.
  __device__ void AttendBehind(uint32_t entry, const Place& at, const Place& held) {
    float scores[64];
    float keep[2];
    AwaitTurn(entry);
    KeepOrder(acc_);
    KeepOrder(weights_);
    BeginProducts();
    IssueScores(at.stage, scores);
    CommitProducts();
    WaitBarrier(tiles_.values_full(held.stage), held.parity);
    BeginProducts();
    IssueValues(held.stage);
    CommitProducts();
    GiveTurn(entry);
    WaitProducts<1>();
    KeepOrder(scores);
    Release(tiles_.keys_free(at.stage));
    Mask(entry, scores);
    softmax_.template Update<false>(scores, params_.scale_log2, keep);
    WaitProducts<0>();
    KeepOrder(acc_);
    KeepOrder(scores);
    Release(tiles_.values_free(held.stage));
    Scale(keep);
    PackWeights(scores);
  }
  __device__ void MultiplyHeld(const Place& held) {
    WaitBarrier(tiles_.values_full(held.stage), held.parity);
    KeepOrder(acc_);
    KeepOrder(weights_);
    BeginProducts();
    IssueValues(held.stage);
    CommitProducts();
    WaitProducts<0>();
    KeepOrder(acc_);
    Release(tiles_.values_free(held.stage));
  }
  __device__ void Scale(const float (&keep)[2]) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) acc_[i] *= keep[i / 2 % 2];
  }
  // Scores of keys behind a query become -inf.
  __device__ void Mask(uint32_t entry, float (&scores)[64]) const {
    const int first_key = static_cast<int>(entry & kBlockMask) * kTileKeys;
    const int first_position = params_.first_token + first_query_;
    if (first_key + kTileKeys - 1 <= first_position) return;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int last_column = first_position + row_ + 8 * row - first_key - column_;
#pragma unroll
      for (int i = 0; i < 64; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (2 * i + j > last_column) scores[i + 2 * row + j] = -INFINITY;
        }
      }
    }
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// blockIdx.x: a place of params.order.
template <int kHeadDim>
__global__ void __launch_bounds__(kHopperThreads, 1)
    HopperChosenPrefillKernel(const __grid_constant__ HopperPrefillMaps maps,
                              const __grid_constant__ HopperParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte dynamic_shared[];
  constexpr uint32_t kAlignment = Layout<kHeadDim>::kAlignment;
  const Tiles<kHeadDim> tiles{
      {(SharedAddress(dynamic_shared) + kAlignment - 1) / kAlignment * kAlignment}};
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
  const int place = __ldg(params.order + blockIdx.x);
  const int query_head = place % params.num_query_heads;
  const int first_query = place / params.num_query_heads * kTileQueries;
  // As a value that the compiler knows to be the same in a whole warp.
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == 0) {
    GiveRegisters<24>();
    if (threadIdx.x == 0) {
      const int num_words = params.chosen.words_of_pair;
      const uint32_t* const first =
          params.chosen.words +
          (int64_t{first_query / 64} * params.num_query_heads + query_head) * num_words;
      const uint32_t* const second = first_query + 64 < params.num_queries
                                         ? first + int64_t{params.num_query_heads} * num_words
                                         : nullptr;
      Produce(maps, tiles, BlockWalk(first, second, num_words), query_head,
              query_head / params.group, first_query);
    }
  } else {
    TakeRegisters<240>();
    Consumer<kHeadDim>(params, tiles, first_query, warpgroup - 1).Run(query_head);
  }
#endif
}

template <int kHeadDim>
cudaError_t Launch(const PrefillLaunch& launch, const HopperPrefillMaps& maps,
                   cudaStream_t stream) {
  constexpr int kBytes = Layout<kHeadDim>::kBytes + Layout<kHeadDim>::kAlignment;
  const auto kernel = &HopperChosenPrefillKernel<kHeadDim>;
  return LaunchHopperKernel(kernel, kBytes, launch, maps, stream);
}

}  // namespace

cudaError_t LaunchHopperChosenPrefill(const PrefillLaunch& launch, const HopperPrefillMaps& maps,
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
