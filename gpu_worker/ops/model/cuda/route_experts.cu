// Bound by latency: a score for each row and expert is read, a few words for each pair are written.
//
// A warp chooses for a row. A block sorts the pairs of a group of few rows, a thread for each
// expert; of many rows a block has an expert, and looks at the experts of all pairs. Both leave an
// expert's pairs in their order.
#include <cub/block/block_scan.cuh>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/cuda/route_experts.h"
#include "gpu_worker/ops/model/route_experts_check.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kScoresOfLane = kMostExperts / 32;
constexpr int kMostGroupPairs = kRowsOfRouteGroup * kMostExpertsPerRow;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr uint32_t kChosen = 0;  // below the rank of any score
static_assert(kMostExperts <= kThreads);

struct RouteLaunch {
  const float* scores;
  int64_t stride;
  int64_t rows;
  bool weights_sum_to_one;
  RoutePlan plan;
  int32_t* experts;
  float* weights;
  int32_t* words;
};

// Larger scores have larger ranks; those of equal scores, and of both zeros, are the same.
__device__ uint32_t RankOf(float score) {
  if (isnan(score)) score = -INFINITY;
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Chooses the experts of a row, with all lanes of a warp. Lane i < per_row gets the i-th.
__device__ void RouteRow(const RouteLaunch& launch, int64_t row, int32_t& chosen, float& weight) {
  const int lane = threadIdx.x % 32;
  const auto num_experts = static_cast<int>(launch.plan.num_experts);
  const auto per_row = static_cast<int>(launch.plan.per_row);
  const float* const scores = launch.scores + row * launch.stride;
  float score_of[kScoresOfLane];
  uint32_t rank_of[kScoresOfLane];
#pragma unroll
  for (int i = 0; i < kScoresOfLane; ++i) {
    const int expert = i * 32 + lane;
    score_of[i] = expert < num_experts ? scores[expert] : -INFINITY;
    rank_of[i] = expert < num_experts ? RankOf(score_of[i]) : kChosen;
  }
  chosen = 0;
  float score = 0;
  float largest = 0;
  for (int k = 0; k < per_row; ++k) {
    uint32_t rank = kChosen;
#pragma unroll
    for (int i = 0; i < kScoresOfLane; ++i) rank = max(rank, rank_of[i]);
    const uint32_t best = __reduce_max_sync(kAllLanes, rank);
    unsigned first = num_experts;
#pragma unroll
    for (int i = kScoresOfLane - 1; i >= 0; --i) {
      if (rank_of[i] == best) first = i * 32 + lane;
    }
    const unsigned expert = __reduce_min_sync(kAllLanes, first);
    float of_lane = 0;
#pragma unroll
    for (int i = 0; i < kScoresOfLane; ++i) {
      if (expert != static_cast<unsigned>(i * 32 + lane)) continue;
      of_lane = score_of[i];
      rank_of[i] = kChosen;
    }
    const float of_expert = __shfl_sync(kAllLanes, of_lane, static_cast<int>(expert % 32));
    if (k == 0) largest = of_expert;
    if (lane == k) {
      chosen = static_cast<int32_t>(expert);
      score = of_expert;
    }
  }
  weight = lane < per_row ? expf(score - largest) : 0.0f;
  float sum = 0;
  if (launch.weights_sum_to_one) {
    for (int k = 0; k < per_row; ++k) sum += __shfl_sync(kAllLanes, weight, k);
  } else {
#pragma unroll
    for (int i = 0; i < kScoresOfLane; ++i) {
      if (i * 32 + lane < num_experts) sum += expf(score_of[i] - largest);
    }
#pragma unroll
    for (int half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(kAllLanes, sum, half);
  }
  weight /= sum;
}

// Writes where the pairs and tiles of each expert are; thread e has the count of expert e. Returns
// where the pairs of the thread's expert begin.
__device__ int WriteBegins(const RoutePlan& plan, int count, int32_t* words) {
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ Scan::TempStorage storage;
  const int expert = threadIdx.x;
  const auto tile_pairs = static_cast<int>(plan.tile_pairs);
  const int tiles = (count + tile_pairs - 1) / tile_pairs;
  int begin = 0;
  int first_tile = 0;
  int num_tiles = 0;
  Scan(storage).ExclusiveSum(count, begin);
  __syncthreads();
  Scan(storage).ExclusiveSum(tiles, first_tile, num_tiles);
  if (expert == 0) words[0] = num_tiles;
  if (expert < plan.num_experts) words[plan.begins_at() + expert] = begin;
  if (expert == plan.num_experts - 1) words[plan.begins_at() + expert + 1] = begin + count;
  int32_t* const tile = words + plan.tiles_at() + 2 * first_tile;
  for (int i = 0; i < tiles; ++i) {
    tile[2 * i] = expert;
    tile[2 * i + 1] = begin + i * tile_pairs;
  }
  return begin;
}

// blockIdx.x is the group.
__global__ void __launch_bounds__(kThreads) RouteFewKernel(const RouteLaunch launch) {
  __shared__ int32_t expert_of[kMostGroupPairs];
  const RoutePlan& plan = launch.plan;
  const int lane = threadIdx.x % 32;
  const auto per_row = static_cast<int>(plan.per_row);
  AllowNextKernel();
  AwaitLastKernel();
  const int64_t first_row = blockIdx.x * plan.group_rows;
  const int64_t rows = min(plan.group_rows, launch.rows - first_row);
  for (int64_t row = threadIdx.x / 32; row < rows; row += kWarps) {
    int32_t chosen;
    float weight;
    RouteRow(launch, first_row + row, chosen, weight);
    if (lane >= per_row) continue;
    const int64_t pair = (first_row + row) * per_row + lane;
    launch.experts[pair] = chosen;
    launch.weights[pair] = weight;
    expert_of[row * per_row + lane] = chosen;
  }
  __syncthreads();
  const int pairs = static_cast<int>(rows) * per_row;
  const int expert = threadIdx.x;
  int count = 0;
  for (int pair = 0; pair < pairs; ++pair) count += expert_of[pair] == expert;
  int32_t* const words = launch.words + blockIdx.x * plan.group_words();
  int at = WriteBegins(plan, count, words);
  for (int pair = 0; count > 0 && pair < pairs; ++pair) {
    if (expert_of[pair] == expert) words[plan.pairs_at() + at++] = pair;
  }
}

// A warp has a row.
__global__ void __launch_bounds__(kThreads) RouteManyKernel(const RouteLaunch launch) {
  AllowNextKernel();
  AwaitLastKernel();
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= launch.rows) return;
  int32_t chosen;
  float weight;
  RouteRow(launch, row, chosen, weight);
  if (lane >= launch.plan.per_row) return;
  launch.experts[row * launch.plan.per_row + lane] = chosen;
  launch.weights[row * launch.plan.per_row + lane] = weight;
}

// blockIdx.x is the expert. All rows are one group; each block counts the pairs of all experts, and
// the first one writes where they begin.
__global__ void __launch_bounds__(kThreads) SortManyKernel(const RouteLaunch launch) {
  __shared__ int count_of[kMostExperts];
  __shared__ int begin_of[kMostExperts + 1];
  __shared__ int warp_counts[kWarps];
  const RoutePlan& plan = launch.plan;
  AllowNextKernel();
  AwaitLastKernel();
  const int64_t pairs = launch.rows * plan.per_row;
  count_of[threadIdx.x] = 0;
  __syncthreads();
  for (int64_t pair = threadIdx.x; pair < pairs; pair += kThreads) {
    atomicAdd(&count_of[launch.experts[pair]], 1);
  }
  __syncthreads();
  const auto mine = static_cast<int>(blockIdx.x);
  if (blockIdx.x == 0) {
    begin_of[threadIdx.x] = WriteBegins(plan, count_of[threadIdx.x], launch.words);
  } else if (threadIdx.x == 0) {
    int begin = 0;
    for (int expert = 0; expert < mine; ++expert) begin += count_of[expert];
    begin_of[mine] = begin;
  }
  __syncthreads();
  int32_t* out = launch.words + plan.pairs_at() + begin_of[mine];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  for (int64_t first = 0; first < pairs; first += kThreads) {
    const int64_t pair = first + threadIdx.x;
    const bool found = pair < pairs && launch.experts[pair] == mine;
    const unsigned lanes = __ballot_sync(kAllLanes, found);
    if (lane == 0) warp_counts[warp] = __popc(lanes);
    __syncthreads();
    int before = 0;
    int all = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      before += i < warp ? warp_counts[i] : 0;
      all += warp_counts[i];
    }
    if (found) out[before + __popc(lanes & ((1u << lane) - 1))] = static_cast<int32_t>(pair);
    out += all;
    __syncthreads();
  }
}

}  // namespace

absl::Status RouteExperts(CudaStream& stream, const RouteExpertsArgs& args) {
  RETURN_IF_ERROR(CheckRouteExperts(args));
  const int64_t rows = args.scores.rows;
  if (rows == 0) return absl::OkStatus();
  const ExpertRoutes& routes = args.routes;
  const RouteLaunch launch = {reinterpret_cast<const float*>(args.scores.data),
                              args.scores.row_stride,
                              rows,
                              args.weights_sum_to_one,
                              RoutePlan::Of(routes.num_experts, routes.per_row, rows, args.decode),
                              routes.experts.device_data(),
                              routes.weights.device_data(),
                              routes.plan.device_data()};
  LaunchShape shape = {.block = dim3(kThreads), .stream = stream.get()};
  if (args.decode) {
    shape.grid = dim3(static_cast<unsigned>(launch.plan.num_groups(rows)));
    return CudaStatus(LaunchDependent(shape, &RouteFewKernel, launch), "launching route_experts");
  }
  shape.grid = dim3(static_cast<unsigned>(DivideUp(rows, kWarps)));
  RETURN_IF_ERROR(
      CudaStatus(LaunchDependent(shape, &RouteManyKernel, launch), "launching route_experts"));
  shape.grid = dim3(static_cast<unsigned>(routes.num_experts));
  return CudaStatus(LaunchDependent(shape, &SortManyKernel, launch), "launching route_experts");
}

}  // namespace retroinfer::cuda
