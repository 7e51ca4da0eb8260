// What the kernels for 17 to 64 rows share (some_rows_gemm.h).
//
// The results are those of the kernels for few rows (skinny_gemm_parts.cuh), to the bit: the same
// eight slices of k, of each slice the same matrix instructions in the same order, and the slices'
// sums added in the same order. Only who does it differs. There every block of 16 or 32 features
// reads all rows of `in` by itself, which at 64 rows is eight times the weight, from L2. Here a
// block has many features for the columns that it reads:
//
// * Columns of `in` come to shared memory, in stages of kChunk columns of all rows, and the block's
//   warps, each with other features, read them there.
// * Weights are read once, straight into registers, two chunks in turn: one is under way while the
//   other is multiplied, also while a group's sums are added and the next one's products begin.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "gpu_worker/ops/model/cuda/gated_activation.cuh"
#include "gpu_worker/ops/model/cuda/grouped_forms.cuh"
#include "gpu_worker/ops/model/cuda/skinny_gemm.h"
#include "gpu_worker/ops/model/cuda/skinny_gemm_parts.cuh"

namespace retroinfer::cuda {

inline constexpr int kSlicesOfK = kWarps;  // as the kernels for few rows have it

// Columns that are staged, and multiplied, at a time; a block of scales.
inline constexpr int kChunk = 128;
static_assert(kChunk == WeightScales::kBlock && kChunk == kInt4StepCols);
inline constexpr int kChunkBytes = kChunk * 2;
inline constexpr int kPieces = kChunkBytes / 16;

// How a form (grouped_forms.cuh) is multiplied.
template <typename Form>
struct ChunkForm {
  static constexpr int kSteps = kChunk / Form::kStepCols;
  static constexpr int kMmas = kSteps * Form::kMmas;
  // Scales that are multiplied to sums of products of a chunk; 0: none are.
  static constexpr int kGroups = Form::kScaledMmas == 0 ? 0 : Form::kWords;
  // A row of a stage is 16 pieces of 16 bytes. So that the eight lanes that are served at once, of
  // two rows, read from all banks, odd rows have their pieces in another order.
  static constexpr int kOddRows = Form::InputAt(0, 1) == 16 ? 1 : 4;

  // Columns of a slice of k, as the kernels for few rows have it: whole steps, of 8 bits blocks.
  static constexpr int SliceCols(int64_t padded_cols) {
    constexpr int64_t kUnit = Form::kStepCols == 64 ? kChunk : Form::kStepCols;
    return static_cast<int>((padded_cols + kSlicesOfK * kUnit - 1) / (kSlicesOfK * kUnit) * kUnit);
  }
};

struct SomeRowsLaunch {
  SkinnyGemmLaunch gemm;
  GroupedWeight weight;
  int slice_cols = 0;
  int num_groups = 0;  // of features
  uint32_t zero = 0;   // which the compiler does not know
};

// Whether a kernel's code is for this GPU's clusters and shared memory, which the call allows it.
inline bool IsCompiledForHopper(const void* kernel, int shared_bytes) {
  constexpr int kHopper = 90;
  cudaFuncAttributes compiled = {};
  if (cudaFuncGetAttributes(&compiled, kernel) == cudaSuccess && compiled.ptxVersion >= kHopper &&
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes) ==
          cudaSuccess) {
    return true;
  }
  (void)cudaGetLastError();
  return false;
}

// Columns of `in`, as they come to the stages of a slice. Each of Shape::kStagingThreads threads
// brings one piece of some rows.
template <typename Shape, int kOddRows>
class InputStages {
 public:
  __device__ InputStages(const SkinnyGemmLaunch& launch, int64_t first_row, int thread,
                         const void* stages) {
    const int row = thread / kPieces;
    const int piece = thread % kPieces;
    column_ = piece * 8;
    size_ = static_cast<int>(launch.in_features);
    rows_ = static_cast<int>(min(launch.rows - first_row, int64_t{Shape::kRows})) - row;
    source_ = static_cast<const __nv_bfloat16*>(launch.in) + (first_row + row) * launch.in_stride;
    stride_ = kRowsAtOnce * launch.in_stride;
    const int place = row % 2 == 0 ? piece : piece ^ kOddRows;
    target_ =
        static_cast<uint32_t>(__cvta_generic_to_shared(stages)) + row * kChunkBytes + place * 16;
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
        asm volatile(
            "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target + i * kChunkBytes),
            "l"(source), "r"(bytes)
            : "memory");
      }
      source += stride_;
    }
  }

 private:
  static constexpr int kRowsAtOnce = Shape::kStagingThreads / kPieces;
  static_assert(kRowsAtOnce % 2 == 0 && Shape::kRows % kRowsAtOnce == 0);

  int column_;  // the thread's first of a chunk
  int size_;
  int rows_;  // from the thread's first on
  const __nv_bfloat16* source_;
  int64_t stride_;
  uint32_t target_;
};

__device__ inline void CommitStage() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all stages that this thread asked for, but for the last `kLeft`.
template <int kLeft>
__device__ inline void AwaitStages() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

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
  // `first`: features of the tiles.
  __device__ void Set(const SomeRowsLaunch& launch, const int64_t (&first)[kTiles]) {
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

  // Asks for the chunk whose columns begin at `k`, zeros from `end` on, when all of `last` is
  // there.
  //
  // The compiler has one counter for all loads of weights, and who waits for some of them waits for
  // all. So the next chunk is asked for behind the wait for the last one: its addresses depend on
  // what that wait brought.
  __device__ void Request(const SomeRowsLaunch& launch, int k, int end,
                          const ChunkOfTile<Form> (&last)[kTiles],
                          ChunkOfTile<Form> (&chunk)[kTiles]) const {
    const int first_step = k / Form::kStepCols;
    const int begin =
        first_step * int{Form::StepBytes()} + static_cast<int>(AnyOf(last) & launch.zero);
    const int of_lane = k + Form::InputAt(0, threadIdx.x % 4);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int step = 0; step < ChunkForm<Form>::kSteps; ++step) {
          const std::byte* const codes = codes_[i][half] + (begin + step * int{Form::StepBytes()});
          chunk[i].codes[step][half] =
              of_lane + step * Form::kStepCols < end ? LoadStreaming(codes) : Packed8{};
        }
        if constexpr (ChunkForm<Form>::kGroups > 0) {
          if (k < end) {
            Form::LoadScales(launch.weight, feature_[i][half], first_step, chunk[i].scales[half]);
          } else {
#pragma unroll
            for (uint32_t& word : chunk[i].scales[half]) word = 0;
          }
        }
      }
    }
  }

 private:
  // A word that has something of each load.
  static __device__ uint32_t AnyOf(const ChunkOfTile<Form> (&chunk)[kTiles]) {
    uint32_t any = 0;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int step = 0; step < ChunkForm<Form>::kSteps; ++step) {
          any |= chunk[i].codes[step][half].word[0];
        }
      }
    }
    return any;
  }

  int64_t feature_[kTiles][2];
  const std::byte* codes_[kTiles][2];
};

// A lane's eight consecutive k of a row, the i-th of a step. `row`: of the stage, of the lane's row
// in row tile 0.
template <typename Form>
__device__ Packed8 StagedInput(const std::byte* row, int row_tile, int step, int i) {
  const int lane = threadIdx.x % 32;
  const int piece = (step * Form::kStepCols + Form::InputAt(i, lane % 4)) / 8;
  const int place = lane / 4 % 2 == 0 ? piece : piece ^ ChunkForm<Form>::kOddRows;
  const uint4 loaded =
      *reinterpret_cast<const uint4*>(row + row_tile * (kTileRows * kChunkBytes) + place * 16);
  return {{loaded.x, loaded.y, loaded.z, loaded.w}};
}

// Row tiles whose inputs registers hold at a time.
template <int kRowTiles>
inline constexpr int kTilesAtOnce = kRowTiles <= 4 ? kRowTiles : kRowTiles / 2;

// Adds a chunk's products to the sums, of a form without scales of groups.
template <typename Form, int kTiles, int kRowTiles>
__device__ void MultiplyPlain(const ChunkOfTile<Form> (&chunk)[kTiles], const std::byte* row,
                              float (&sums)[kTiles][kRowTiles][4]) {
  constexpr int kAtOnce = kTilesAtOnce<kRowTiles>;
#pragma unroll
  for (int step = 0; step < ChunkForm<Form>::kSteps; ++step) {
    uint32_t a[kTiles][Form::kMmas][4];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      Form::Unpack(chunk[i].codes[step][0], chunk[i].codes[step][1], chunk[i].scales[0],
                   chunk[i].scales[1], a[i]);
    }
#pragma unroll
    for (int part = 0; part < Form::kInputs * (kRowTiles / kAtOnce); ++part) {
      const int eight = part % Form::kInputs;
      const int first = part / Form::kInputs * kAtOnce;
      Packed8 x[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) x[j] = StagedInput<Form>(row, first + j, step, eight);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          const uint32_t(&m)[4] = a[i][eight * 2 + half];
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            MultiplyAdd(sums[i][first + j], m[0], m[1], m[2], m[3], x[j].word[half * 2],
                        x[j].word[half * 2 + 1]);
          }
        }
      }
    }
  }
}

// The same of one with scales: products of a group are added, then times its scale to the sums.
template <typename Form, int kTiles, int kRowTiles>
__device__ void MultiplyScaled(const ChunkOfTile<Form> (&chunk)[kTiles], const std::byte* row,
                               float (&sums)[kTiles][kRowTiles][4]) {
  using Chunk = ChunkForm<Form>;
  constexpr int kSharing = Chunk::kMmas / Chunk::kGroups;
  static_assert(kSharing % 2 == 0);
  constexpr int kAtOnce = kTilesAtOnce<kRowTiles>;
#pragma unroll
  for (int first = 0; first < kRowTiles; first += kAtOnce) {
    float of_group[kTiles][kAtOnce][4] = {};
#pragma unroll
    for (int m = 0; m < Chunk::kMmas; m += 2) {
      const int step = m / Form::kMmas;
      const int of_step = m % Form::kMmas;
      Packed8 x[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        x[j] = StagedInput<Form>(row, first + j, step, of_step / 2);
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        uint32_t a[Form::kMmas][4];
        Form::Unpack(chunk[i].codes[step][0], chunk[i].codes[step][1], chunk[i].scales[0],
                     chunk[i].scales[1], a);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t(&operand)[4] = a[of_step + half];
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            MultiplyAdd(of_group[i][j], operand[0], operand[1], operand[2], operand[3],
                        x[j].word[half * 2], x[j].word[half * 2 + 1]);
          }
        }
        if ((m + 2) % kSharing != 0) continue;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float scale = Form::ScaleOf(chunk[i].scales[e / 2][m / kSharing]);
            float& sum = sums[i][first + j][e];
            sum = fmaf(scale, of_group[i][j][e], sum);
            of_group[i][j][e] = 0;
          }
        }
      }
    }
  }
}

// `row`: as StagedInput.
template <typename Form, int kTiles, int kRowTiles>
__device__ void MultiplyChunk(const ChunkOfTile<Form> (&chunk)[kTiles], const std::byte* row,
                              float (&sums)[kTiles][kRowTiles][4]) {
  if constexpr (ChunkForm<Form>::kGroups == 0) {
    MultiplyPlain<Form>(chunk, row, sums);
  } else {
    MultiplyScaled<Form>(chunk, row, sums);
  }
}

// What becomes of an output's sum, read before the sum is there.
struct OutputTerms {
  float scale;
  float bias;
  float before;
};

// REQUIRES: there is such an output.
template <typename Form>
__device__ OutputTerms LoadTerms(const SomeRowsLaunch& launch, int64_t row, int64_t output) {
  const SkinnyGemmLaunch& gemm = launch.gemm;
  const int64_t at = row * gemm.out_stride + output;
  OutputTerms terms = {.scale = Form::FeatureScale(launch.weight, output), .bias = 0, .before = 0};
  if (gemm.bias != nullptr) terms.bias = gemm.bias[output];
  if (gemm.accumulate) {
    terms.before = gemm.out_is_f32
                       ? reinterpret_cast<const float*>(gemm.out)[at]
                       : __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(gemm.out)[at]);
  }
  return terms;
}

// Stores an output whose products are `sum`; `up`: those of the feature that it gates, times its
// scale. Rounds where the kernels for few rows do, as they are compiled: a bias is added in one
// with the product of sum and scale.
template <bool kGated>
__device__ void StoreOutput(const SkinnyGemmLaunch& gemm, int64_t row, int64_t output,
                            const OutputTerms& terms, float sum, float up = 0) {
  float value =
      gemm.bias != nullptr ? fmaf(sum, terms.scale, terms.bias) : __fmul_rn(sum, terms.scale);
  if constexpr (kGated) value = GateTimes(gemm.activation, value, up);
  if (gemm.accumulate) value = __fadd_rn(value, terms.before);
  const int64_t at = row * gemm.out_stride + output;
  if (gemm.out_is_f32) {
    reinterpret_cast<float*>(gemm.out)[at] = value;
  } else {
    reinterpret_cast<__nv_bfloat16*>(gemm.out)[at] = __float2bfloat16_rn(value);
  }
}

}  // namespace retroinfer::cuda
