// Chooses by weight without sorting: a radix selection over shares of the weight as integers finds
// the share from which on blocks are chosen. Integers are summed exactly, so that a choice depends
// on no order. Bound by reads of the weights: 16 bytes for each block that a unit sees.
#include <cmath>

#include "gpu_worker/ops/attention/cuda/block_choice_kernels.h"
#include "gpu_worker/ops/attention/cuda/block_choice_units.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kDigits = 256;
constexpr unsigned kAllLanes = 0xffffffff;
// A unit's weight is its number of groups, 4: shares are counted in 2^-29, and fit 32 bits.
constexpr float kShares = 536870912.0f;

// All shares of a unit add up to its weight, so that no sum of them overflows.
using Shares = uint32_t;

// Working memory that the threads of a block share.
struct Shared {
  float4 largest_of_warps[kWarps];
  float4 sums_of_warps[kWarps];
  uint2 shares_of_warps[kWarps];
  Shares by_digit[kDigits];
  Shares wanted;
  uint32_t digit;
  int ties_of_warps[kWarps];
  int counts_of_warps[kWarps];
};

__device__ float4 Larger(const float4& a, const float4& b) {
  return {fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z), fmaxf(a.w, b.w)};
}
struct Sum {
  __device__ float4 operator()(const float4& a, const float4& b) const {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  }
  __device__ uint2 operator()(const uint2& a, const uint2& b) const {
    return {a.x + b.x, a.y + b.y};
  }
};

__device__ float4 Shuffle(const float4& value, int lanes) {
  return {__shfl_xor_sync(kAllLanes, value.x, lanes), __shfl_xor_sync(kAllLanes, value.y, lanes),
          __shfl_xor_sync(kAllLanes, value.z, lanes), __shfl_xor_sync(kAllLanes, value.w, lanes)};
}
__device__ uint2 Shuffle(const uint2& value, int lanes) {
  return {__shfl_xor_sync(kAllLanes, value.x, lanes), __shfl_xor_sync(kAllLanes, value.y, lanes)};
}

// Of all threads' values, to all threads, in one order. `of_warps` is free again behind the next
// barrier.
template <typename T, typename Join>
__device__ T JoinBlock(T value, T (&of_warps)[kWarps], Join join) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value = join(value, Shuffle(value, lanes));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warps[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) value = join(value, of_warps[warp]);
  return value;
}

// The choice of one unit and query head.
class Chooser {
 public:
  __device__ Chooser(const ChoiceLaunch& launch, Shared& shared)
      : launch_(launch),
        shared_(shared),
        unit_(launch.first_unit +
              static_cast<int>(blockIdx.x) / (launch.num_kv_heads * launch.group)),
        num_blocks_(BlocksOfUnit(unit_)),
        local_(LocalBlock(unit_)),
        weights_(reinterpret_cast<float4*>(launch.weights) +
                 int64_t{blockIdx.x} * launch.num_blocks) {}

  __device__ void Run() {
    const bool is_ordered = FindShares();
    if (!is_ordered) {
      Write(0, num_blocks_);  // no block may be left out
      return;
    }
    uint2 sums = {0, 0};  // of all blocks, and of the floor
    for (int block = static_cast<int>(threadIdx.x); block < num_blocks_; block += kThreads) {
      sums.x += ShareOf(block);
      if (IsFloor(block)) sums.y += ShareOf(block);
    }
    sums = JoinBlock(sums, shared_.shares_of_warps, Sum());
    const Shares total = sums.x, held = sums.y;
    const auto wanted = static_cast<Shares>(
        ceil(static_cast<double>(launch_.threshold) * static_cast<double>(total)));
    if (held >= wanted) {
      Write(~0u, 0);
      return;
    }
    Shares missing = wanted - held;
    const uint32_t least = FindLeast(missing);
    Write(least, static_cast<int>(missing / least + (missing % least == 0 ? 0 : 1)));
  }

 private:
  __device__ bool IsFloor(int block) const { return block == 0 || block >= local_; }
  // A block's share takes the place of its first weight.
  __device__ uint32_t ShareOf(int block) const { return __float_as_uint(weights_[block].x); }

  // Returns false if weights are no numbers.
  __device__ bool FindShares() {
    float4 largest = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    for (int block = static_cast<int>(threadIdx.x); block < num_blocks_; block += kThreads) {
      largest = Larger(largest, weights_[block]);
    }
    largest = JoinBlock(largest, shared_.largest_of_warps, &Larger);
    float4 sum = {0, 0, 0, 0};
    for (int block = static_cast<int>(threadIdx.x); block < num_blocks_; block += kThreads) {
      const float4 of_block = weights_[block];
      sum.x += exp2f(of_block.x - largest.x);
      sum.y += exp2f(of_block.y - largest.y);
      sum.z += exp2f(of_block.z - largest.z);
      sum.w += exp2f(of_block.w - largest.w);
    }
    sum = JoinBlock(sum, shared_.sums_of_warps, Sum());
    if (!isfinite(sum.x + sum.y + sum.z + sum.w)) return false;  // the same in all threads
    for (int block = static_cast<int>(threadIdx.x); block < num_blocks_; block += kThreads) {
      const float4 of_block = weights_[block];
      const float share =
          exp2f(of_block.x - largest.x) / sum.x + exp2f(of_block.y - largest.y) / sum.y +
          exp2f(of_block.z - largest.z) / sum.z + exp2f(of_block.w - largest.w) / sum.w;
      weights_[block].x = __uint_as_float(static_cast<uint32_t>(share * kShares));
    }
    __syncthreads();
    return true;
  }

  // Finds the largest share of which all blocks with more, and some with as much, hold `missing`,
  // the floor's blocks aside. Leaves in `missing` what those with as much have to hold of it.
  //
  // REQUIRES: all blocks together hold it; it is more than 0.
  __device__ uint32_t FindLeast(Shares& missing) {
    uint32_t found = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      const uint32_t known = shift == 24 ? 0 : ~0u << (shift + 8);
      shared_.by_digit[threadIdx.x] = 0;
      __syncthreads();
      for (int block = static_cast<int>(threadIdx.x); block < num_blocks_; block += kThreads) {
        const uint32_t share = ShareOf(block);
        if (IsFloor(block) || share == 0 || (share & known) != found) continue;
        atomicAdd(&shared_.by_digit[share >> shift & (kDigits - 1)], Shares{share});
      }
      __syncthreads();
      if (threadIdx.x < 32) FindDigit(missing);
      __syncthreads();
      found |= shared_.digit << shift;
      missing = shared_.wanted;
    }
    return found;
  }

  // By one warp: a lane has 8 digits, the first lane the largest.
  __device__ void FindDigit(Shares missing) {
    static_assert(kThreads == kDigits);
    constexpr int kOfLane = kDigits / 32;
    const int lane = static_cast<int>(threadIdx.x);
    const Shares* const digits = shared_.by_digit + kDigits - kOfLane * (lane + 1);
    Shares own = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) own += digits[i];
    Shares held = own;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const Shares before = __shfl_up_sync(kAllLanes, held, lanes);
      if (lane >= lanes) held += before;
    }
    held -= own;  // by the lanes before
    if (held >= missing || held + own < missing) return;
    int i = kOfLane - 1;
    for (; held + digits[i] < missing; --i) held += digits[i];
    shared_.digit = static_cast<uint32_t>(kDigits - kOfLane * (lane + 1) + i);
    shared_.wanted = missing - held;
  }

  // Chooses the floor, blocks with more than `least`, and the first `num_ties` with as much.
  __device__ void Write(uint32_t least, int num_ties) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int words_of_warp = (launch_.words_of_pair + kWarps - 1) / kWarps;
    const int begin = warp * words_of_warp;
    const int end = min(begin + words_of_warp, launch_.words_of_pair);
    const auto is_tie = [&](int block) {
      return block < num_blocks_ && !IsFloor(block) && (least == 0 || ShareOf(block) == least);
    };
    int ties = 0;
    for (int word = begin; word < end && num_ties > 0; ++word) {
      ties += __popc(__ballot_sync(kAllLanes, is_tie(32 * word + lane)));
    }
    if (lane == 0) shared_.ties_of_warps[warp] = ties;
    __syncthreads();
    int before = 0, chosen = 0;
    for (int i = 0; i < warp; ++i) before += shared_.ties_of_warps[i];
    uint32_t* const words = launch_.words + int64_t{blockIdx.x} * launch_.words_of_pair;
    for (int word = begin; word < end; ++word) {
      const int block = 32 * word + lane;
      const unsigned tied = __ballot_sync(kAllLanes, num_ties > 0 && is_tie(block));
      const int rank = before + __popc(tied & ((1u << lane) - 1));
      before += __popc(tied);
      const bool is_chosen =
          block < num_blocks_ &&
          (IsFloor(block) || ((tied >> lane & 1) != 0 ? rank < num_ties : IsMore(block, least)));
      const unsigned bits = __ballot_sync(kAllLanes, is_chosen);
      if (lane == 0) words[word] = bits;
      chosen += __popc(bits);
    }
    if (lane == 0) shared_.counts_of_warps[warp] = chosen;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < kWarps; ++i) chosen += shared_.counts_of_warps[i];
    launch_.counts[blockIdx.x] = chosen;
  }
  __device__ bool IsMore(int block, uint32_t least) const {
    return least != 0 && ShareOf(block) > least;
  }

  const ChoiceLaunch& launch_;
  Shared& shared_;
  const int unit_;
  const int num_blocks_;
  const int local_;
  float4* const weights_;
};

// blockIdx.x: the pair.
__global__ void __launch_bounds__(kThreads)
    ChooseBlocksKernel(const __grid_constant__ ChoiceLaunch launch) {
  __shared__ Shared shared;
  Chooser(launch, shared).Run();
}

// A thread for each tile: finds how many come before it. Tiles are counted head by head, so that
// of equal ones those of a head, which read the same keys, are neighbours.
__global__ void __launch_bounds__(kThreads)
    OrderTilesKernel(const __grid_constant__ ChoiceLaunch launch) {
  __shared__ int lengths[kThreads];
  const int heads = launch.num_kv_heads * launch.group;
  const int of_head = (launch.num_units + 1) / 2;
  const int num_tiles = of_head * heads;
  const auto length_of = [&](int tile) {
    if (tile >= num_tiles) return -1;
    const int head = tile / of_head, unit = 2 * (tile % of_head);
    const int length = launch.counts[unit * heads + head];
    return unit + 1 < launch.num_units ? max(length, launch.counts[(unit + 1) * heads + head])
                                       : length;
  };
  const int own = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int length = length_of(own);
  int place = 0;
  for (int first = 0; first < num_tiles; first += kThreads) {
    __syncthreads();
    lengths[threadIdx.x] = length_of(first + static_cast<int>(threadIdx.x));
    __syncthreads();
    for (int i = 0; i < kThreads; ++i) {
      if (lengths[i] > length || (lengths[i] == length && first + i < own)) ++place;
    }
  }
  if (own < num_tiles) launch.order[place] = own % of_head * heads + own / of_head;
}

}  // namespace

cudaError_t LaunchChooseBlocks(const ChoiceLaunch& launch, cudaStream_t stream) {
  const int64_t pairs = int64_t{launch.num_units} * launch.num_kv_heads * launch.group;
  ChooseBlocksKernel<<<static_cast<unsigned>(pairs), kThreads, 0, stream>>>(launch);
  const cudaError_t error = cudaGetLastError();
  return error != cudaSuccess ? error : LaunchOrderTiles(launch, stream);
}

cudaError_t LaunchOrderTiles(const ChoiceLaunch& launch, cudaStream_t stream) {
  const int64_t tiles = (int64_t{launch.num_units} + 1) / 2 * launch.num_kv_heads * launch.group;
  OrderTilesKernel<<<static_cast<unsigned>((tiles + kThreads - 1) / kThreads), kThreads, 0,
                     stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace retroinfer::cuda
