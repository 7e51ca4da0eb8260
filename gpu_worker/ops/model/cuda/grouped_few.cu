// Few rows: bound by reading the matrices of the experts that are taken once. At most eight pairs
// of an expert are multiplied together (RoutePlan's tiles), so that a weight that is read is one
// operand of one matrix instruction.
//
// The order in which the products of an element are added depends on the weight and on the experts
// of a row alone: of a gated product eight warps take a slice of k each, whose sums are added in
// the order of the warps; of the second one a slice is what one warp adds up, and the sums are
// added in the order of slices, and then of the row's experts.
#include <algorithm>

#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/cuda/grouped_forms.cuh"
#include "gpu_worker/ops/model/cuda/grouped_launch.h"

namespace retroinfer::cuda {
namespace {

static_assert(kPairsOfFewTile == kTileRows);

// Of k, and how many of them shared memory has room for: sums of 16 features for each pair of a
// group.
constexpr int64_t kColsOfSlice = 1024;
constexpr int64_t kMostSums = 24 * kRowsOfRouteGroup;  // of pairs and slices, for each feature
constexpr size_t kMostSharedBytes = kMostSums * kTileFeatures * sizeof(float);
static_assert(kMostSums >= kRowsOfRouteGroup * kMostExpertsPerRow);

// Steps of a warp whose bytes are under way at a time: as many as registers hold, of two blocks on
// a multiprocessor where a warp has two tiles.
template <typename Form, int kTiles>
constexpr int StepsAhead() {
  constexpr bool kPair = kTiles == 2;
  if constexpr (Form::kMmas == 2) return kPair ? 4 : 8;
  if constexpr (Form::kMmas == 4) return kPair ? 3 : 6;
  return kPair ? 1 : 4;
}

int64_t SlicesOf(int64_t in_features, int64_t per_row) {
  return std::clamp<int64_t>(DivideUp(in_features, kColsOfSlice), 1,
                             kMostSums / kRowsOfRouteGroup / per_row);
}

// A tile of pairs as a lane sees it.
struct FewTile {
  int64_t expert = 0;
  int64_t count = 0;               // pairs
  const int32_t* pairs = nullptr;  // counted from the group's first

  __device__ static FewTile At(const RoutePlan& plan, const int32_t* words, int64_t index) {
    const int32_t* const tile = words + plan.tiles_at() + 2 * index;
    const int64_t end = words[plan.begins_at() + tile[0] + 1];
    return {tile[0], min(end - tile[1], kPairsOfFewTile), words + plan.pairs_at() + tile[1]};
  }
  // Pairs that do not exist are the last that does; nothing of theirs is stored.
  __device__ int64_t PairOf(int64_t i) const { return pairs[min(i, count - 1)]; }
};

// Adds steps [begin, end) of the rows `first_rows` to first_rows + 15 of the weight, times the
// lane's row of `in`. Lane l gets features l / 4 and l / 4 + 8 for the pairs 2 * (l % 4) and the
// next. Rows beyond `last_rows` are read from there.
template <typename Form, int kTiles>
__device__ void MultiplySteps(const GroupedLaunch& launch, const int64_t (&first_rows)[kTiles],
                              const int64_t (&last_rows)[kTiles], const __nv_bfloat16* in,
                              int64_t begin, int64_t end, float (&sums)[kTiles][4]) {
  constexpr int kSteps = StepsAhead<Form, kTiles>();
  const int lane = threadIdx.x % 32;
  const int chunk = lane % 4;
  int64_t rows[kTiles][2];
  const std::byte* codes[kTiles][2];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      rows[i][half] = min(first_rows[i] + half * 8 + lane / 4, last_rows[i]);
      codes[i][half] = Form::RowAt(launch.weight, rows[i][half]) + chunk * 16;
    }
  }
  // What rows of 16 bits or 8 have beyond their last whole step.
  const int64_t padded_cols = launch.weight.padded_cols;
  const int cols_of_chunk = Form::kStepCols / 4;
  Packed8 ring[kSteps][kTiles][2];
  Packed8 x[kSteps][1][Form::kInputs];
  uint32_t scales[kSteps][kTiles][2][Form::kWords];
  const auto request = [&](int u, int64_t step) {
    if (step >= end) return;
    const bool exists = step * Form::kStepCols + chunk * cols_of_chunk < padded_cols;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ring[u][i][half] =
            exists ? LoadStreaming(codes[i][half] + step * Form::StepBytes()) : Packed8{};
        Form::LoadScales(launch.weight, rows[i][half], step, scales[u][i][half]);
      }
    }
#pragma unroll
    for (int i = 0; i < Form::kInputs; ++i) {
      const int64_t k = step * Form::kStepCols + Form::InputAt(i, chunk);
      x[u][0][i] = k < launch.in_features ? LoadInput<true>(in, k, launch.in_features) : Packed8{};
    }
  };
#pragma unroll
  for (int u = 0; u < kSteps; ++u) request(u, begin + u);
  for (int64_t at = begin; at < end; at += kSteps) {
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      if (at + u >= end) break;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        float(&of_tile)[1][4] = *reinterpret_cast<float(*)[1][4]>(&sums[i]);
        MultiplyStep<Form, 1>(ring[u][i], scales[u][i], x[u], of_tile);
      }
      request(u, at + kSteps + u);
    }
  }
}

// blockIdx.x: 16 features; blockIdx.y: tiles; blockIdx.z: groups.
template <typename Form>
__global__ void __launch_bounds__(kThreads, 2) GroupedGatedFewKernel(const GroupedLaunch launch) {
  constexpr int kSumsOfWarp = 2 * kTileFeatures * kTileRows;
  __shared__ float partial[kWarps * kSumsOfWarp];
  AllowNextKernel();
  AwaitLastKernel();
  const RoutePlan& plan = launch.plan;
  const int32_t* const words = launch.words + blockIdx.z * plan.group_words();
  if (static_cast<int32_t>(blockIdx.y) >= words[0]) return;
  const FewTile tile = FewTile::At(plan, words, blockIdx.y);
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int64_t first_pair = blockIdx.z * plan.group_pairs();
  const int64_t first_output = int64_t{blockIdx.x} * kTileFeatures;
  const int64_t gate = tile.expert * 2 * launch.features;
  const int64_t up = gate + launch.features;
  const int64_t row = RowOfPair(plan, first_pair + tile.PairOf(lane / 4));
  const auto* const in = static_cast<const __nv_bfloat16*>(launch.in) + row * launch.in_stride;
  const int64_t steps = (launch.weight.padded_cols + Form::kStepCols - 1) / Form::kStepCols;
  const int64_t steps_of_warp = (steps + kWarps - 1) / kWarps;
  float sums[2][4] = {};
  MultiplySteps<Form, 2>(launch, {gate + first_output, up + first_output},
                         {up - 1, up + launch.features - 1}, in, warp * steps_of_warp,
                         min(steps, (warp + 1) * steps_of_warp), sums);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int feature = i * kTileFeatures + lane / 4 + e / 2 * 8;
      const int pair = lane % 4 * 2 + e % 2;
      partial[warp * kSumsOfWarp + pair * 2 * kTileFeatures + feature] = sums[i][e];
    }
  }
  __syncthreads();
  if (threadIdx.x >= kTileFeatures * kTileRows) return;
  const int pair = threadIdx.x / kTileFeatures;
  const int64_t output = first_output + threadIdx.x % kTileFeatures;
  if (pair >= tile.count || output >= launch.features) return;
  const auto sum_of = [&](int half) {
    const int at =
        (pair * 2 + half) * kTileFeatures + static_cast<int>(threadIdx.x) % kTileFeatures;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += partial[i * kSumsOfWarp + at];
    return sum;
  };
  const float of_gate =
      sum_of(0) * Form::FeatureScale(launch.weight, gate + output) + BiasOf(launch, gate + output);
  const float of_up =
      sum_of(1) * Form::FeatureScale(launch.weight, up + output) + BiasOf(launch, up + output);
  auto* const out =
      static_cast<__nv_bfloat16*>(launch.out) + (first_pair + tile.pairs[pair]) * launch.out_stride;
  out[output] = __float2bfloat16_rn(GateTimes(launch.activation, of_gate, of_up));
}

// blockIdx.x: 16 features; blockIdx.y: groups. A warp takes a slice of a tile, then another one;
// the sums of all pairs of the group come together in shared memory.
template <typename Form>
__global__ void __launch_bounds__(kThreads)
    GroupedFewKernel(const GroupedLaunch launch, int num_slices) {
  extern __shared__ float sums_of[];  // [slices][pairs][16]
  AllowNextKernel();
  AwaitLastKernel();
  const RoutePlan& plan = launch.plan;
  const int32_t* const words = launch.words + blockIdx.y * plan.group_words();
  const int lane = threadIdx.x % 32;
  const int64_t first_pair = blockIdx.y * plan.group_pairs();
  const int64_t first_feature = int64_t{blockIdx.x} * kTileFeatures;
  const int64_t steps = (launch.weight.padded_cols + Form::kStepCols - 1) / Form::kStepCols;
  const int64_t steps_of_slice = (steps + num_slices - 1) / num_slices;
  const int num_items = words[0] * num_slices;
  for (int item = threadIdx.x / 32; item < num_items; item += kWarps) {
    const FewTile tile = FewTile::At(plan, words, item / num_slices);
    const int64_t slice = item % num_slices;
    const int64_t first_row = tile.expert * launch.features;
    const auto* const in = static_cast<const __nv_bfloat16*>(launch.in) +
                           (first_pair + tile.PairOf(lane / 4)) * launch.in_stride;
    float sums[1][4] = {};
    MultiplySteps<Form, 1>(launch, {first_row + first_feature}, {first_row + launch.features - 1},
                           in, slice * steps_of_slice, min(steps, (slice + 1) * steps_of_slice),
                           sums);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int pair = lane % 4 * 2 + e % 2;
      const int feature = lane / 4 + e / 2 * 8;
      if (pair >= tile.count || first_feature + feature >= launch.features) continue;
      const float scale = Form::FeatureScale(launch.weight, first_row + first_feature + feature);
      // The first slice brings the bias.
      const float bias = slice == 0 ? BiasOf(launch, first_row + first_feature + feature) : 0;
      sums_of[(slice * plan.group_pairs() + tile.pairs[pair]) * kTileFeatures + feature] =
          sums[0][e] * scale + bias;
    }
  }
  __syncthreads();
  const int64_t first_of_rows = blockIdx.y * plan.group_rows;
  const int64_t rows = min(plan.group_rows, launch.rows - first_of_rows);
  for (int64_t i = threadIdx.x; i < rows * kTileFeatures; i += kThreads) {
    const int64_t row = i / kTileFeatures;
    const int64_t feature = first_feature + i % kTileFeatures;
    if (feature >= launch.features) continue;
    float sum = 0;
    for (int64_t pair = row * plan.per_row; pair < (row + 1) * plan.per_row; ++pair) {
      float of_pair = 0;
      for (int64_t slice = 0; slice < num_slices; ++slice) {
        of_pair += sums_of[(slice * plan.group_pairs() + pair) * kTileFeatures + i % kTileFeatures];
      }
      sum = fmaf(launch.weights[first_pair + pair], of_pair, sum);
    }
    auto* const out = static_cast<__nv_bfloat16*>(launch.out) +
                      (first_of_rows + row) * launch.out_stride + feature;
    *out = __float2bfloat16_rn(launch.accumulate ? __bfloat162float(*out) + sum : sum);
  }
}

template <typename Form>
cudaError_t Prepare() {
  return cudaFuncSetAttribute(&GroupedFewKernel<Form>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(kMostSharedBytes));
}

}  // namespace

cudaError_t PrepareGroupedFew() {
  for (const cudaError_t code :
       {Prepare<Bf16Form>(), Prepare<Fp8Form<false>>(), Prepare<Fp8Form<true>>(),
        Prepare<Int4Form<1>>(), Prepare<Int4Form<4>>()}) {
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

cudaError_t LaunchGroupedGatedFew(const GroupedLaunch& launch, cudaStream_t stream) {
  const RoutePlan& plan = launch.plan;
  const LaunchShape shape = {
      .grid = dim3(static_cast<unsigned>(DivideUp(launch.features, kTileFeatures)),
                   static_cast<unsigned>(plan.most_tiles()),
                   static_cast<unsigned>(plan.num_groups(launch.rows))),
      .block = dim3(kThreads),
      .stream = stream};
  return WithForm(launch.weight.form, [&]<typename Form>(Form) {
    return LaunchDependent(shape, &GroupedGatedFewKernel<Form>, launch);
  });
}

cudaError_t LaunchGroupedFew(const GroupedLaunch& launch, cudaStream_t stream) {
  const RoutePlan& plan = launch.plan;
  const auto slices = static_cast<int>(SlicesOf(launch.in_features, plan.per_row));
  const LaunchShape shape = {
      .grid = dim3(static_cast<unsigned>(DivideUp(launch.features, kTileFeatures)),
                   static_cast<unsigned>(plan.num_groups(launch.rows))),
      .block = dim3(kThreads),
      .shared_bytes =
          static_cast<size_t>(plan.group_pairs() * slices * kTileFeatures) * sizeof(float),
      .stream = stream};
  return WithForm(launch.weight.form, [&]<typename Form>(Form) {
    return LaunchDependent(shape, &GroupedFewKernel<Form>, launch, slices);
  });
}

}  // namespace retroinfer::cuda
