// Products of 17 to 64 rows where features are so many that every warp takes all of k: slice after
// slice, and adds their sums itself. A block computes a group of features at a time.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/model/cuda/some_rows_parts.cuh"

namespace retroinfer::cuda {

template <int kWarpsOfBlock, int kTilesOfRows, bool kIsGated>
struct WideShape {
  static constexpr bool kGated = kIsGated;
  static constexpr int kThreads = 32 * kWarpsOfBlock;
  static constexpr int kStagingThreads = 256;
  static_assert(kStagingThreads <= kThreads);
  static constexpr int kFeatures = kWarpsOfBlock * kTileFeatures;
  static constexpr int kOutputs = kGated ? kFeatures / 2 : kFeatures;
  static constexpr int kRowTiles = kTilesOfRows;
  static constexpr int kRows = kRowTiles * kTileRows;
  static constexpr int kStages = kRowTiles > 6 ? 4 : 6;  // the rest is the L1 cache's
  static constexpr int kStageBytes = kRows * kChunkBytes;
  static constexpr int kInputBytes = kStages * kStageBytes;
  static constexpr int kSharedBytes = kInputBytes + kRowTiles * 4 * kThreads * 4;
};

// Where a chunk is. They follow each other, of all slices of a group and then of the next.
struct ChunkPlace {
  int group;
  int slice = 0;
  int chunk = 0;

  __device__ void Advance(int chunks) {
    if (++chunk < chunks) return;
    chunk = 0;
    if (++slice < kSlicesOfK) return;
    slice = 0;
    group += gridDim.x;
  }
};

// Stores a lane's outputs of a tile, whose features begin at `first`. `totals`: of the lane, in
// shared memory; of a gated product those of the ups are the next warp's.
template <typename Form, typename Shape>
__device__ void StoreTile(const SomeRowsLaunch& launch, int64_t first_row, int64_t first,
                          const float* totals) {
  const int lane = threadIdx.x % 32;
  const int64_t outputs = launch.gemm.out_features / (Shape::kGated ? 2 : 1);
  for (int half = 0; half < 2; ++half) {
    const int64_t output = first + half * 8 + lane / 4;
    if (output >= outputs) continue;
    const float up_scale = Shape::kGated ? Form::FeatureScale(launch.weight, outputs + output) : 0;
#pragma unroll
    for (int i = 0; i < Shape::kRowTiles * 2; ++i) {
      const int64_t row = first_row + i / 2 * kTileRows + lane % 4 * 2 + i % 2;
      if (row >= launch.gemm.rows) continue;
      const float* const total = totals + (i / 2 * 4 + half * 2 + i % 2) * Shape::kThreads;
      const float up = Shape::kGated ? __fmul_rn(total[32], up_scale) : 0;
      StoreOutput<Shape::kGated>(launch.gemm, row, output, LoadTerms<Form>(launch, row, output),
                                 *total, up);
    }
  }
}

// blockIdx.x: takes every gridDim.x-th group; blockIdx.y: rows.
template <typename Form, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    WideGemmKernel(const __grid_constant__ SomeRowsLaunch launch) {
#if __CUDA_ARCH__ >= 900
  constexpr int kRing = 2;
  static_assert(kSlicesOfK % kRing == 0);
  extern __shared__ __align__(128) std::byte shared[];
  const int warp = threadIdx.x / 32;
  // Of a gated product a warp has a tile of gates, the next one that of their ups.
  const bool is_up = Shape::kGated && warp % 2 == 1;
  const int64_t first_row = int64_t{blockIdx.y} * Shape::kRows;
  const int chunks = (launch.slice_cols + kChunk - 1) / kChunk;  // of a slice
  const int padded_cols = static_cast<int>(launch.weight.padded_cols);
  float* const totals = reinterpret_cast<float*>(shared + Shape::kInputBytes) + threadIdx.x;
  AllowNextKernel();

  const auto first_of = [&](const ChunkPlace& place) {
    return place.slice * launch.slice_cols + place.chunk * kChunk;
  };
  const auto end_of = [&](const ChunkPlace& place) {
    return (place.slice + 1) * launch.slice_cols;
  };
  const auto first_feature = [&](int group) {
    return group * int64_t{Shape::kOutputs} + (Shape::kGated ? warp / 2 : warp) * kTileFeatures +
           (is_up ? launch.gemm.out_features / 2 : 0);
  };
  WeightRows<Form, 1> rows;
  ChunkOfTile<Form> ring[kRing][1] = {};
  ChunkPlace read = {static_cast<int>(blockIdx.x)};
  const auto request_next = [&](int slot) {
    const bool exists = read.group < launch.num_groups;
    if (read.slice == 0 && read.chunk == 0 && exists) rows.Set(launch, {first_feature(read.group)});
    rows.Request(launch, first_of(read), exists ? min(end_of(read), padded_cols) : 0,
                 ring[1 - slot], ring[slot]);
    read.Advance(chunks);
  };
  request_next(0);

  AwaitLastKernel();
  const InputStages<Shape, ChunkForm<Form>::kOddRows> input(launch.gemm, first_row, threadIdx.x,
                                                            shared);
  const bool is_staging = threadIdx.x < Shape::kStagingThreads;
  ChunkPlace fill = {static_cast<int>(blockIdx.x)};
  int fill_stage = 0;
  const auto fill_next = [&] {
    if (is_staging && fill.group < launch.num_groups) {
      input.Fill(first_of(fill), end_of(fill), fill_stage);
    }
    CommitStage();
    fill.Advance(chunks);
    if (++fill_stage == Shape::kStages) fill_stage = 0;
  };
#pragma unroll
  for (int i = 0; i + 1 < Shape::kStages; ++i) fill_next();

  const int lane_row = static_cast<int>(threadIdx.x % 32) / 4 * kChunkBytes;
  int stage = 0;
  float values[1][Shape::kRowTiles][4] = {};
  for (ChunkPlace place = {static_cast<int>(blockIdx.x)}; place.group < launch.num_groups;) {
    const int group = place.group;
    // Slices are eight, so a group is whole rings.
#pragma unroll
    for (int u = 0; u < kRing; ++u) {
      request_next(1 - u);
      AwaitStages<Shape::kStages - 2>();
      __syncthreads();
      fill_next();
      MultiplyChunk<Form>(ring[u], shared + stage * Shape::kStageBytes + lane_row, values);
      if (++stage == Shape::kStages) stage = 0;
      if (place.chunk + 1 == chunks) {
#pragma unroll
        for (int i = 0; i < Shape::kRowTiles * 4; ++i) {
          float& total = totals[i * Shape::kThreads];
          total = (place.slice == 0 ? 0.0f : total) + values[0][i / 4][i % 4];
          values[0][i / 4][i % 4] = 0;
        }
      }
      place.Advance(chunks);
    }
    if (place.group == group) continue;
    if (Shape::kGated) __syncthreads();
    if (!is_up) StoreTile<Form, Shape>(launch, first_row, first_feature(group), totals);
  }
#endif
}

// A kernel and its launch.
template <typename Form, typename Shape>
class WideGemm {
 public:
  // How many blocks the GPU holds at once; zero where it does not take the kernel. The first call
  // allows the kernel its shared memory.
  static int BlocksAtOnce() {
    static const int blocks = FindBlocksAtOnce();
    return blocks;
  }
  static int64_t Groups(const SkinnyGemmLaunch& gemm) {
    const int64_t outputs = gemm.out_features / (Shape::kGated ? 2 : 1);
    return (outputs + Shape::kOutputs - 1) / Shape::kOutputs;
  }

  // REQUIRES: BlocksAtOnce() > 0.
  static cudaError_t Launch(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                            cudaStream_t stream) {
    const int64_t groups = Groups(gemm);
    const int64_t rounds = (groups + BlocksAtOnce() - 1) / BlocksAtOnce();
    return LaunchDependent(
        {.grid = dim3(static_cast<unsigned>((groups + rounds - 1) / rounds),
                      static_cast<unsigned>((gemm.rows + Shape::kRows - 1) / Shape::kRows)),
         .block = dim3(Shape::kThreads),
         .shared_bytes = Shape::kSharedBytes,
         .stream = stream},
        &WideGemmKernel<Form, Shape>,
        SomeRowsLaunch{.gemm = gemm,
                       .weight = weight,
                       .slice_cols = ChunkForm<Form>::SliceCols(weight.padded_cols),
                       .num_groups = static_cast<int>(groups)});
  }

 private:
  static int FindBlocksAtOnce() {
    const auto kernel = &WideGemmKernel<Form, Shape>;
    if (!IsCompiledForHopper(reinterpret_cast<const void*>(kernel), Shape::kSharedBytes)) return 0;
    int device = 0, processors = 0, blocks = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) !=
            cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, Shape::kThreads,
                                                      Shape::kSharedBytes) != cudaSuccess) {
      (void)cudaGetLastError();
      return 0;
    }
    return blocks * processors;
  }
};

}  // namespace retroinfer::cuda
