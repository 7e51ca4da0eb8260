// Many rows: bound by the matrix products. A block multiplies 128 features of an expert (of a gated
// product 64 gates and their 64 ups) with a tile of its pairs; stages of columns of both come to
// shared memory ahead of their use, codes as they are, which become bf16 in registers.
//
// The products of an element are added in the order of k, whatever else is in a tile.
//
// Shared memory: rows of a stage, without gaps. Eight lanes that read at a time have four chunks of
// 16 bytes of two rows: of odd rows chunks are kept elsewhere, so that they do not meet in a bank.
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/cuda/grouped_forms.cuh"
#include "gpu_worker/ops/model/cuda/grouped_launch.h"

namespace retroinfer::cuda {
namespace {

constexpr int kBlockThreads = 128;  // two warps along features, two along pairs
constexpr int kBlockFeatures = 128;
constexpr int kBlockPairs = static_cast<int>(kPairsOfManyTile);
constexpr int kFeatureTiles = 4;  // of a warp: 64 features
constexpr int kPairTiles = 4;     // 32 pairs
constexpr int kStages = 3;
static_assert(kBlockPairs == 2 * kPairTiles * kTileRows);
static_assert(kBlockFeatures == 2 * kFeatureTiles * kTileFeatures);

// How a stage of a form lies in shared memory.
template <typename Form>
struct Stage {
  static constexpr int kSteps = Form::kStepCols < 64 ? 64 / Form::kStepCols : 1;
  static constexpr int kCols = kSteps * Form::kStepCols;
  static constexpr int kCodeRowBytes = kSteps * Form::kRowBytes;
  static constexpr int kInRowBytes = kCols * 2;
  static constexpr int kCodeBytes = kBlockFeatures * kCodeRowBytes;
  static constexpr int kBytes = kCodeBytes + kBlockPairs * kInRowBytes;

  // What is added, by exclusive or, to the number of a chunk of an odd row.
  static constexpr int kCodeTwist = kCodeRowBytes > 64 ? 4 : 0;
  static constexpr int kInTwist = Form::InputAt(0, 1) == 8 ? 4 : 1;

  __device__ static int CodeAt(int row, int chunk) {
    return row * kCodeRowBytes + (chunk ^ (row & 1) * kCodeTwist) * 16;
  }
  __device__ static int InAt(int row, int chunk) {
    return kCodeBytes + row * kInRowBytes + (chunk ^ (row & 1) * kInTwist) * 16;
  }
};

// Copies 16 bytes, or writes zeros.
__device__ void CopyChunk(uint32_t shared, const void* global, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global),
               "r"(exists ? 16 : 0)
               : "memory");
}

__device__ Packed8 ReadChunk(const std::byte* shared) {
  return *reinterpret_cast<const Packed8*>(__builtin_assume_aligned(shared, 16));
}

// What a block multiplies.
struct ManyTile {
  int64_t first;           // the weight's row of the block's first feature
  int64_t last;            // the last row of its part that exists
  int64_t first_of_other;  // the same of features from 64 on, which may be of another part
  int64_t last_of_other;
  const int64_t* in_rows;  // [kBlockPairs] in shared memory: elements from `in` on

  // The weight's row of a feature of the block; of one that does not exist, the last that does.
  __device__ int64_t RowOf(int feature) const {
    return feature < 64 ? min(first + feature, last)
                        : min(first_of_other + feature - 64, last_of_other);
  }
};

template <typename Form>
__device__ void CopyStage(const GroupedLaunch& launch, const ManyTile& tile, int64_t stage,
                          uint32_t shared) {
  using S = Stage<Form>;
  constexpr int kCodeChunks = S::kCodeRowBytes / 16;
  constexpr int kInChunks = S::kInRowBytes / 16;
#pragma unroll
  for (int i = threadIdx.x; i < kBlockFeatures * kCodeChunks; i += kBlockThreads) {
    const int row = i / kCodeChunks;
    const int chunk = i % kCodeChunks;
    const int64_t step = stage * S::kSteps + chunk / 4;
    const bool exists =
        step * Form::kStepCols + chunk % 4 * (Form::kStepCols / 4) < launch.weight.padded_cols;
    const std::byte* const from = Form::RowAt(launch.weight, tile.RowOf(row)) +
                                  (exists ? step * Form::StepBytes() + chunk % 4 * 16 : 0);
    CopyChunk(shared + S::CodeAt(row, chunk), from, exists);
  }
#pragma unroll
  for (int i = threadIdx.x; i < kBlockPairs * kInChunks; i += kBlockThreads) {
    const int row = i / kInChunks;
    const int chunk = i % kInChunks;
    const int64_t k = stage * S::kCols + chunk * 8;
    const bool exists = k < launch.in_features;
    const auto* const from =
        static_cast<const __nv_bfloat16*>(launch.in) + tile.in_rows[row] + (exists ? k : 0);
    CopyChunk(shared + S::InAt(row, chunk), from, exists);
  }
}

// The row of the weight's part in shared memory where feature tile i of a warp begins. In a gated
// product tiles 0 and 1 are gates, and 2 and 3 the ups of the same.
template <bool kGated>
__device__ int TileRow(int warp_along, int i) {
  if constexpr (kGated) return i / 2 * 64 + warp_along * 32 + i % 2 * kTileFeatures;
  return warp_along * 64 + i * kTileFeatures;
}

template <typename Form, bool kGated>
__device__ void MultiplyStage(const GroupedLaunch& launch, const ManyTile& tile, int64_t stage,
                              const std::byte* shared,
                              float (&sums)[kFeatureTiles][kPairTiles][4]) {
  using S = Stage<Form>;
  const int lane = threadIdx.x % 32;
  const int along = threadIdx.x / 32 % 2;
  const int across = threadIdx.x / 64;
#pragma unroll
  for (int step = 0; step < S::kSteps; ++step) {
    Packed8 x[kPairTiles][Form::kInputs];
#pragma unroll
    for (int j = 0; j < kPairTiles; ++j) {
      const int row = (across * kPairTiles + j) * kTileRows + lane / 4;
#pragma unroll
      for (int i = 0; i < Form::kInputs; ++i) {
        const int chunk = (step * Form::kStepCols + Form::InputAt(i, lane % 4)) / 8;
        x[j][i] = ReadChunk(shared + S::InAt(row, chunk));
      }
    }
#pragma unroll
    for (int i = 0; i < kFeatureTiles; ++i) {
      Packed8 codes[2];
      uint32_t scales[2][Form::kWords];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = TileRow<kGated>(along, i) + half * 8 + lane / 4;
        codes[half] = ReadChunk(shared + S::CodeAt(row, step * 4 + lane % 4));
        Form::LoadScales(launch.weight, tile.RowOf(row), stage * S::kSteps + step, scales[half]);
      }
      MultiplyStep<Form, kPairTiles>(codes, scales, x, sums[i]);
    }
  }
}

// Calls body(feature tile, pair tile, element, feature of the block, pair of the tile).
template <bool kGated, typename Body>
__device__ void ForSums(int num_tiles, const Body& body) {
  const int lane = threadIdx.x % 32;
  const int along = threadIdx.x / 32 % 2;
  const int across = threadIdx.x / 64;
#pragma unroll
  for (int i = 0; i < kFeatureTiles; ++i) {
    if (i >= num_tiles) break;
#pragma unroll
    for (int j = 0; j < kPairTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        body(i, j, e, TileRow<kGated>(along, i) + lane / 4 + e / 2 * 8,
             (across * kPairTiles + j) * kTileRows + lane % 4 * 2 + e % 2);
      }
    }
  }
}

template <typename Form, bool kGated>
__device__ void StoreSums(const GroupedLaunch& launch, const ManyTile& tile, const int32_t* pairs,
                          int64_t count, const float (&sums)[kFeatureTiles][kPairTiles][4]) {
  constexpr int kOutputs = kGated ? kBlockFeatures / 2 : kBlockFeatures;
  const int64_t first = int64_t{blockIdx.x} * kOutputs;
  auto* const out = static_cast<__nv_bfloat16*>(launch.out);
  const auto product_of = [&](float sum, int feature) {
    const int64_t row = tile.RowOf(feature);
    return sum * Form::FeatureScale(launch.weight, row) + BiasOf(launch, row);
  };
  ForSums<kGated>(kGated ? 2 : kFeatureTiles, [&](int i, int j, int e, int feature, int pair) {
    if (pair >= count || first + feature >= launch.features) return;
    float value = product_of(sums[i][j][e], feature);
    if constexpr (kGated) {
      value = GateTimes(launch.activation, value,
                        product_of(sums[(i + 2) % kFeatureTiles][j][e], feature + 64));
    }
    out[pairs[pair] * launch.out_stride + first + feature] = __float2bfloat16_rn(value);
  });
}

// On a multiprocessor, of which registers and shared memory allow so many.
template <typename Form>
constexpr int kBlocks = Form::kMmas > 4 ? 2 : 3;

// blockIdx.x: features; blockIdx.y: tiles.
template <typename Form, bool kGated>
__global__ void __launch_bounds__(kBlockThreads, kBlocks<Form>)
    GroupedManyKernel(const GroupedLaunch launch) {
  extern __shared__ __align__(128) std::byte stages[];
  __shared__ int64_t in_rows[kBlockPairs];
  using S = Stage<Form>;
  AllowNextKernel();
  AwaitLastKernel();
  const RoutePlan& plan = launch.plan;
  if (static_cast<int32_t>(blockIdx.y) >= launch.words[0]) return;
  const int32_t* const words = launch.words + plan.tiles_at() + 2 * blockIdx.y;
  const int64_t expert = words[0];
  const int64_t end = launch.words[plan.begins_at() + expert + 1];
  const int64_t count = min(end - words[1], int64_t{kBlockPairs});
  const int32_t* const pairs = launch.words + plan.pairs_at() + words[1];
  if (threadIdx.x < kBlockPairs) {
    // Pairs that do not exist are the last that does; nothing of theirs is stored.
    const int64_t pair = pairs[min(int64_t{threadIdx.x}, count - 1)];
    in_rows[threadIdx.x] = (kGated ? RowOfPair(plan, pair) : pair) * launch.in_stride;
  }
  __syncthreads();
  const int64_t part = expert * (kGated ? 2 : 1) * launch.features;
  const int64_t first = part + int64_t{blockIdx.x} * (kGated ? 64 : kBlockFeatures);
  const ManyTile tile = {.first = first,
                         .last = part + launch.features - 1,
                         .first_of_other = first + (kGated ? launch.features : 64),
                         .last_of_other = part + (kGated ? 2 : 1) * launch.features - 1,
                         .in_rows = in_rows};

  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(stages));
  const int64_t num_stages = (launch.weight.padded_cols + S::kCols - 1) / S::kCols;
  const auto copy = [&](int64_t stage) {
    if (stage < num_stages) {
      CopyStage<Form>(launch, tile, stage,
                      shared + static_cast<uint32_t>(stage % kStages) * S::kBytes);
    }
    asm volatile("cp.async.commit_group;\n" ::: "memory");
  };
  for (int64_t stage = 0; stage < kStages - 1; ++stage) copy(stage);
  float sums[kFeatureTiles][kPairTiles][4] = {};
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(kStages - 2) : "memory");
    __syncthreads();
    copy(stage + kStages - 1);
    MultiplyStage<Form, kGated>(launch, tile, stage, stages + stage % kStages * S::kBytes, sums);
  }
  StoreSums<Form, kGated>(launch, tile, pairs, count, sums);
}

struct AddProductsLaunch {
  const __nv_bfloat16* products;
  int64_t products_stride;
  const float* weights;
  int64_t per_row;
  int64_t features;
  __nv_bfloat16* out;
  int64_t out_stride;
  bool accumulate;
};

constexpr int kAddThreads = 256;

// blockIdx.x is the row; a thread has eight columns. Bound by the bytes of the products.
__global__ void __launch_bounds__(kAddThreads) AddProductsKernel(const AddProductsLaunch launch) {
  AllowNextKernel();
  AwaitLastKernel();
  const int64_t at = (int64_t{blockIdx.y} * kAddThreads + threadIdx.x) * 8;
  if (at >= launch.features) return;
  __nv_bfloat16* const out = launch.out + blockIdx.x * launch.out_stride;
  float sums[8] = {};
  for (int64_t k = 0; k < launch.per_row; ++k) {
    const int64_t pair = blockIdx.x * launch.per_row + k;
    const float weight = launch.weights[pair];
    float values[8];
    Load8(launch.products + pair * launch.products_stride, at, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = fmaf(weight, values[i], sums[i]);
  }
  if (launch.accumulate) {
    float values[8];
    Load8(out, at, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = values[i] + sums[i];
  }
  Store8(out, at, sums);
}

template <typename Form>
cudaError_t Prepare() {
  for (const auto& kernel : {&GroupedManyKernel<Form, false>, &GroupedManyKernel<Form, true>}) {
    const cudaError_t code = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kStages * Stage<Form>::kBytes);
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

template <bool kGated>
cudaError_t LaunchMany(const GroupedLaunch& launch, cudaStream_t stream) {
  const int64_t outputs = kGated ? kBlockFeatures / 2 : kBlockFeatures;
  const dim3 grid(static_cast<unsigned>(DivideUp(launch.features, outputs)),
                  static_cast<unsigned>(launch.plan.most_tiles()));
  return WithForm(launch.weight.form, [&]<typename Form>(Form) {
    return LaunchDependent({.grid = grid,
                            .block = dim3(kBlockThreads),
                            .shared_bytes = size_t{kStages} * Stage<Form>::kBytes,
                            .stream = stream},
                           &GroupedManyKernel<Form, kGated>, launch);
  });
}

}  // namespace

cudaError_t PrepareGroupedMany() {
  for (const cudaError_t code :
       {Prepare<Bf16Form>(), Prepare<Fp8Form<false>>(), Prepare<Fp8Form<true>>(),
        Prepare<Int4Form<1>>(), Prepare<Int4Form<4>>()}) {
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

cudaError_t LaunchGroupedGatedMany(const GroupedLaunch& launch, cudaStream_t stream) {
  return LaunchMany<true>(launch, stream);
}

cudaError_t LaunchGroupedMany(const GroupedLaunch& launch, cudaStream_t stream) {
  return LaunchMany<false>(launch, stream);
}

cudaError_t LaunchAddProducts(const void* products, int64_t products_stride,
                              const GroupedLaunch& launch, cudaStream_t stream) {
  const AddProductsLaunch add = {static_cast<const __nv_bfloat16*>(products),
                                 products_stride,
                                 launch.weights,
                                 launch.plan.per_row,
                                 launch.features,
                                 static_cast<__nv_bfloat16*>(launch.out),
                                 launch.out_stride,
                                 launch.accumulate};
  const dim3 grid(static_cast<unsigned>(launch.rows),
                  static_cast<unsigned>(DivideUp(launch.features, kAddThreads * 8)));
  return LaunchDependent({.grid = grid, .block = dim3(kAddThreads), .stream = stream},
                         &AddProductsKernel, add);
}

}  // namespace retroinfer::cuda
