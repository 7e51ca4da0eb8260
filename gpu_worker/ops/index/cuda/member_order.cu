// Invariants:
// * Each warp sorts a run of consecutive tokens; runs follow each other inside a cluster, and lanes
//   inside a run, so that the order of a cluster's tokens is that of the text on every run.
// * The counters of a warp are its own: nothing depends on which of two atomics came first.
// The order is made in shared memory: scattered stores of two bytes to device memory took longer
// than all the rest.
#include "common/status/status_macros.h"
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/index/cuda/member_order.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxPerLane = kMaxOrderedTokens / kThreads;
constexpr unsigned kAllLanes = 0xffffffff;

// The lanes whose tokens are in the same cluster. A vote for each bit, which takes less
// time than __match_any_sync where most lanes differ.
__device__ unsigned LanesOf(int32_t cluster) {
  static_assert(kMaxOrderedClusters == 1 << 9);
  unsigned lanes = kAllLanes;
#pragma unroll
  for (int bit = 0; bit < 9; ++bit) {
    const bool is_set = (cluster >> bit & 1) != 0;
    const unsigned votes = __ballot_sync(kAllLanes, is_set);
    lanes &= is_set ? votes : ~votes;
  }
  return lanes;
}

// Sum of `value` over the threads before this one.
__device__ uint32_t SumBefore(uint32_t value, uint32_t* warp_sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  uint32_t sum = value;
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  const uint32_t before = __reduce_add_sync(kAllLanes, lane < warp ? warp_sums[lane] : 0);
  return before + sum - value;
}

struct OrderShared {
  // Members in the warp's run, then the place of the warp's next member.
  uint16_t places[kWarps][kMaxOrderedClusters];
  alignas(16) uint16_t tokens[kMaxOrderedTokens];
  uint32_t warp_sums[kWarps];
};

// One block a head. Bound by latency, so that a lane loads all its tokens' clusters before it
// counts any.
__global__ void __launch_bounds__(kThreads)
    OrderMembersKernel(const int32_t* assignments, int32_t num_tokens, int32_t num_clusters,
                       MemberOrder order, int32_t* sizes) {
  extern __shared__ __align__(16) std::byte memory[];
  auto& shared = *reinterpret_cast<OrderShared*>(memory);
  auto& places = shared.places;
  AllowNextKernel();
  for (auto i = static_cast<int32_t>(threadIdx.x); i < kWarps * kMaxOrderedClusters / 8;
       i += kThreads) {
    reinterpret_cast<uint4*>(&places[0][0])[i] = {};
  }
  AwaitLastKernel();
  const int64_t head = blockIdx.x;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % 32;
  const int32_t warp = thread / 32;
  const int32_t* const assignment = assignments + head * num_tokens;
  const int32_t per_lane = num_tokens / kThreads;
  const int32_t first_token = warp * per_lane * 32 + lane;
  int32_t clusters[kMaxPerLane];
  unsigned peers[kMaxPerLane];  // lanes of the same cluster
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    clusters[i] = i < per_lane ? assignment[first_token + i * 32] : 0;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    if (i >= per_lane) break;
    const int32_t cluster = clusters[i];
    peers[i] = LanesOf(cluster);
    if (__ffs(static_cast<int>(peers[i])) - 1 == lane) {
      places[warp][cluster] += static_cast<uint16_t>(__popc(peers[i]));
    }
    __syncwarp();
  }
  __syncthreads();
  uint32_t size = 0;
  if (thread < num_clusters) {
    for (auto& warp_places : places) size += warp_places[thread];
  }
  uint32_t place = SumBefore(size, shared.warp_sums);
  if (thread < num_clusters) {
    order.first[head * num_clusters + thread] = place;
    if (sizes != nullptr) sizes[head * num_clusters + thread] = static_cast<int32_t>(size);
    for (auto& warp_places : places) {
      const uint16_t members = warp_places[thread];
      warp_places[thread] = static_cast<uint16_t>(place);
      place += members;
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kMaxPerLane; ++i) {
    if (i >= per_lane) break;
    const int32_t cluster = clusters[i];
    const int before = __popc(peers[i] & ((1u << lane) - 1));
    const uint16_t first = places[warp][cluster];
    shared.tokens[first + before] = static_cast<uint16_t>(first_token + i * 32);
    __syncwarp();
    if (before == 0) places[warp][cluster] = static_cast<uint16_t>(first + __popc(peers[i]));
    __syncwarp();
  }
  __syncthreads();
  auto* const ordered = reinterpret_cast<uint4*>(order.tokens + head * num_tokens);
  for (int32_t i = thread; i < num_tokens / 8; i += kThreads) {
    ordered[i] = reinterpret_cast<const uint4*>(shared.tokens)[i];
  }
}

}  // namespace

absl::Status OrderMembers(CudaStream& stream, const int32_t* assignment, uint32_t num_heads,
                          int32_t num_tokens, int32_t num_clusters, const MemberOrder& order,
                          int32_t* sizes, bool early) {
  RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
      OrderMembersKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(OrderShared)));
  return CudaStatus(
      LaunchDependent({.grid = num_heads,
                       .block = kThreads,
                       .shared_bytes = sizeof(OrderShared),
                       .stream = stream.get(),
                       .early = early},
                      &OrderMembersKernel, assignment, num_tokens, num_clusters, order, sizes),
      "launching order_members");
}

}  // namespace retroinfer::cuda
