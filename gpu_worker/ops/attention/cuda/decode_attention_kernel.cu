// Split-KV attention. Bound by memory: it must read every KV byte once, so what counts is bytes
// under way. Each warp has tiles of its own and a ring of stages in shared memory that asynchronous
// copies fill ahead of it, across the ends of parts; warps meet only at those ends. A part's result
// goes to scratch, and a second kernel, whose blocks are there before the first one ends, merges
// the parts of each query head. (Merging by whichever block finishes a unit's last part is slower:
// late blocks are late for all their units, and each merge makes them later.)
#include <cmath>
#include <numbers>
#include <type_traits>

#include "gpu_worker/ops/attention/cuda/decode_attention_eight_bit_state.cuh"
#include "gpu_worker/ops/attention/cuda/decode_attention_kernel.h"
#include "gpu_worker/ops/attention/cuda/decode_attention_plan.cuh"
#include "gpu_worker/ops/attention/cuda/decode_attention_state.cuh"
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/warp_mma.cuh"

namespace retroinfer::cuda {
namespace {

// How a launch fills a multiprocessor: with how many blocks, for how many there are registers, and
// with how many bytes of stages for each warp.
//
// One sequence, which is cut for two blocks on each multiprocessor. 16 KiB for each warp, 128 KiB
// on a multiprocessor: more under way only queues up.
struct FillingOfOne {
  static constexpr int kBlocks = 2, kRoomFor = 2, kWarpBytes = 16384;
};
// Several, in eight bits: a third block works while warps of the others wait for each other at the
// ends of parts, and a block of the estimation has room beside the three.
struct FillingOfSeveral {
  static constexpr int kBlocks = 3, kRoomFor = 4, kWarpBytes = 8192;
};

template <typename Kv, int kHeadDim>
struct StateOf {
  using Type = PlainState<kHeadDim>;
};
template <int kHeadDim>
struct StateOf<__nv_bfloat16, kHeadDim> {
  using Type = TensorState<kHeadDim>;
};
template <int kHeadDim>
struct StateOf<int8_t, kHeadDim> {
  using Type = EightBitState<kHeadDim>;
};

// `Kv`: element of keys and values; int8_t: in eight bits.
template <typename Kv, int kHeadDim, typename Filling>
struct Config {
  using State = typename StateOf<Kv, kHeadDim>::Type;
  static constexpr bool kTensor = !std::is_same_v<Kv, float>;
  static constexpr int kTokensOfPage = static_cast<int>(kPageBytes / (2 * kHeadDim * sizeof(Kv)));
  static constexpr int kPagesOfTile = kTileTokens / kTokensOfPage;
  static constexpr int kTileBytes = State::kTileBytes;
  // Two stages of bf16 at head_dim 256 have 32 KiB, and a multiprocessor one block.
  static constexpr int kWarpBytes = Filling::kWarpBytes;
  static constexpr int kStages =
      kTensor ? (kTileBytes > kWarpBytes / 2 ? 2 : kWarpBytes / kTileBytes) : 1;
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
};

__device__ float2* PartMaxSums(const DecodeLaunch& launch) {
  return reinterpret_cast<float2*>(launch.scratch + kDecodePlanBytes);
}
__device__ float* PartValues(const DecodeLaunch& launch) {
  return reinterpret_cast<float*>(PartMaxSums(launch) +
                                  MaxDecodeParts(launch.num_sequences) * launch.slice.count);
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
    using State = typename C::State;
    constexpr int kPiecesOfRow = State::kRowBytes / 16;
    constexpr int kPiecesOfPage = static_cast<int>(kPageBytes / 16);
    const auto address =
        reinterpret_cast<unsigned long long>(ResolvePage<C::kTokensOfPage>(launch_, request_));
    const uint32_t there =
        ((1u << min(request_.tokens, C::kTokensOfPage)) - 1) & ~((1u << request_.hidden) - 1);
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

// Sums the warps' results into the place of part `p` in scratch. Called by the whole block.
template <typename C, int kHeadDim, typename State>
__device__ void FinishPart(const DecodeLaunch& launch, int32_t p, State& state, int32_t warp,
                           Shared<C, kHeadDim>& shared) {
  constexpr int32_t kHeads = WarpResults<kHeadDim>::kHeads;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  WarpResults<kHeadDim>& results = shared.results;
  const int64_t place = int64_t{shared.parts[p].index} * launch.slice.count;
  state.PublishMax(results, warp);
#pragma unroll
  for (int32_t section = 0; section < kDecodeGroup / kHeads; ++section) {
    if (section * kHeads >= launch.slice.count) break;
    state.PublishValues(section, results, warp);
    __syncthreads();
    if (section == 0 && thread < launch.slice.count) {
      const float max = results.Max(thread);
      float sum = 0;
      for (int32_t w = 0; w < kDecodeWarps; ++w) {
        sum += Exp2(results.max[w][thread] - ScoreBase(max)) * results.sum[w][thread];
      }
      PartMaxSums(launch)[place + thread] = {max, sum};
    }
    const int32_t heads = min(kHeads, launch.slice.count - section * kHeads);
    for (int32_t i = thread; i < heads * kHeadDim; i += kDecodeThreads) {
      const int32_t q = section * kHeads + i / kHeadDim;
      const float base = ScoreBase(results.Max(q));
      float sum = 0;
      for (int32_t w = 0; w < kDecodeWarps; ++w) {
        sum += Exp2(results.max[w][q] - base) * results.acc[w][i / kHeadDim][i % kHeadDim];
      }
      PartValues(launch)[(place + q) * kHeadDim + i % kHeadDim] = sum;
    }
    __syncthreads();
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
      for (int32_t t = request.hidden; t < request.tokens; ++t) {
        state.Attend(page + t * kHeadDim, page + (C::kTokensOfPage + t) * kHeadDim,
                     launch.scale_log2);
      }
    }
  }
}

// Attends the block's parts on tensor cores.
template <typename C, int kHeadDim>
__device__ void AttendParts(const DecodeLaunch& launch, int32_t num_parts, int32_t warp,
                            Shared<C, kHeadDim>& shared) {
  TileFeeder<C, kHeadDim> feeder(launch, shared, num_parts, warp);
  for (int32_t stage = 0; stage < C::kStages - 1; ++stage) feeder.Copy(stage);
  int32_t filling = C::kStages - 1, reading = 0;
  typename C::State state;
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
    FinishPart(launch, p, state, warp, shared);
  }
}

// A lane's numbers of a part's values.
template <int kDims>
struct alignas(kDims > 4 ? 16 : 4 * kDims) LaneValues {
  float of_dims[kDims];
};

// Sums the parts of a query head: each warp every fourth of them, relative to its own maximum.
template <int kHeadDim>
__device__ void SumHead(const DecodeLaunch& launch, const UnitParts& unit, int32_t q,
                        float (&maxima)[kDecodeWarps], float (&sums)[kDecodeWarps],
                        float (&accs)[kDecodeWarps][kHeadDim]) {
  constexpr int kDims = kHeadDim / 32;
  constexpr int kAhead = kDims > 4 ? 8 : 16;  // loads under way
  using Values = LaneValues<kDims>;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const int64_t first = int64_t{unit.first} * launch.slice.count + q;
  const float2* max_sums = PartMaxSums(launch) + first;
  const auto* values =
      reinterpret_cast<const Values*>(PartValues(launch) + first * kHeadDim) + lane;
  float max = -INFINITY, sum = 0, acc[kDims] = {};
  for (int32_t begin = warp; begin < unit.count; begin += kAhead * kDecodeWarps) {
    Values ahead[kAhead];
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) {
      const int64_t part = begin + i * kDecodeWarps;
      ahead[i] =
          part < unit.count ? values[part * launch.slice.count * (kHeadDim / kDims)] : Values{};
    }
    const int64_t part = begin + lane * kDecodeWarps;
    float2 own = {-INFINITY, 0};
    if (lane < kAhead && part < unit.count) own = max_sums[part * launch.slice.count];
    float raised = fmaxf(max, own.x);
    for (int i = 1; i < 32; i *= 2) raised = fmaxf(raised, __shfl_xor_sync(~0u, raised, i));
    const float kept = Exp2(max - ScoreBase(raised));
    const float weight = Exp2(own.x - ScoreBase(raised));
    max = raised;
    sum = sum * kept + weight * own.y;
    for (float& value : acc) value *= kept;
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) {
      const float of_part = __shfl_sync(~0u, weight, i);
      for (int d = 0; d < kDims; ++d) acc[d] += of_part * ahead[i].of_dims[d];
    }
  }
  for (int i = 1; i < 32; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
  if (lane == 0) {
    maxima[warp] = max;
    sums[warp] = sum;
  }
  for (int d = 0; d < kDims; ++d) accs[warp][lane * kDims + d] = acc[d];
}

template <typename Kv, int kHeadDim, typename Filling>
__global__ void __launch_bounds__(kDecodeThreads, Filling::kRoomFor)
    DecodeAttentionKernel(const __grid_constant__ DecodeLaunch launch) {
  using C = Config<Kv, kHeadDim, Filling>;
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<C, kHeadDim>*>(memory);
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  AllowNextKernel();
  AwaitLastKernel();
  const int32_t num_parts =
      PlanParts<C::kTokensOfPage>(launch, shared.plan, shared.total_parts, shared.parts);
  if constexpr (C::kTensor) {
    AttendParts(launch, num_parts, warp, shared);
  } else {
    PlainState<kHeadDim> state;
    for (int32_t p = 0; p < num_parts; ++p) {
      state.Begin(launch, shared.parts[p]);
      AttendPlain<C, kHeadDim>(launch, shared.parts[p], warp, state);
      FinishPart(launch, p, state, warp, shared);
    }
  }
}

// Of `left_out`, relative to its own maximum, of that and what was attended. Maxima are of scores
// in base 2; that of nothing is minus infinity.
__device__ float ShareOf(float left_out_max, float left_out, float attended_max, float attended) {
  const float base = ScoreBase(fmaxf(left_out_max, attended_max));
  const float out = left_out * Exp2(left_out_max - base);
  const float all = out + attended * Exp2(attended_max - base);
  return all > 0 ? out / all : 0;
}

// Merges the parts of a query head and its estimate into out; a block for each query head. Bound by
// the latency of two reads: of the plan and what does not depend on it, and of all parts at once.
template <int kHeadDim>
__global__ void __launch_bounds__(kDecodeThreads)
    MergeKernel(const __grid_constant__ DecodeLaunch launch) {
  __shared__ float maxima[kDecodeWarps], sums[kDecodeWarps], accs[kDecodeWarps][kHeadDim];
  const auto block = static_cast<int32_t>(blockIdx.x), thread = static_cast<int32_t>(threadIdx.x);
  const GroupSlice& slice = launch.slice;
  const int32_t unit = block / slice.count, q = block % slice.count;
  const int64_t sequence = launch.first_sequence + unit / launch.num_heads;
  const int64_t query_head =
      int64_t{launch.first_head + unit % launch.num_heads} * slice.group + slice.first + q;
  const int64_t query = sequence * launch.kv_heads * slice.group + query_head;
  AllowNextKernel();
  AwaitLastKernel();
  const UnitParts parts = PlannedUnits(launch)[unit];
  constexpr int kEach = (kHeadDim + kDecodeThreads - 1) / kDecodeThreads;  // dimensions of a thread
  float estimate_max = -INFINITY, estimate_sum = 0, estimate[kEach] = {};
  if (launch.estimate_max != nullptr) {
    estimate_max = launch.estimate_max[query];
    estimate_sum = launch.estimate_sum[query];
    for (int i = 0; i < kEach; ++i) {
      const int d = thread + i * kDecodeThreads;
      if (d < kHeadDim) estimate[i] = launch.estimate_acc[query * kHeadDim + d];
    }
  }
  const float sink =
      launch.sinks == nullptr ? -INFINITY : launch.sinks[query_head] * std::numbers::log2e_v<float>;
  SumHead<kHeadDim>(launch, parts, q, maxima, sums, accs);
  const bool has_estimate = estimate_sum > 0;
  estimate_max = has_estimate ? estimate_max * std::numbers::log2e_v<float> : -INFINITY;
  __syncthreads();
  if (thread >= kHeadDim) return;
  float max = fmaxf(estimate_max, sink);
  for (const float other : maxima) max = fmaxf(max, other);
  const float base = ScoreBase(max);
  float sum = Exp2(sink - base), acc[kEach] = {};
  for (int w = 0; w < kDecodeWarps; ++w) {
    const float weight = Exp2(maxima[w] - base);
    sum += weight * sums[w];
    for (int i = 0; i < kEach; ++i) acc[i] += weight * accs[w][thread + i * kDecodeThreads];
  }
  if (thread == 0 && launch.unseen_max != nullptr) {
    launch.unseen_share[query] = ShareOf(launch.unseen_max[query] * std::numbers::log2e_v<float>,
                                         launch.unseen_sum[query], max, sum);
  }
  if (has_estimate) {
    const float weight = Exp2(estimate_max - base);
    sum += weight * estimate_sum;
    for (int i = 0; i < kEach; ++i) acc[i] += weight * estimate[i];
  }
  auto* out = reinterpret_cast<__nv_bfloat16*>(launch.out) + sequence * launch.out_stride;
  for (int i = 0; i < kEach; ++i) {
    out[query_head * kHeadDim + thread + i * kDecodeThreads] =
        __float2bfloat16_rn(sum == 0 ? 0.0f : acc[i] / sum);
  }
}

struct Grid {
  cudaError_t code = cudaSuccess;
  int blocks = 0;  // that fill the device
};

template <typename Kv, int kHeadDim, typename Filling>
constexpr size_t kSharedBytes = sizeof(Shared<Config<Kv, kHeadDim, Filling>, kHeadDim>);

template <typename Kv, int kHeadDim, typename Filling>
Grid FindGrid() {
  constexpr size_t kBytes = kSharedBytes<Kv, kHeadDim, Filling>;
  auto* const kernel = &DecodeAttentionKernel<Kv, kHeadDim, Filling>;
  Grid grid;
  int device = 0, processors = 0, of_processor = 0;
  const auto attempt = [&grid](cudaError_t code) {
    if (grid.code == cudaSuccess) grid.code = code;
  };
  attempt(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(kBytes)));
  attempt(cudaGetDevice(&device));
  attempt(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  attempt(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_processor, kernel, kDecodeThreads, kBytes));
  grid.blocks = processors * min(of_processor, Filling::kBlocks);
  if (grid.blocks == 0) attempt(cudaErrorInvalidConfiguration);
  return grid;
}

template <typename Kv, int kHeadDim, typename Filling>
cudaError_t LaunchBlocks(const DecodeLaunch& launch, int blocks, cudaStream_t stream) {
  return LaunchDependent({.grid = dim3(static_cast<unsigned>(blocks)),
                          .block = dim3(kDecodeThreads),
                          .shared_bytes = kSharedBytes<Kv, kHeadDim, Filling>,
                          .stream = stream},
                         &DecodeAttentionKernel<Kv, kHeadDim, Filling>, launch);
}

template <typename Kv, int kHeadDim>
cudaError_t Launch(DecodeLaunch launch, cudaStream_t stream) {
  static const Grid one = FindGrid<Kv, kHeadDim, FillingOfOne>();  // a process has one device
  if (one.code != cudaSuccess) return one.code;
  launch.plan_blocks = min(kMaxDecodeBlocks, one.blocks);
  if constexpr (std::is_same_v<Kv, int8_t> && kHeadDim <= 128) {
    static const Grid several = FindGrid<Kv, kHeadDim, FillingOfSeveral>();
    if (several.code != cudaSuccess) return several.code;
    if (launch.num_sequences > 1 && several.blocks >= launch.plan_blocks) {
      return LaunchBlocks<Kv, kHeadDim, FillingOfSeveral>(launch, several.blocks, stream);
    }
  }
  return LaunchBlocks<Kv, kHeadDim, FillingOfOne>(launch, launch.plan_blocks, stream);
}

template <typename Kv>
cudaError_t LaunchFor(const DecodeLaunch& launch, uint32_t head_dim, cudaStream_t stream) {
  switch (head_dim) {
    case 64:
      return Launch<Kv, 64>(launch, stream);
    case 128:
      return Launch<Kv, 128>(launch, stream);
    default:
      return Launch<Kv, 256>(launch, stream);
  }
}

}  // namespace

cudaError_t LaunchDecodeParts(const DecodeLaunch& launch, DType element, uint32_t head_dim,
                              cudaStream_t stream) {
  switch (element) {
    case DType::kBf16:
      return LaunchFor<__nv_bfloat16>(launch, head_dim, stream);
    case DType::kInt8:
      return LaunchFor<int8_t>(launch, head_dim, stream);
    default:
      return LaunchFor<float>(launch, head_dim, stream);
  }
}

cudaError_t LaunchDecodeMerge(const DecodeLaunch& launch, uint32_t head_dim, bool early,
                              cudaStream_t stream) {
  const auto heads =
      static_cast<unsigned>(launch.num_sequences * launch.num_heads * launch.slice.count);
  return LaunchDependent(
      {.grid = dim3(heads), .block = dim3(kDecodeThreads), .stream = stream, .early = early},
      head_dim == 256   ? &MergeKernel<256>
      : head_dim == 128 ? &MergeKernel<128>
                        : &MergeKernel<64>,
      launch);
}

}  // namespace retroinfer::cuda
