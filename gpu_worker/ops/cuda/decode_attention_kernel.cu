// Split-KV attention in one kernel. Bound by memory: it must read every KV byte once, so what
// counts is bytes under way. Each warp has tiles of its own and a ring of stages in shared memory
// that asynchronous copies fill ahead of it, across the ends of parts; warps meet only at those
// ends. A part's result goes to scratch; the block that finishes the last part of a unit merges
// them.
#include <type_traits>

#include "gpu_worker/ops/cuda/decode_attention_kernel.h"
#include "gpu_worker/ops/cuda/decode_attention_plan.cuh"
#include "gpu_worker/ops/cuda/decode_attention_state.cuh"
#include "gpu_worker/ops/cuda/warp_mma.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kBlocksOfProcessor = 2;

template <typename Kv, int kHeadDim>
struct Config {
  static constexpr bool kTensor = std::is_same_v<Kv, __nv_bfloat16>;
  static constexpr int kTokensOfPage = static_cast<int>(kPageBytes / (2 * kHeadDim * sizeof(Kv)));
  static constexpr int kPagesOfTile = kTileTokens / kTokensOfPage;
  static constexpr int kTileBytes = kTensor ? TensorState<kHeadDim>::kTileBytes : 16;
  // 24 KiB for each warp: 192 KiB on a multiprocessor, of which two thirds are under way.
  static constexpr int kStages = kTensor ? 3 * 128 / kHeadDim : 1;
};

template <typename C, int kHeadDim>
struct alignas(128) Shared {
  std::byte tiles[kDecodeWarps][C::kStages][C::kTileBytes];
  union {
    DecodePlanScratch plan;
    WarpResults<kHeadDim> results;
  };
  DecodePart parts[kMaxPartsOfBlock];
  uint32_t masks[kDecodeWarps][C::kStages];
  int32_t total_parts;
  int32_t num_published;              // parts whose results are in scratch
  int32_t num_counted;                // of these, by the counter
  unsigned long long complete_parts;  // bit p: part p was its unit's last; the counter's
  unsigned long long merges;          // the same, not merged yet; the other warps'
};
static_assert(kMaxPartsOfBlock <= 64);

// Waits for the warps that attend.
__device__ void MeetWarps() { asm volatile("bar.sync 1, %0;\n" ::"n"(kDecodeThreads) : "memory"); }

template <typename T>
__device__ T ReadShared(const T& value) {
  return *const_cast<const volatile T*>(&value);
}
template <typename T>
__device__ void WriteShared(T& place, T value) {
  *const_cast<volatile T*>(&place) = value;
}

__device__ float2* PartMaxSums(const DecodeLaunch& launch) {
  return reinterpret_cast<float2*>(launch.scratch + kDecodeCounterBytes);
}
__device__ float* PartValues(const DecodeLaunch& launch) {
  return reinterpret_cast<float*>(PartMaxSums(launch) +
                                  MaxDecodeParts(launch.num_sequences) * launch.group);
}

// Fills a warp's ring of stages with the tiles of all parts of its block, in order.
template <typename C, int kHeadDim>
class TileFeeder {
 public:
  __device__ TileFeeder(const DecodeLaunch& launch, Shared<C, kHeadDim>& shared, int32_t num_parts,
                        int32_t warp)
      : launch_(launch),
        shared_(shared),
        num_parts_(num_parts),
        warp_(warp),
        lane_(static_cast<int32_t>(threadIdx.x % 32)) {
    if (num_parts_ > 0) tile_ = shared_.parts[0].begin + warp_;
    Request();
  }

  // Begins to copy the next tile, if any, to a stage; and closes the group.
  __device__ void Copy(int32_t stage) {
    if (part_ < num_parts_) {
      CopyPages(stage);
      tile_ += kDecodeWarps;
      Request();
    }
    CommitCopies();
  }

 private:
  // Steps to a part that has a tile left, and asks where its pages are: a lane for each page.
  __device__ void Request() {
    while (part_ < num_parts_ && tile_ >= shared_.parts[part_].end) {
      if (++part_ < num_parts_) tile_ = shared_.parts[part_].begin + warp_;
    }
    if (part_ < num_parts_) {
      request_ = RequestPage<C::kTokensOfPage>(shared_.parts[part_], tile_, lane_);
    }
  }

  __device__ void CopyPages(int32_t stage) {
    using State = TensorState<kHeadDim>;
    constexpr int kPiecesOfRow = State::kRowBytes / 16;
    constexpr int kPiecesOfPage = static_cast<int>(kPageBytes / 16);
    const auto address =
        reinterpret_cast<unsigned long long>(ResolvePage<C::kTokensOfPage>(launch_, request_));
    const uint32_t there = (1u << min(request_.tokens, C::kTokensOfPage)) - 1;
    const uint32_t mask =
        __reduce_or_sync(~0u, lane_ < C::kPagesOfTile ? there << lane_ * C::kTokensOfPage : 0u);
    if (lane_ == 0) shared_.masks[warp_][stage] = mask;
    const uint32_t tile = SharedAddress(shared_.tiles[warp_][stage]);
#pragma unroll
    for (int page = 0; page < C::kPagesOfTile; ++page) {
      const auto* source = reinterpret_cast<const std::byte*>(__shfl_sync(~0u, address, page));
#pragma unroll
      for (int first = 0; first < kPiecesOfPage; first += 32) {
        const int32_t piece = first + lane_;
        const int32_t is_value = first / (kPiecesOfPage / 2);
        const int32_t row = page * C::kTokensOfPage + piece % (kPiecesOfPage / 2) / kPiecesOfRow;
        CopyAsync16(tile + is_value * kTileTokens * State::kRowBytes +
                        State::PieceOffset(row, piece % kPiecesOfRow),
                    source + piece * 16, (mask >> row & 1) * 16);
      }
    }
  }

  const DecodeLaunch& launch_;
  Shared<C, kHeadDim>& shared_;
  const int32_t num_parts_, warp_, lane_;
  int32_t part_ = 0;
  int32_t tile_ = 0;
  PageRequest request_ = {};
};

// Merges the parts of a unit and the estimate into out: a warp for each query head in turn.
template <int kHeadDim>
__device__ void MergeParts(const DecodeLaunch& launch, const DecodePart& part) {
  constexpr int kDims = kHeadDim / 32;
  using Values = std::conditional_t<kDims == 4, float4, float2>;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int64_t first = part.first_of_unit;
  for (auto q = static_cast<int32_t>(threadIdx.x / 32); q < launch.group; q += kDecodeWarps) {
    const float2* max_sums = PartMaxSums(launch) + first * launch.group + q;
    const auto* values =
        reinterpret_cast<const Values*>(PartValues(launch) + (first * launch.group + q) * kHeadDim);
    const int64_t query = (int64_t{part.sequence} * launch.kv_heads + part.head) * launch.group + q;
    const bool has_estimate = launch.estimate_max != nullptr && launch.estimate_sum[query] > 0;
    const float estimate_max =
        has_estimate ? launch.estimate_max[query] * 1.4426950408889634f : -INFINITY;
    float max = estimate_max;
    for (int32_t p = lane; p < part.parts_of_unit; p += 32) {
      max = fmaxf(max, __ldcg(max_sums + int64_t{p} * launch.group).x);
    }
    for (int step = 1; step < 32; step *= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, step));
    const float base = ScoreBase(max);
    float sum = 0;
    float acc[kDims] = {};
    for (int32_t begin = 0; begin < part.parts_of_unit; begin += 32) {
      float weight = 0;
      if (begin + lane < part.parts_of_unit) {
        const float2 max_sum = __ldcg(max_sums + int64_t{begin + lane} * launch.group);
        weight = Exp2(max_sum.x - base);
        sum += weight * max_sum.y;
      }
      const int32_t count = min(32, part.parts_of_unit - begin);
#pragma unroll 8
      for (int32_t i = 0; i < count; ++i) {
        const Values value =
            __ldcg(values + int64_t{begin + i} * launch.group * (kHeadDim / kDims) + lane);
        const float own = __shfl_sync(~0u, weight, i);
        for (int d = 0; d < kDims; ++d) acc[d] += own * (&value.x)[d];
      }
    }
    for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (has_estimate) {
      const float weight = Exp2(estimate_max - base);
      sum += weight * launch.estimate_sum[query];
      const float* estimate = launch.estimate_acc + query * kHeadDim + lane * kDims;
      for (int d = 0; d < kDims; ++d) acc[d] += weight * estimate[d];
    }
    const float inverse = sum > 0 ? 1 / sum : 0.0f;
    auto* out = reinterpret_cast<__nv_bfloat16*>(launch.out) + part.sequence * launch.out_stride +
                (int64_t{part.head} * launch.group + q) * kHeadDim + lane * kDims;
    for (int d = 0; d < kDims; d += 2) {
      *reinterpret_cast<uint32_t*>(out + d) = PackBf16(acc[d] * inverse, acc[d + 1] * inverse);
    }
  }
}

// Merges units whose last part this block has finished.
template <typename C, int kHeadDim>
__device__ void MergeUnits(const DecodeLaunch& launch, const Shared<C, kHeadDim>& shared,
                           unsigned long long parts) {
  for (; parts != 0; parts &= parts - 1) {
    MergeParts<kHeadDim>(launch, shared.parts[__ffsll(static_cast<long long>(parts)) - 1]);
  }
}

// Thread 0, before a meeting: takes over what the counter found. Returns what is taken over so far.
template <typename C, int kHeadDim>
__device__ void TakeComplete(Shared<C, kHeadDim>& shared, unsigned long long& taken) {
  const unsigned long long complete = ReadShared(shared.complete_parts);
  __threadfence_block();
  shared.merges = complete & ~taken;
  taken = complete;
}

// Sums the warps' results into the place of part `p` in scratch. Called by the warps that attend;
// `taken` is thread 0's.
template <typename C, int kHeadDim, typename State>
__device__ void FinishPart(const DecodeLaunch& launch, int32_t p, State& state, int32_t warp,
                           Shared<C, kHeadDim>& shared, unsigned long long& taken) {
  constexpr int32_t kHeads = WarpResults<kHeadDim>::kHeads;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  WarpResults<kHeadDim>& results = shared.results;
  const int64_t place = int64_t{shared.parts[p].index} * launch.group;
  unsigned long long merges = 0;
  state.PublishMax(results, warp);
  if (thread == 0) TakeComplete(shared, taken);
#pragma unroll
  for (int32_t section = 0; section < kDecodeGroup / kHeads; ++section) {
    if (section * kHeads >= launch.group) break;
    state.PublishValues(section, results, warp);
    MeetWarps();
    if (section == 0) {
      merges = shared.merges;
      if (thread < launch.group) {
        const float max = results.Max(thread);
        float sum = 0;
        for (int32_t w = 0; w < kDecodeWarps; ++w) {
          sum += Exp2(results.max[w][thread] - ScoreBase(max)) * results.sum[w][thread];
        }
        PartMaxSums(launch)[place + thread] = {max, sum};
      }
    }
    const int32_t heads = min(kHeads, launch.group - section * kHeads);
    for (int32_t i = thread; i < heads * kHeadDim; i += kDecodeThreads) {
      const int32_t q = section * kHeads + i / kHeadDim;
      const float base = ScoreBase(results.Max(q));
      float sum = 0;
      for (int32_t w = 0; w < kDecodeWarps; ++w) {
        sum += Exp2(results.max[w][q] - base) * results.acc[w][i / kHeadDim][i % kHeadDim];
      }
      PartValues(launch)[(place + q) * kHeadDim + i % kHeadDim] = sum;
    }
    MeetWarps();
  }
  if (thread == 0) {
    __threadfence_block();
    WriteShared(shared.num_published, p + 1);
  }
  MergeUnits(launch, shared, merges);
}

// The last meeting: merges what is left when the counter has seen all parts.
template <typename C, int kHeadDim>
__device__ void FinishBlock(const DecodeLaunch& launch, int32_t num_parts,
                            Shared<C, kHeadDim>& shared, unsigned long long& taken) {
  if (threadIdx.x == 0) {
    while (ReadShared(shared.num_counted) < num_parts) {
    }
    __threadfence_block();
    TakeComplete(shared, taken);
  }
  MeetWarps();
  MergeUnits(launch, shared, shared.merges);
}

// The counter: one thread that waits for parts to be published.
template <typename C, int kHeadDim>
__device__ void CountParts(const DecodeLaunch& launch, int32_t num_parts,
                           Shared<C, kHeadDim>& shared) {
  unsigned long long complete = 0;
  for (int32_t counted = 0; counted < num_parts;) {
    const int32_t published = ReadShared(shared.num_published);
    if (published == counted) {
      __nanosleep(100);
      continue;
    }
    __threadfence();
    const unsigned long long before = complete;
    for (; counted < published; ++counted) {
      const DecodePart& part = shared.parts[counted];
      unsigned long long* counter = Counters(launch) + part.unit;
      const unsigned long long last = static_cast<unsigned long long>(part.parts_of_unit) - 1;
      if (last > 0 && (atomicAdd(counter, 1ull) & kCountMask) != last) continue;
      *counter = kIdle;
      complete |= 1ull << counted;
    }
    if (complete != before) {
      __threadfence();
      WriteShared(shared.complete_parts, complete);
    }
    __threadfence_block();
    WriteShared(shared.num_counted, counted);
  }
}

// Attends a part with f32 KV.
template <typename C, int kHeadDim>
__device__ void AttendPlain(const DecodeLaunch& launch, const DecodePart& part, int32_t warp,
                            PlainState<kHeadDim>& state) {
  for (int32_t tile = part.begin + warp; tile < part.end; tile += kDecodeWarps) {
    for (int32_t i = 0; i < C::kPagesOfTile; ++i) {
      const PageRequest request = RequestPage<C::kTokensOfPage>(part, tile, i);
      const auto* page =
          reinterpret_cast<const float*>(ResolvePage<C::kTokensOfPage>(launch, request));
      for (int32_t t = 0; t < request.tokens; ++t) {
        state.Attend(page + t * kHeadDim, page + (C::kTokensOfPage + t) * kHeadDim,
                     launch.scale_log2);
      }
    }
  }
}

// Attends the block's parts with bf16 KV.
template <typename C, int kHeadDim>
__device__ void AttendParts(const DecodeLaunch& launch, int32_t num_parts, int32_t warp,
                            Shared<C, kHeadDim>& shared, unsigned long long& taken) {
  TileFeeder<C, kHeadDim> feeder(launch, shared, num_parts, warp);
  for (int32_t stage = 0; stage < C::kStages - 1; ++stage) feeder.Copy(stage);
  int32_t filling = C::kStages - 1, reading = 0;
  TensorState<kHeadDim> state;
  if (num_parts > 0) state.Prefetch(launch, shared.parts[0]);
  for (int32_t p = 0; p < num_parts; ++p) {
    state.Begin();
    const int32_t end = shared.parts[p].end;
    for (int32_t tile = shared.parts[p].begin + warp; tile < end; tile += kDecodeWarps) {
      WaitCopies<C::kStages - 2>();
      __syncwarp();  // all lanes' copies have come, and all have read the stage to be filled
      feeder.Copy(filling);
      filling = filling + 1 == C::kStages ? 0 : filling + 1;
      state.Attend(SharedAddress(shared.tiles[warp][reading]), shared.masks[warp][reading],
                   launch.scale_log2);
      reading = reading + 1 == C::kStages ? 0 : reading + 1;
    }
    if (p + 1 < num_parts) state.Prefetch(launch, shared.parts[p + 1]);
    FinishPart(launch, p, state, warp, shared, taken);
  }
}

template <typename Kv, int kHeadDim>
__global__ void __launch_bounds__(kBlockThreads, kBlocksOfProcessor)
    DecodeAttentionKernel(const __grid_constant__ DecodeLaunch launch) {
  using C = Config<Kv, kHeadDim>;
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<C, kHeadDim>*>(memory);
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  if (threadIdx.x == 0) {
    shared.num_published = shared.num_counted = 0;
    shared.complete_parts = 0;
  }
  const int32_t num_parts =
      PlanParts<C::kTokensOfPage>(launch, shared.plan, shared.total_parts, shared.parts);
  if (warp == kDecodeWarps) {
    if (threadIdx.x == kDecodeThreads) CountParts(launch, num_parts, shared);
    return;
  }
  unsigned long long taken = 0;
  if constexpr (C::kTensor) {
    AttendParts(launch, num_parts, warp, shared, taken);
  } else {
    PlainState<kHeadDim> state;
    for (int32_t p = 0; p < num_parts; ++p) {
      state.Begin(launch, shared.parts[p]);
      AttendPlain<C, kHeadDim>(launch, shared.parts[p], warp, state);
      FinishPart(launch, p, state, warp, shared, taken);
    }
  }
  FinishBlock(launch, num_parts, shared, taken);
}

// How many blocks fill the current device.
template <typename Kv, int kHeadDim>
cudaError_t CountBlocks(int& blocks) {
  constexpr size_t kSharedBytes = sizeof(Shared<Config<Kv, kHeadDim>, kHeadDim>);
  auto* const kernel = &DecodeAttentionKernel<Kv, kHeadDim>;
  int device = 0, processors = 0, of_processor = 0;
  cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(kSharedBytes));
  if (code == cudaSuccess) code = cudaGetDevice(&device);
  if (code == cudaSuccess) {
    code = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  }
  if (code == cudaSuccess) {
    code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_processor, kernel, kBlockThreads,
                                                         kSharedBytes);
  }
  if (code != cudaSuccess) return code;
  blocks = min(kMaxDecodeBlocks, processors * min(of_processor, kBlocksOfProcessor));
  return blocks > 0 ? cudaSuccess : cudaErrorInvalidConfiguration;
}

template <typename Kv, int kHeadDim>
cudaError_t Launch(const DecodeLaunch& launch, cudaStream_t stream) {
  struct Grid {
    int blocks = 0;
    cudaError_t code = CountBlocks<Kv, kHeadDim>(blocks);
  };
  static const Grid grid;  // a process has one device
  if (grid.code != cudaSuccess) return grid.code;
  DecodeAttentionKernel<Kv, kHeadDim>
      <<<grid.blocks, kBlockThreads, sizeof(Shared<Config<Kv, kHeadDim>, kHeadDim>), stream>>>(
          launch);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchDecodeAttention(const DecodeLaunch& launch, DType dtype, uint32_t head_dim,
                                  cudaStream_t stream) {
  if (dtype == DType::kBf16) {
    return head_dim == 128 ? Launch<__nv_bfloat16, 128>(launch, stream)
                           : Launch<__nv_bfloat16, 64>(launch, stream);
  }
  return head_dim == 128 ? Launch<float, 128>(launch, stream) : Launch<float, 64>(launch, stream);
}

}  // namespace retroinfer::cuda
