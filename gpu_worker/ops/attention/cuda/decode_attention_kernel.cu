// Split-KV attention. Bound by memory: it must read every KV byte once, so what counts is bytes
// under way. Each warp has tiles of its own and a ring of stages in shared memory that asynchronous
// copies fill ahead of it, across the ends of parts. Warps meet only at those ends, and where their
// state defers not even there: a warp leaves its results and sums up all warps' a part later. A
// part's result goes to scratch, and a second kernel, whose blocks are there before the first one
// ends, merges the parts of each query head. (Merging by whichever block finishes a unit's last
// part is slower: late blocks are late for all their units, and each merge makes them later.)
#include <type_traits>

#include "gpu_worker/ops/attention/cuda/decode_attention_eight_bit_state.cuh"
#include "gpu_worker/ops/attention/cuda/decode_attention_kernel.h"
#include "gpu_worker/ops/attention/cuda/decode_attention_plan.cuh"
#include "gpu_worker/ops/attention/cuda/decode_attention_state.cuh"
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/split_barrier.cuh"
#include "gpu_worker/ops/cuda/warp_mma.cuh"

namespace retroinfer::cuda {
namespace {

// How a launch fills a multiprocessor: with how many blocks, for how many there are registers, and
// with how many bytes of stages for each warp.
//
// Two blocks, for which a sequence is cut. 16 KiB for each warp, 128 KiB on a multiprocessor: more
// under way only queues up. Deep rings carry warps across the ends of parts.
struct FillingOfTwo {
  static constexpr int kBlocks = 2, kRoomFor = 2, kWarpBytes = 16384;
};
// Lists of pages of several sequences, in eight bits: a third block works while others begin and
// end parts, which are short, and a block of the estimation or of the merge has room beside the
// three. Beside two with deep rings it has none, and a layer takes longer.
struct FillingOfThree {
  static constexpr int kBlocks = 3, kRoomFor = 4, kWarpBytes = 8192;
};

// Elements of keys and values: float, __nv_bfloat16, or in eight bits, for up to so many query
// heads of a KV head.
template <int kHeads>
struct EightBits {};

template <typename Kv, int kHeadDim>
struct StateOf {
  using Type = PlainState<kHeadDim>;
};
template <int kHeadDim>
struct StateOf<__nv_bfloat16, kHeadDim> {
  using Type = TensorState<kHeadDim>;
};
template <int kHeads, int kHeadDim>
struct StateOf<EightBits<kHeads>, kHeadDim> {
  using Type = EightBitState<kHeadDim, kHeads>;
};

template <typename Kv, int kHeadDim, typename Filling>
struct Config {
  using State = typename StateOf<Kv, kHeadDim>::Type;
  static constexpr bool kTensor = !std::is_same_v<Kv, float>;
  static constexpr int kTokensOfPage =
      static_cast<int>(kPageBytes / (2 * kHeadDim * State::kElementBytes));
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
    WarpResults<kHeadDim> results[C::State::kDefers ? 2 : 1];
  };
  DecodePart parts[kMaxPartsOfBlock];
  int32_t total_parts;
  uint64_t finished;  // a split barrier, of which a phase is a part
};

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
        lane_(static_cast<int32_t>(threadIdx.x % 32)),
        block_bytes_(BlockBytes<C::kTokensOfPage>(launch)) {
    if (num_parts_ > 0) tile_ = shared_.parts[0].begin + warp_;
    Request();
  }

  // Begins to copy the next tile, if any, to `stage` in shared memory; and closes the group.
  // Returns which of its tokens are there.
  __device__ uint32_t Copy(uint32_t stage) {
    uint32_t mask = 0;
    if (part_ < num_parts_) {
      mask = CopyPages(stage);
      tile_ += kDecodeWarps;
      Request();
    }
    CommitCopies();
    return mask;
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

  __device__ uint32_t CopyPages(uint32_t tile) {
    using State = typename C::State;
    constexpr int kPiecesOfRow = State::kRowBytes / 16;
    constexpr int kPiecesOfPage = static_cast<int>(kPageBytes / 16);
    const auto address =
        reinterpret_cast<unsigned long long>(ResolvePage(launch_, block_bytes_, request_));
    const uint32_t there =
        ((1u << min(request_.tokens, C::kTokensOfPage)) - 1) & ~((1u << request_.hidden) - 1);
    const uint32_t mask =
        __reduce_or_sync(~0u, lane_ < C::kPagesOfTile ? there << lane_ * C::kTokensOfPage : 0u);
    const int32_t own_row = lane_ / kPiecesOfRow;  // of those that the warp copies at a time
    const uint32_t own_mask = mask >> own_row;
#pragma unroll
    for (int page = 0; page < C::kPagesOfTile; ++page) {
      const auto* source =
          reinterpret_cast<const std::byte*>(__shfl_sync(~0u, address, page)) + lane_ * 16;
#pragma unroll
      for (int first = 0; first < kPiecesOfPage; first += 32) {
        const int32_t is_value = first / (kPiecesOfPage / 2);
        const int32_t row = page * C::kTokensOfPage + first % (kPiecesOfPage / 2) / kPiecesOfRow;
        CopyAsync16(tile + is_value * kTileTokens * State::kRowBytes +
                        State::PieceOffset(row + own_row, lane_ % kPiecesOfRow),
                    source + first * 16, (own_mask >> row & 1) * 16);
      }
    }
    return mask;
  }

  const DecodeLaunch& launch_;
  Shared<C, kHeadDim>& shared_;
  const int32_t num_parts_, warp_, lane_;
  const int64_t block_bytes_;
  int32_t part_ = 0;
  int32_t tile_ = 0;
  PageRequest request_ = {};
};

// Sums a section of the warps' results into the place of part `index` of the launch: a thread four
// dimensions of a query head. Called by the whole block.
template <int kHeadDim>
__device__ void SumSection(const DecodeLaunch& launch, int32_t index, int32_t section,
                           const WarpResults<kHeadDim>& results) {
  constexpr int32_t kHeads = WarpResults<kHeadDim>::kHeads, kThreadsOfHead = kHeadDim / 4;
  static_assert(kHeads * kThreadsOfHead == kDecodeThreads);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t of_section = thread / kThreadsOfHead, dimension = thread % kThreadsOfHead * 4;
  const int32_t q = section * kHeads + of_section;
  if (q >= launch.slice.count) return;
  const float max = results.Max(q), base = ScoreBase(max);
  float sum = 0, values[4] = {};
  for (int32_t w = 0; w < kDecodeWarps; ++w) {
    const float weight = Exp2(results.max[w][q] - base);
    sum += weight * results.sum[w][q];
    const auto of_warp = *reinterpret_cast<const float4*>(&results.acc[w][of_section][dimension]);
    values[0] += weight * of_warp.x;
    values[1] += weight * of_warp.y;
    values[2] += weight * of_warp.z;
    values[3] += weight * of_warp.w;
  }
  const int64_t place = int64_t{index} * launch.slice.count + q;
  if (dimension == 0) PartMaxSums(launch)[place] = {max, sum};
  *reinterpret_cast<float4*>(PartValues(launch) + place * kHeadDim + dimension) = {
      values[0], values[1], values[2], values[3]};
}

// Sums the warps' results into the place of part `p` in scratch. Called by the whole block.
template <typename C, int kHeadDim, typename State>
__device__ void FinishPart(const DecodeLaunch& launch, int32_t p, State& state, int32_t warp,
                           Shared<C, kHeadDim>& shared) {
  constexpr int32_t kHeads = WarpResults<kHeadDim>::kHeads;
  WarpResults<kHeadDim>& results = shared.results[0];
  state.PublishMax(results, warp);
#pragma unroll
  for (int32_t section = 0; section < kDecodeGroup / kHeads; ++section) {
    if (section * kHeads >= launch.slice.count) break;
    state.PublishValues(section, results, warp);
    __syncthreads();
    SumSection(launch, shared.parts[p].index, section, results);
    __syncthreads();
  }
}

// The two halves of FinishPart, between which a warp attends the next part instead of waiting for
// the others: LeaveResults leaves the warp's results of part `p`, FinishLeft sums up what all warps
// have left. Two places are enough since a warp calls FinishLeft for part p - 1 before LeaveResults
// for part p: whoever finds all results of part p - 1 knows that those of part p - 2 were read.
template <typename C, int kHeadDim>
__device__ void LeaveResults(int32_t p, typename C::State& state, int32_t warp,
                             Shared<C, kHeadDim>& shared) {
  state.PublishMax(shared.results[p % 2], warp);
  state.PublishValues(0, shared.results[p % 2], warp);
  __syncwarp();
  if (threadIdx.x % 32 == 0) Arrive(SharedAddress(&shared.finished));
}
template <typename C, int kHeadDim>
__device__ void FinishLeft(const DecodeLaunch& launch, int32_t p, Shared<C, kHeadDim>& shared) {
  WaitBarrierOfWarp(SharedAddress(&shared.finished), p % 2);
  SumSection(launch, shared.parts[p].index, 0, shared.results[p % 2]);
}

// Attends a part with f32 KV.
template <typename C, int kHeadDim>
__device__ void AttendPlain(const DecodeLaunch& launch, const DecodePart& part, int32_t warp,
                            PlainState<kHeadDim>& state) {
  for (int32_t tile = part.begin + warp; tile < part.end; tile += kDecodeWarps) {
    for (int32_t i = 0; i < C::kPagesOfTile; ++i) {
      const PageRequest request = RequestPage<C::kTokensOfPage>(part, tile, i);
      const auto* page = reinterpret_cast<const float*>(
          ResolvePage(launch, BlockBytes<C::kTokensOfPage>(launch), request));
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
  constexpr int32_t kStages = C::kStages;
  const uint32_t stages = SharedAddress(shared.tiles[warp]);
  const auto next = [=](uint32_t stage) {
    return stage == stages + (kStages - 1) * C::kTileBytes ? stages : stage + C::kTileBytes;
  };
  TileFeeder<C, kHeadDim> feeder(launch, shared, num_parts, warp);
  uint32_t masks[kStages];  // of the tile that is attended next, and those behind it
  for (int32_t i = 0; i < kStages - 1; ++i) masks[i] = feeder.Copy(stages + i * C::kTileBytes);
  uint32_t filling = stages + (kStages - 1) * C::kTileBytes, reading = stages;
  typename C::State state;
  if (num_parts > 0) state.Prefetch(launch, shared.parts[0]);
  for (int32_t p = 0; p < num_parts; ++p) {
    state.Begin();
    const int32_t end = shared.parts[p].end;
    for (int32_t tile = shared.parts[p].begin + warp; tile < end; tile += kDecodeWarps) {
      WaitCopies<C::kStages - 2>();
      __syncwarp();  // all lanes' copies have come, and all have read the stage to be filled
      masks[kStages - 1] = feeder.Copy(filling);
      filling = next(filling);
      state.Attend(reading, masks[0], launch.scale_log2);
      reading = next(reading);
      for (int32_t i = 1; i < kStages; ++i) masks[i - 1] = masks[i];
    }
    if (p + 1 < num_parts) state.Prefetch(launch, shared.parts[p + 1]);
    if constexpr (C::State::kDefers) {
      if (p > 0) FinishLeft<C, kHeadDim>(launch, p - 1, shared);
      LeaveResults<C, kHeadDim>(p, state, warp, shared);
    } else {
      FinishPart(launch, p, state, warp, shared);
    }
  }
  if (C::State::kDefers && num_parts > 0) FinishLeft<C, kHeadDim>(launch, num_parts - 1, shared);
}

template <typename Kv, int kHeadDim, typename Filling>
__global__ void __launch_bounds__(kDecodeThreads, Filling::kRoomFor)
    DecodeAttentionKernel(const __grid_constant__ DecodeLaunch launch) {
  using C = Config<Kv, kHeadDim, Filling>;
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<C, kHeadDim>*>(memory);
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  AllowNextKernel();
  if (C::State::kDefers && threadIdx.x == 0)
    InitBarrier(SharedAddress(&shared.finished), kDecodeWarps);
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
  static const Grid two = FindGrid<Kv, kHeadDim, FillingOfTwo>();  // a process has one device
  if (two.code != cudaSuccess) return two.code;
  launch.plan_blocks = min(kMaxDecodeBlocks, two.blocks);
  if constexpr (StateOf<Kv, kHeadDim>::Type::kElementBytes == 1 && kHeadDim <= 128) {
    static const Grid three = FindGrid<Kv, kHeadDim, FillingOfThree>();
    if (three.code != cudaSuccess) return three.code;
    const bool has_lists = launch.pages != nullptr && launch.num_sequences > 1;
    if (has_lists && three.blocks >= launch.plan_blocks) {
      return LaunchBlocks<Kv, kHeadDim, FillingOfThree>(launch, three.blocks, stream);
    }
  }
  return LaunchBlocks<Kv, kHeadDim, FillingOfTwo>(launch, launch.plan_blocks, stream);
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
      return launch.slice.count <= 4 ? LaunchFor<EightBits<4>>(launch, head_dim, stream)
                                     : LaunchFor<EightBits<8>>(launch, head_dim, stream);
    default:
      return LaunchFor<float>(launch, head_dim, stream);
  }
}

}  // namespace retroinfer::cuda
