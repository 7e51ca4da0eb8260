// Products of 9 to 64 rows at the speed at which the weight can be read: a kernel for GPUs of
// compute capability 9.0 and its launch.
//
// The results are those of the kernels for few rows (skinny_gemm_parts.cuh), to the bit: the same
// eight slices of k, of each slice the same matrix instructions in the same order, and the slices'
// sums added in the same order. Only who does it differs. There every block of 16 or 32 features
// reads all rows of `in`, which at 64 rows is more than the weight. Here the slices are distributed
// over a cluster of blocks, so that a block has few of them for many features:
//
// * A block's part of `in`, its slices' columns of all rows, comes to shared memory, in stages of
//   kChunk columns; its warps, each with other features, read it there. If all of it fits, it
//   stays there for all groups of features that the block takes.
// * Weights are read once, straight into registers, in a ring that is under way all the time, also
//   while a group's sums are added and the next one's products begin.
// * The sums of all slices are in the shared memory of the cluster's blocks; each block adds those
//   of its share of rows, and stores the results.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/model/cuda/grouped_forms.cuh"
#include "gpu_worker/ops/model/cuda/skinny_gemm.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm_parts.cuh"

namespace retroinfer::cuda {

// Of a cluster: two slices are a block's.
inline constexpr int kBlocksOfCluster = 4;

// Columns of `in` that are staged, and multiplied, at a time; a block of scales.
inline constexpr int kChunk = 128;
static_assert(kChunk == WeightScales::kBlock && kChunk == kInt4StepCols);
inline constexpr int kChunkBytes = kChunk * 2;
inline constexpr int kPieces = kChunkBytes / 16;
inline constexpr int kPrefetched = 3;

// How a form (grouped_forms.cuh) is multiplied.
template <typename Form>
struct ChunkForm {
  static constexpr int kSteps = kChunk / Form::kStepCols;
  static constexpr int kMmas = kSteps * Form::kMmas;
  // Scales that are multiplied to sums of products of a chunk; 0: none are.
  static constexpr int kGroups = Form::kScaledMmas == 0 ? 0 : Form::kWords;
  // Registers of a lane for a chunk of a tile.
  static constexpr int kRegisters = kSteps * 8 + kGroups * 2;
  // A row of a stage is 16 pieces of 16 bytes. So that the eight lanes that are served at once, of
  // two rows, read from all banks, odd rows have their pieces in another order.
  static constexpr int kOddRows = Form::InputAt(0, 1) == 16 ? 1 : 4;

  // Columns of a slice of k, as the kernels for few rows have it: whole steps, of 8 bits blocks.
  static constexpr int SliceCols(int64_t padded_cols) {
    constexpr int64_t kUnit = Form::kStepCols == 64 ? kChunk : Form::kStepCols;
    return static_cast<int>((padded_cols + kWarps * kUnit - 1) / (kWarps * kUnit) * kUnit);
  }
};

// What a block does. kBlocks: of a cluster.
template <int kBlocks, int kTiles, int kRowTiles, bool kGated>
struct ClusterShape {
  static_assert(!kGated || kTiles == 2);
  static constexpr int kStages = kBlocks == 8 ? 8 : 4;
  static constexpr int kSlices = kWarps / kBlocks;
  static constexpr int kSliceWarps = kWarps / kSlices;
  static constexpr int kSliceThreads = 32 * kSliceWarps;
  // Of a group, which a cluster computes at a time.
  static constexpr int kFeatures = kSliceWarps * kTiles * kTileFeatures;
  static constexpr int kOutputs = kGated ? kFeatures / 2 : kFeatures;
  static constexpr int kRows = kRowTiles * kTileRows;
  static constexpr int kStageBytes = kRows * kChunkBytes;
  static constexpr int kInputBytes = kSlices * kStages * kStageBytes;
  // Of a row's sums, in floats: four lanes store to four rows at once.
  static constexpr int kPitch = kFeatures + 4;
  static constexpr int kSliceSums = kRows * kPitch;
  static constexpr int kSharedBytes = kInputBytes + kSlices * kSliceSums * 4;
};

struct ClusterGemmLaunch {
  SkinnyGemmLaunch gemm;
  GroupedWeight weight;
  int slice_cols = 0;  // a multiple of the form's step
  int num_groups = 0;
  uint32_t zero = 0;
};

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

#if __CUDA_ARCH__ >= 900
__device__ inline void ArriveAtCluster() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void AwaitCluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// What another block of the cluster has at this address of its shared memory.
__device__ inline float4 LoadOfBlock(uint32_t address, int block) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(block));
  float4 values;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(values.x), "=f"(values.y), "=f"(values.z), "=f"(values.w)
               : "r"(remote)
               : "memory");
  return values;
}
#endif

// Columns of `in`, as they come to the stages of a slice. A thread of the slice brings one piece of
// each of its rows.
template <typename Shape, int kOddRows>
class InputStages {
 public:
  // `thread`: of the slice.
  __device__ InputStages(const SkinnyGemmLaunch& launch, int64_t first_row, int thread,
                         uint32_t stages) {
    const int row = thread / kPieces;
    const int piece = thread % kPieces;
    column_ = piece * 8;
    size_ = static_cast<int>(launch.in_features);
    rows_ = static_cast<int>(min(launch.rows - first_row, int64_t{Shape::kRows})) - row;
    source_ =
        static_cast<const __nv_bfloat16*>(launch.in) + (first_row + row) * launch.in_stride;
    stride_ = kRowsAtOnce * launch.in_stride;
    const int place = row % 2 == 0 ? piece : piece ^ kOddRows;
    target_ = stages + row * kChunkBytes + place * 16;
  }

  // Asks for the chunk whose columns begin at `k`; those from `end` on become zeros. Rows that do
  // not exist stay what they are: products of one row are no part of another's.
  __device__ void Fill(int k, int end, int stage) const {
    const int column = k + column_;
    const int bytes = column < min(end, size_) ? 16 : 0;
    const __nv_bfloat16* source = source_ + min(column, size_ - 8);  // an address of the row
    const uint32_t target = target_ + stage * Shape::kStageBytes;
#pragma unroll
    for (int i = 0; i < Shape::kRows; i += kRowsAtOnce) {
      if (i < rows_) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target +
                                                                           i * kChunkBytes),
                     "l"(source), "r"(bytes)
                     : "memory");
      }
      source += stride_;
    }
  }

 private:
  static constexpr int kRowsAtOnce = Shape::kSliceThreads / kPieces;
  static_assert(kRowsAtOnce % 2 == 0 && Shape::kRows % kRowsAtOnce == 0);

  int column_;  // the thread's first of a chunk
  int size_;
  int rows_;  // from the thread's first on
  const __nv_bfloat16* source_;
  int64_t stride_;
  uint32_t target_;
};

// A lane's part of a chunk of the weight, of one tile.
template <typename Form>
struct ChunkOfTile {
  Packed8 codes[ChunkForm<Form>::kSteps][2];
  uint32_t scales[2][Form::kWords];
};

// The rows of the weight of a warp's tiles in the group of features that is read.
template <typename Form, int kTiles>
class WeightRows {
 public:
  __device__ void Set(const ClusterGemmLaunch& launch, const int64_t (&first)[kTiles]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Features that do not exist are read from the last that does; nothing of theirs is stored.
        const int64_t feature = min(first[i] + half * 8 + lane / 4, launch.gemm.out_features - 1);
        feature_[i][half] = feature;
        codes_[i][half] = Form::RowAt(launch.weight, feature) + lane % 4 * 16;
      }
    }
  }

  // A value that is zero, and that is there only when all of the chunk is.
  static __device__ uint32_t TokenOf(const ChunkOfTile<Form> (&chunk)[kTiles], uint32_t zero) {
    uint32_t token = 0;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int step = 0; step < ChunkForm<Form>::kSteps; ++step) {
          token |= chunk[i].codes[step][half].word[0];
        }
      }
    }
    return token & zero;
  }

  // Asks for a step of the chunk whose columns begin at `k`, and with the first for its scales;
  // zeros from `end` on.
  __device__ void Request(const ClusterGemmLaunch& launch, int k, int end, int step,
                          ChunkOfTile<Form> (&chunk)[kTiles], uint32_t token = 0) const {
    const int first_step = k / Form::kStepCols;
    const int of_lane = k + step * Form::kStepCols + Form::InputAt(0, threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::byte* const codes =
            codes_[i][half] + ((first_step + step) * int{Form::StepBytes()} + static_cast<int>(token));
        chunk[i].codes[step][half] = of_lane < end ? LoadStreaming(codes) : Packed8{};
        if (ChunkForm<Form>::kGroups == 0 || step > 0) continue;
        if (k < end) {
          Form::LoadScales(launch.weight, feature_[i][half], first_step, chunk[i].scales[half]);
        } else {
#pragma unroll
          for (uint32_t& word : chunk[i].scales[half]) word = 0;
        }
      }
    }
  }
  __device__ void RequestAll(const ClusterGemmLaunch& launch, int k, int end,
                             ChunkOfTile<Form> (&chunk)[kTiles], uint32_t token = 0) const {
#pragma unroll
    for (int step = 0; step < ChunkForm<Form>::kSteps; ++step) {
      Request(launch, k, end, step, chunk, token);
    }
  }

 private:
  int64_t feature_[kTiles][2];
  const std::byte* codes_[kTiles][2];
};

// The lines of L2 that a warp's chunks of the weight are in, a lane those of some rows.
template <typename Form, int kTiles>
class WeightLines {
 public:
  __device__ void Set(const ClusterGemmLaunch& launch, const int64_t (&first)[kTiles]) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int line = static_cast<int>(threadIdx.x % 32) + 32 * i;
      const int tile = min(line / kOfTile, kTiles - 1);
      const int in_tile = line % kOfTile;
      constexpr int kRowLines = kOfTile / 16;  // zero of 4 bits, whose tile is consecutive bytes
      int64_t feature = tile == 0 ? first[0] : first[kTiles - 1];
      if constexpr (kRowLines > 0) feature += in_tile / kRowLines;
      feature = min(feature, launch.gemm.out_features - 1);
      if constexpr (kRowLines == 0) feature = feature / 16 * 16;
      const int offset = (kRowLines > 0 ? in_tile % kRowLines : in_tile) * 128;
      lines_[i] = Form::RowAt(launch.weight, feature) + offset;
    }
  }
  __device__ void Prefetch(int k) const {
    const int offset = k / Form::kStepCols * int{Form::StepBytes()};
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (static_cast<int>(threadIdx.x % 32) + 32 * i < kTiles * kOfTile) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(lines_[i] + offset));
      }
    }
  }

 private:
  static constexpr int kOfTile = ChunkForm<Form>::kSteps * 8;
  static constexpr int kOfLane = (kTiles * kOfTile + 31) / 32;
  const std::byte* lines_[kOfLane];
};

// A lane's eight consecutive k of a row, the i-th of a step. `row`: of the stage, of the lane's row
// in row tile 0.
template <typename Form>
__device__ inline Packed8 StagedInput(const std::byte* row, int row_tile, int step, int i) {
  const int lane = threadIdx.x % 32;
  const int piece = (step * Form::kStepCols + Form::InputAt(i, lane % 4)) / 8;
  const int place = lane / 4 % 2 == 0 ? piece : piece ^ ChunkForm<Form>::kOddRows;
  const uint4 loaded =
      *reinterpret_cast<const uint4*>(row + row_tile * (kTileRows * kChunkBytes) + place * 16);
  return {{loaded.x, loaded.y, loaded.z, loaded.w}};
}

// Adds a chunk's products to the sums. request(step) is called when the step's registers are free.
template <typename Form, int kTiles, int kRowTiles, typename Request>
__device__ void MultiplyChunk(const ChunkOfTile<Form> (&chunk)[kTiles], const std::byte* row,
                              const Request& request, float (&sums)[kTiles][kRowTiles][4]) {
  using Chunk = ChunkForm<Form>;
  if constexpr (Chunk::kGroups == 0) {
#pragma unroll
    for (int step = 0; step < Chunk::kSteps; ++step) {
      uint32_t a[kTiles][Form::kMmas][4];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        Form::Unpack(chunk[i].codes[step][0], chunk[i].codes[step][1], chunk[i].scales[0],
                     chunk[i].scales[1], a[i]);
      }
#pragma unroll
      for (int eight = 0; eight < Form::kInputs; ++eight) {
        Packed8 x[kRowTiles];
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) x[j] = StagedInput<Form>(row, j, step, eight);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
            const uint32_t(&m)[4] = a[i][eight * 2 + half];
#pragma unroll
            for (int j = 0; j < kRowTiles; ++j) {
              MultiplyAdd(sums[i][j], m[0], m[1], m[2], m[3], x[j].word[half * 2],
                          x[j].word[half * 2 + 1]);
            }
          }
        }
      }
      request(step);
    }
  } else {
    constexpr int kSharing = Chunk::kMmas / Chunk::kGroups;
    uint32_t a[kTiles][Chunk::kMmas][4];
    float scales[kTiles][2][Chunk::kGroups];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int step = 0; step < Chunk::kSteps; ++step) {
        uint32_t of_step[Form::kMmas][4];
        Form::Unpack(chunk[i].codes[step][0], chunk[i].codes[step][1], chunk[i].scales[0],
                     chunk[i].scales[1], of_step);
#pragma unroll
        for (int m = 0; m < Form::kMmas; ++m) {
#pragma unroll
          for (int e = 0; e < 4; ++e) a[i][step * Form::kMmas + m][e] = of_step[m][e];
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int g = 0; g < Chunk::kGroups; ++g) {
          scales[i][half][g] = Form::ScaleOf(chunk[i].scales[half][g]);
        }
      }
    }
#pragma unroll
    for (int step = 0; step < Chunk::kSteps; ++step) request(step);
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      float of_group[kTiles][4] = {};
#pragma unroll
      for (int m = 0; m < Chunk::kMmas; ++m) {
        // Every second of these is the other half of the same eight.
        const Packed8 x = StagedInput<Form>(row, j, m / Form::kMmas, m % Form::kMmas / 2);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          MultiplyAdd(of_group[i], a[i][m][0], a[i][m][1], a[i][m][2], a[i][m][3],
                      x.word[m % 2 * 2], x.word[m % 2 * 2 + 1]);
          if ((m + 1) % kSharing != 0) continue;
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            sums[i][j][e] = fmaf(scales[i][e / 2][m / kSharing], of_group[i][e], sums[i][j][e]);
            of_group[i][e] = 0;
          }
        }
      }
    }
  }
}

// The first features of a warp's tiles. `part`: of the group's features, the warp's.
template <typename Shape, int kTiles, bool kGated>
__device__ void FirstOfGroup(const SkinnyGemmLaunch& launch, int64_t group, int part,
                             int64_t (&first)[kTiles]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    first[i] =
        group * Shape::kOutputs + (kGated ? i * (launch.out_features / 2) + part * kTileFeatures
                                          : (part * kTiles + i) * kTileFeatures);
  }
}

// Puts a warp's sums where the cluster's blocks find them. `sums`: of the slice.
template <typename Shape, int kTiles, int kRowTiles, bool kGated>
__device__ void ShareSums(const float (&values)[kTiles][kRowTiles][4], int part, float* sums) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int first =
        kGated ? i * Shape::kOutputs + part * kTileFeatures : (part * kTiles + i) * kTileFeatures;
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = j * kTileRows + lane % 4 * 2 + e % 2;
        sums[row * Shape::kPitch + first + lane / 4 + e / 2 * 8] = values[i][j][e];
      }
    }
  }
}

// As StoreResult, but the bias is in `value`, added as the kernels for few rows are compiled: in
// one with the product of sum and scale.
__device__ inline void StoreWithoutBias(const SkinnyGemmLaunch& launch, int64_t row,
                                        int64_t output, float value) {
  const int64_t at = row * launch.out_stride + output;
  if (launch.out_is_f32) {
    auto* const out = reinterpret_cast<float*>(launch.out) + at;
    *out = launch.accumulate ? __fadd_rn(value, *out) : value;
  } else {
    auto* const out = reinterpret_cast<__nv_bfloat16*>(launch.out) + at;
    if (launch.accumulate) value = __fadd_rn(value, __bfloat162float(*out));
    *out = __float2bfloat16_rn(value);
  }
}

#if __CUDA_ARCH__ >= 900
// Adds the slices' sums of the block's share of a group's rows, and stores the results.
template <typename Form, typename Shape, int kBlocks, bool kGated>
__device__ void StoreShare(const ClusterGemmLaunch& launch, int64_t first_row, int64_t group,
                           int rank, uint32_t sums) {
  constexpr int kQuads = Shape::kOutputs / 4;
  const SkinnyGemmLaunch& gemm = launch.gemm;
  const int64_t outputs = kGated ? gemm.out_features / 2 : gemm.out_features;
  const auto sum_of = [sums](int at, float(&sum)[4]) {
    float4 of_slice[kWarps];
#pragma unroll
    for (int s = 0; s < kWarps; ++s) {
      const int local = s % Shape::kSlices * Shape::kSliceSums + at;
      of_slice[s] = LoadOfBlock(sums + local * 4, s / Shape::kSlices);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] = 0;
#pragma unroll
    for (int s = 0; s < kWarps; ++s) {
      sum[0] += of_slice[s].x;
      sum[1] += of_slice[s].y;
      sum[2] += of_slice[s].z;
      sum[3] += of_slice[s].w;
    }
  };
  for (int i = threadIdx.x; i < kQuads * (Shape::kRows / kBlocks); i += kThreads) {
    const int row = i / kQuads * kBlocks + rank;
    if (first_row + row >= gemm.rows) break;
    const int at = row * Shape::kPitch + i % kQuads * 4;
    const int64_t first = group * Shape::kOutputs + i % kQuads * 4;
    float sum[4];
    float up[4];
    sum_of(at, sum);
    if constexpr (kGated) sum_of(at + Shape::kOutputs, up);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int64_t output = first + e;
      if (output >= outputs) break;
      const float scale = Form::FeatureScale(launch.weight, output);
      float result = __fmul_rn(sum[e], scale);
      if constexpr (kGated) {
        result = GateTimes(gemm.activation, result,
                           __fmul_rn(up[e], Form::FeatureScale(launch.weight, outputs + output)));
      } else if (gemm.bias != nullptr) {
        result = fmaf(sum[e], scale, gemm.bias[output]);
      }
      StoreWithoutBias(gemm, first_row + row, output, result);
    }
  }
}
#endif

// blockIdx.x / kBlocks: a cluster, which takes every (number of clusters)-th group of features;
// blockIdx.y: rows.
template <typename Form, int kBlocks, int kTiles, int kRowTiles, bool kGated, int kUnroll, int kMode>
__global__ void __launch_bounds__(kThreads, 1)
    ClusterGemmKernel(const __grid_constant__ ClusterGemmLaunch launch) {
#if __CUDA_ARCH__ >= 900
  using Shape = ClusterShape<kBlocks, kTiles, kRowTiles, kGated>;
  extern __shared__ __align__(128) std::byte shared[];
  const int warp = threadIdx.x / 32;
  const int slice = warp / Shape::kSliceWarps;  // of the block
  const int part = warp % Shape::kSliceWarps;
  const int rank = blockIdx.x % kBlocks;
  const int64_t first_row = int64_t{blockIdx.y} * Shape::kRows;
  const int num_clusters = gridDim.x / kBlocks;
  const int begin = (rank * Shape::kSlices + slice) * launch.slice_cols;
  const int end = min(static_cast<int>(launch.weight.padded_cols), begin + launch.slice_cols);
  const int chunks = (launch.slice_cols + kChunk - 1) / kChunk;
  std::byte* const stages = shared + slice * Shape::kStages * Shape::kStageBytes;
  float* const sums = reinterpret_cast<float*>(shared + Shape::kInputBytes);
  AllowNextKernel();

  int group = blockIdx.x / kBlocks;
  WeightRows<Form, kTiles> rows;
  const auto begin_reading = [&](int of_group) {
    int64_t first[kTiles];
    FirstOfGroup<Shape, kTiles, kGated>(launch.gemm, of_group, part, first);
    rows.Set(launch, first);
  };
  begin_reading(group);
  constexpr bool kEarly = (kMode & 2) != 0;
  static_assert(!kEarly || kUnroll > 1);
  constexpr int kAhead = kEarly ? kUnroll - 1 : kUnroll;
  ChunkOfTile<Form> ring[kUnroll][kTiles];
#pragma unroll
  for (int u = 0; u < kAhead; ++u) rows.RequestAll(launch, begin + u * kChunk, end, ring[u]);
  WeightLines<Form, kTiles> lines;
  int line_group = group, line_chunk = 0;
  const auto prefetch_next = [&](bool real) {
    if (line_chunk == 0 && line_group < launch.num_groups) {
      int64_t first[kTiles];
      FirstOfGroup<Shape, kTiles, kGated>(launch.gemm, line_group, part, first);
      lines.Set(launch, first);
    }
    const int k = begin + line_chunk * kChunk;
    if (real && line_group < launch.num_groups && k < end) lines.Prefetch(k);
    if (++line_chunk == chunks) {
      line_chunk = 0;
      line_group += num_clusters;
    }
  };
  if constexpr ((kMode & 1) != 0) {
    for (int u = 0; u < kAhead; ++u) prefetch_next(false);
    for (int u = 0; u < kPrefetched; ++u) prefetch_next(true);
  }

  AwaitLastKernel();
  const InputStages<Shape, ChunkForm<Form>::kOddRows> input(
      launch.gemm, first_row, threadIdx.x % Shape::kSliceThreads, SharedAddress(stages));
  // Where all chunks have stages they are filled once, else for each group.
  const bool stays = chunks <= Shape::kStages;
  const int groups_of_cluster = (launch.num_groups - group + num_clusters - 1) / num_clusters;
  const int fills = stays ? chunks : chunks * groups_of_cluster;
  int filled = 0, fill_chunk = 0, fill_stage = 0;
  const auto fill_next = [&] {
    if (filled < fills) {
      input.Fill(begin + fill_chunk * kChunk, begin + launch.slice_cols, fill_stage);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    ++filled;
    if (++fill_chunk == chunks) fill_chunk = 0;
    if (++fill_stage == Shape::kStages) fill_stage = 0;
  };
#pragma unroll
  for (int i = 0; i + 1 < Shape::kStages; ++i) fill_next();

  const int lane_row = static_cast<int>(threadIdx.x % 32) / 4 * kChunkBytes;
  int multiplied = 0, stage = 0;
  for (bool is_first = true; group < launch.num_groups; is_first = false) {
    const int next_group = group + num_clusters;
    float values[kTiles][kRowTiles][4] = {};
    for (int at = 0; at < chunks; at += kUnroll) {
      // Behind a group's last chunks the ring goes on with the next group.
      const bool ends = at + kUnroll >= chunks;
      const int next = ends ? begin : begin + (at + kUnroll) * kChunk;
      const int next_end = ends && next_group >= launch.num_groups ? begin : end;
      if (!kEarly && ends && next_group < launch.num_groups) begin_reading(next_group);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const auto request = [&](int step) {
          if (!kEarly) rows.Request(launch, next + u * kChunk, next_end, step, ring[u]);
        };
        if constexpr (kEarly) {
          const uint32_t token = WeightRows<Form, kTiles>::TokenOf(ring[u], launch.zero);
          if (u == 1 && ends && next_group < launch.num_groups) begin_reading(next_group);
          auto& target = ring[(u + kUnroll - 1) % kUnroll];
          if (u == 0) {
            rows.RequestAll(launch, begin + (at + kUnroll - 1) * kChunk, end, target, token);
          } else {
            rows.RequestAll(launch, next + (u - 1) * kChunk, next_end, target, token);
          }
        }
        if (at + u >= chunks) {
          if (!kEarly) rows.RequestAll(launch, next + u * kChunk, next_end, ring[u]);
          continue;
        }
        if constexpr ((kMode & 1) != 0) prefetch_next(true);
        if (multiplied < fills) {
          asm volatile("cp.async.wait_group %0;" ::"n"(Shape::kStages - 2) : "memory");
          asm volatile("bar.sync %0, %1;" ::"r"(slice + 1), "n"(Shape::kSliceThreads) : "memory");
          fill_next();
        }
        MultiplyChunk<Form, kTiles, kRowTiles>(
            ring[u], stages + stage * Shape::kStageBytes + lane_row, request, values);
        ++multiplied;
        if (++stage == Shape::kStages) stage = 0;
      }
    }
    if (stays) stage = 0;
    // Until all blocks have read the sums of the group before.
    if (!is_first) AwaitCluster();
    ShareSums<Shape, kTiles, kRowTiles, kGated>(values, part, sums + slice * Shape::kSliceSums);
    ArriveAtCluster();
    AwaitCluster();
    StoreShare<Form, Shape, kBlocks, kGated>(launch, first_row, group, rank, SharedAddress(sums));
    ArriveAtCluster();
    group = next_group;
  }
  // A block's shared memory must not end before the others have read it.
  AwaitCluster();
#endif
}

// What a block does where there are so many features that no slice needs a warp of its own.
template <int kRowTiles, bool kGated>
struct WideShape {
  static constexpr int kTiles = 2;
  static constexpr int kStages = 6;
  static constexpr int kSliceThreads = kThreads;
  static constexpr int kFeatures = kWarps * kTiles * kTileFeatures;
  static constexpr int kOutputs = kGated ? kFeatures / 2 : kFeatures;
  static constexpr int kRows = kRowTiles * kTileRows;
  static constexpr int kStageBytes = kRows * kChunkBytes;
  static constexpr int kInputBytes = kStages * kStageBytes;
  static constexpr int kSharedBytes = kInputBytes + kTiles * kRowTiles * 4 * kThreads * 4;
};

// Stores what a lane has of a tile. `first`: of the features, of gates and of ups.
template <typename Form, int kTiles, int kRowTiles, bool kGated>
__device__ void StoreOwn(const ClusterGemmLaunch& launch, int64_t first_row,
                         const int64_t (&first)[kTiles],
                         const float (&values)[kTiles][kRowTiles][4]) {
  const SkinnyGemmLaunch& gemm = launch.gemm;
  const int lane = threadIdx.x % 32;
  const int64_t outputs = kGated ? gemm.out_features / 2 : gemm.out_features;
#pragma unroll
  for (int i = 0; i < (kGated ? 1 : kTiles); ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t output = first[i] + half * 8 + lane / 4;
      if (output >= outputs) continue;
      const float scale = Form::FeatureScale(launch.weight, output);
      const float up_scale = kGated ? Form::FeatureScale(launch.weight, outputs + output) : 0;
      const float bias = gemm.bias == nullptr ? 0 : gemm.bias[output];
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int64_t row = first_row + j * kTileRows + lane % 4 * 2 + e;
          if (row >= gemm.rows) continue;
          const float sum = values[i][j][half * 2 + e];
          float result = __fmul_rn(sum, scale);
          if constexpr (kGated) {
            result = GateTimes(gemm.activation, result,
                               __fmul_rn(values[kTiles - 1][j][half * 2 + e], up_scale));
          } else if (gemm.bias != nullptr) {
            result = fmaf(sum, scale, bias);
          }
          StoreWithoutBias(gemm, row, output, result);
        }
      }
    }
  }
}

// blockIdx.x: takes every gridDim.x-th group of features; blockIdx.y: rows. A warp takes all of k,
// slice after slice.
template <typename Form, int kRowTiles, bool kGated, int kUnroll>
__global__ void __launch_bounds__(kThreads, 1)
    WideGemmKernel(const __grid_constant__ ClusterGemmLaunch launch) {
#if __CUDA_ARCH__ >= 900
  using Shape = WideShape<kRowTiles, kGated>;
  constexpr int kTiles = Shape::kTiles;
  static_assert(kUnroll > 1 && kWarps % kUnroll == 0);
  extern __shared__ __align__(128) std::byte shared[];
  const int part = threadIdx.x / 32;
  const int64_t first_row = int64_t{blockIdx.y} * Shape::kRows;
  const int chunks = (launch.slice_cols + kChunk - 1) / kChunk;  // of a slice
  const int padded_cols = static_cast<int>(launch.weight.padded_cols);
  float* const totals = reinterpret_cast<float*>(shared + Shape::kInputBytes) + threadIdx.x;
  AllowNextKernel();

  // Where a chunk is. They follow each other, of all slices of a group and then of the next.
  struct Place {
    int group;
    int slice = 0;
    int chunk = 0;
  };
  const auto advance = [&](Place& place) {
    if (++place.chunk < chunks) return;
    place.chunk = 0;
    if (++place.slice < kWarps) return;
    place.slice = 0;
    place.group += gridDim.x;
  };
  const auto first_of = [&](const Place& place) {
    return place.slice * launch.slice_cols + place.chunk * kChunk;
  };
  const auto end_of = [&](const Place& place) { return (place.slice + 1) * launch.slice_cols; };

  WeightRows<Form, kTiles> rows;
  WeightLines<Form, kTiles> lines;
  ChunkOfTile<Form> ring[kUnroll][kTiles];
  Place read = {static_cast<int>(blockIdx.x)};
  const auto request_next = [&](ChunkOfTile<Form>(&chunk)[kTiles], uint32_t token) {
    if (read.slice == 0 && read.chunk == 0 && read.group < launch.num_groups) {
      int64_t first[kTiles];
      FirstOfGroup<Shape, kTiles, kGated>(launch.gemm, read.group, part, first);
      rows.Set(launch, first);
    }
    const int end = read.group < launch.num_groups ? min(end_of(read), padded_cols) : 0;
    rows.RequestAll(launch, first_of(read), end, chunk, token);
    advance(read);
  };
  Place ahead = read;
  const auto prefetch_next = [&](bool is_read) {
    if (ahead.slice == 0 && ahead.chunk == 0 && ahead.group < launch.num_groups) {
      int64_t first[kTiles];
      FirstOfGroup<Shape, kTiles, kGated>(launch.gemm, ahead.group, part, first);
      lines.Set(launch, first);
    }
    if (!is_read && ahead.group < launch.num_groups && first_of(ahead) < padded_cols) {
      lines.Prefetch(first_of(ahead));
    }
    advance(ahead);
  };
#pragma unroll
  for (int u = 0; u + 1 < kUnroll; ++u) request_next(ring[u], 0);
  for (int u = 0; u + 1 < kUnroll; ++u) prefetch_next(true);
  for (int u = 0; u < kPrefetched; ++u) prefetch_next(false);

  AwaitLastKernel();
  const InputStages<Shape, ChunkForm<Form>::kOddRows> input(launch.gemm, first_row, threadIdx.x,
                                                            SharedAddress(shared));
  Place fill = {static_cast<int>(blockIdx.x)};
  int fill_stage = 0;
  const auto fill_next = [&] {
    if (fill.group < launch.num_groups) input.Fill(first_of(fill), end_of(fill), fill_stage);
    asm volatile("cp.async.commit_group;" ::: "memory");
    advance(fill);
    if (++fill_stage == Shape::kStages) fill_stage = 0;
  };
#pragma unroll
  for (int i = 0; i + 1 < Shape::kStages; ++i) fill_next();

  const int lane_row = static_cast<int>(threadIdx.x % 32) / 4 * kChunkBytes;
  int stage = 0;
  Place place = {static_cast<int>(blockIdx.x)};
  float values[kTiles][kRowTiles][4] = {};
  while (place.group < launch.num_groups) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t token = WeightRows<Form, kTiles>::TokenOf(ring[u], launch.zero);
      request_next(ring[(u + kUnroll - 1) % kUnroll], token);
      prefetch_next(false);
      asm volatile("cp.async.wait_group %0;" ::"n"(Shape::kStages - 2) : "memory");
      __syncthreads();
      fill_next();
      MultiplyChunk<Form, kTiles, kRowTiles>(ring[u], shared + stage * Shape::kStageBytes + lane_row,
                                             [](int) {}, values);
      if (++stage == Shape::kStages) stage = 0;
      if (place.chunk + 1 == chunks) {
        const bool is_last = place.slice + 1 == kWarps;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              float& total = totals[((i * kRowTiles + j) * 4 + e) * kThreads];
              const float sum = (place.slice == 0 ? 0.0f : total) + values[i][j][e];
              if (!is_last) total = sum;
              values[i][j][e] = is_last ? sum : 0;
            }
          }
        }
        if (is_last) {
          int64_t first[kTiles];
          FirstOfGroup<Shape, kTiles, kGated>(launch.gemm, place.group, part, first);
          StoreOwn<Form, kTiles, kRowTiles, kGated>(launch, first_row, first, values);
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
#pragma unroll
            for (int j = 0; j < kRowTiles; ++j) {
#pragma unroll
              for (float& value : values[i][j]) value = 0;
            }
          }
        }
      }
      advance(place);
    }
  }
#endif
}

template <typename Form, int kRowTiles, bool kGated>
class WideGemm {
 public:
  using Shape = WideShape<kRowTiles, kGated>;

  static int BlocksAtOnce() {
    static const int blocks = FindBlocksAtOnce();
    return blocks;
  }
  static cudaError_t Launch(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                            cudaStream_t stream) {
    const int64_t outputs = kGated ? gemm.out_features / 2 : gemm.out_features;
    const int64_t groups = (outputs + Shape::kOutputs - 1) / Shape::kOutputs;
    const int64_t rounds = (groups + BlocksAtOnce() - 1) / BlocksAtOnce();
    return LaunchDependent(
        {.grid = dim3(static_cast<unsigned>((groups + rounds - 1) / rounds),
                      static_cast<unsigned>((gemm.rows + Shape::kRows - 1) / Shape::kRows)),
         .block = dim3(kThreads),
         .shared_bytes = Shape::kSharedBytes,
         .stream = stream},
        kKernel,
        ClusterGemmLaunch{.gemm = gemm,
                          .weight = weight,
                          .slice_cols = ChunkForm<Form>::SliceCols(weight.padded_cols),
                          .num_groups = static_cast<int>(groups)});
  }

 private:
  static constexpr auto kKernel = &WideGemmKernel<Form, kRowTiles, kGated, 2>;

  static int FindBlocksAtOnce() {
    cudaFuncAttributes compiled;
    if (cudaFuncGetAttributes(&compiled, kKernel) != cudaSuccess) return 0;
    if (compiled.ptxVersion < 90) return 0;
    int device = 0, processors = 0;
    if (cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             Shape::kSharedBytes) != cudaSuccess ||
        cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) !=
            cudaSuccess) {
      (void)cudaGetLastError();
      return 0;
    }
    return processors;
  }
};

template <typename Form, int kBlocks, int kTiles, int kRowTiles, bool kGated, int kMode = 3>
class ClusterGemm {
 public:
  using Shape = ClusterShape<kBlocks, kTiles, kRowTiles, kGated>;

  // How many clusters the GPU holds at once; zero where it does not take the kernel. The first call
  // allows the kernel its shared memory.
  static int ClustersAtOnce() {
    static const int clusters = FindClustersAtOnce();
    return clusters;
  }
  // How many groups of features a cluster takes, one after the other.
  //
  // REQUIRES: ClustersAtOnce() > 0.
  static int64_t Rounds(const SkinnyGemmLaunch& gemm) {
    return (Groups(gemm) + ClustersAtOnce() - 1) / ClustersAtOnce();
  }

  // REQUIRES: as Rounds.
  static cudaError_t Launch(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                            cudaStream_t stream) {
    const int64_t groups = Groups(gemm);
    const int64_t rounds = Rounds(gemm);
    cudaLaunchAttribute attributes[2];
    const cudaLaunchConfig_t config =
        Config((groups + rounds - 1) / rounds, (gemm.rows + Shape::kRows - 1) / Shape::kRows,
               stream, attributes);
    return cudaLaunchKernelEx(
        &config, kKernel,
        ClusterGemmLaunch{.gemm = gemm,
                          .weight = weight,
                          .slice_cols = ChunkForm<Form>::SliceCols(weight.padded_cols),
                          .num_groups = static_cast<int>(groups)});
  }

 private:
  // Registers of a lane for weights that are under way.
  static constexpr int kRingRegisters = 72;
  static constexpr int kUnroll =
      std::max(1, kRingRegisters / (kTiles * ChunkForm<Form>::kRegisters));
  static constexpr auto kKernel =
      &ClusterGemmKernel<Form, kBlocks, kTiles, kRowTiles, kGated, kUnroll,
                         kUnroll == 1 ? kMode & 1 : kMode>;

  static int64_t Groups(const SkinnyGemmLaunch& gemm) {
    const int64_t outputs = kGated ? gemm.out_features / 2 : gemm.out_features;
    return (outputs + Shape::kOutputs - 1) / Shape::kOutputs;
  }

  static int FindClustersAtOnce() {
    cudaFuncAttributes compiled;
    if (cudaFuncGetAttributes(&compiled, kKernel) != cudaSuccess) return 0;
    constexpr int kHopper = 90;
    if (compiled.ptxVersion < kHopper) return 0;
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = Config(1, 1, nullptr, attributes);
    int clusters = 0;
    if (cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             Shape::kSharedBytes) != cudaSuccess ||
        cudaOccupancyMaxActiveClusters(&clusters, kKernel, &config) != cudaSuccess) {
      (void)cudaGetLastError();  // a GPU with less shared memory, say
      return 0;
    }
    return clusters;
  }

  static cudaLaunchConfig_t Config(int64_t clusters, int64_t row_blocks, cudaStream_t stream,
                                   cudaLaunchAttribute (&attributes)[2]) {
    attributes[0] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = kBlocks;
    attributes[0].val.clusterDim.y = 1;
    attributes[0].val.clusterDim.z = 1;
    attributes[1] = {};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim =
        dim3(static_cast<unsigned>(clusters * kBlocks), static_cast<unsigned>(row_blocks));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = Shape::kSharedBytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return config;
  }
};

// Calls body(rows) with the smallest number of row tiles that a product has kernels for and that
// is enough, as a std::integral_constant.
template <typename Body>
auto WithRowTiles(int64_t rows, const Body& body) {
  if (rows <= 16) return body(std::integral_constant<int, 2>());
  if (rows <= 32) return body(std::integral_constant<int, 4>());
  if (rows <= 48) return body(std::integral_constant<int, 6>());
  return body(std::integral_constant<int, 8>());
}

// The kernels of a form.
template <typename Form, int kBlocks>
struct ClusterGemms {
  // Whether the GPU takes all of them.
  static bool Prepare() {
    bool takes_all = true;
    for (const int64_t rows : {16, 32, 48, 64}) {
      takes_all = takes_all && WithRowTiles(rows, [](auto row_tiles) {
                    constexpr int kRowTiles = decltype(row_tiles)::value;
                    return ClusterGemm<Form, kBlocks, 1, kRowTiles, false>::ClustersAtOnce() > 0 &&
                           ClusterGemm<Form, kBlocks, 2, kRowTiles, false>::ClustersAtOnce() > 0 &&
                           ClusterGemm<Form, kBlocks, 2, kRowTiles, true>::ClustersAtOnce() > 0;
                  });
    }
    return takes_all;
  }

  static cudaError_t Launch(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                            cudaStream_t stream) {
    return WithRowTiles(gemm.rows, [&](auto row_tiles) {
      constexpr int kRowTiles = decltype(row_tiles)::value;
      using Gated = ClusterGemm<Form, kBlocks, 2, kRowTiles, true>;
      using One = ClusterGemm<Form, kBlocks, 1, kRowTiles, false>;
      using Two = ClusterGemm<Form, kBlocks, 2, kRowTiles, false>;
      if (gemm.gated) return Gated::Launch(gemm, weight, stream);
      // Groups of half the features, where clusters end together only with those.
      return One::Rounds(gemm) < 2 * Two::Rounds(gemm) ? One::Launch(gemm, weight, stream)
                                                       : Two::Launch(gemm, weight, stream);
    });
  }
};

}  // namespace retroinfer::cuda
