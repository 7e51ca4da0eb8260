// Products of 17 to 64 rows where features are few: the eight slices of k are distributed over the
// warps of a cluster of blocks, which computes a group of features at a time, one group after the
// other. The slices' sums are left in the shared memory of the cluster's blocks; each block adds
// those of its share of rows, and stores the results.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/model/cuda/some_rows_parts.cuh"

namespace retroinfer::cuda {

template <int kBlocksOfCluster, int kWarpsOfBlock, int kTilesOfWarp, int kTilesOfRows,
          int kStagesOfSlice>
struct ClusterShape {
  static constexpr int kBlocks = kBlocksOfCluster;
  static constexpr int kThreads = 32 * kWarpsOfBlock;
  static constexpr int kSlices = kSlicesOfK / kBlocks;  // of a block
  static constexpr int kSliceWarps = kWarpsOfBlock / kSlices;
  static constexpr int kStagingThreads = 32 * kSliceWarps;
  static constexpr int kTiles = kTilesOfWarp;
  static constexpr int kFeatures = kSliceWarps * kTiles * kTileFeatures;  // of a group
  static constexpr int kRowTiles = kTilesOfRows;
  static constexpr int kRows = kRowTiles * kTileRows;
  static constexpr int kStages = kStagesOfSlice;
  static constexpr int kStageBytes = kRows * kChunkBytes;
  static constexpr int kInputBytes = kSlices * kStages * kStageBytes;
  // Sums of so many rows are exchanged at a time. Loads that are under way need the L1 cache that
  // shared memory leaves: with those of 64 rows a block would have 28 KiB left.
  static constexpr int kPartTiles = kRowTiles > 6 ? kRowTiles / 2 : kRowTiles;
  static constexpr int kPartRows = kPartTiles * kTileRows;
  // Of a row's sums, in floats: four lanes store to four rows at once.
  static constexpr int kPitch = kFeatures + 4;
  static constexpr int kSliceSums = kPartRows * kPitch;
  static constexpr int kSharedBytes = kInputBytes + kSlices * kSliceSums * 4;
};

#if __CUDA_ARCH__ >= 900
__device__ inline void ArriveAtCluster() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void AwaitCluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// What a block of the cluster has at this address of its shared memory.
__device__ inline float4 LoadOfBlock(const float* address, int block) {
  const auto own = static_cast<uint32_t>(__cvta_generic_to_shared(address));
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(own), "r"(block));
  float4 values;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(values.x), "=f"(values.y), "=f"(values.z), "=f"(values.w)
               : "r"(remote)
               : "memory");
  return values;
}

// Puts a warp's sums of a part of the rows where the cluster's blocks find them. `sums`: of the
// slice, at the warp's features.
template <typename Shape, int kFirstTile>
__device__ void ShareSums(const float (&values)[Shape::kTiles][Shape::kRowTiles][4], float* sums) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < Shape::kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < Shape::kPartTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = j * kTileRows + lane % 4 * 2 + e % 2;
        const int feature = i * kTileFeatures + lane / 4 + e / 2 * 8;
        sums[row * Shape::kPitch + feature] = values[i][kFirstTile + j][e];
      }
    }
  }
}

// Adds the slices' sums of the block's share of a part's rows, and stores the results. `sums`: of
// the block's first slice.
template <typename Form, typename Shape>
__device__ void StoreShare(const SomeRowsLaunch& launch, int64_t first_row, int64_t group,
                           const float* sums) {
  constexpr int kQuads = Shape::kFeatures / 4;
  const int rank = blockIdx.x % Shape::kBlocks;
  for (int i = threadIdx.x; i < kQuads * (Shape::kPartRows / Shape::kBlocks);
       i += Shape::kThreads) {
    const int row = i / kQuads * Shape::kBlocks + rank;
    if (first_row + row >= launch.gemm.rows) break;
    const int64_t first = group * Shape::kFeatures + i % kQuads * 4;
    const auto count = static_cast<int>(min(launch.gemm.out_features - first, int64_t{4}));
    OutputTerms terms[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (e < count) terms[e] = LoadTerms<Form>(launch, first_row + row, first + e);
    }
    float4 of_slice[kSlicesOfK];
#pragma unroll
    for (int s = 0; s < kSlicesOfK; ++s) {
      const int at = s % Shape::kSlices * Shape::kSliceSums + row * Shape::kPitch + i % kQuads * 4;
      of_slice[s] = LoadOfBlock(sums + at, s / Shape::kSlices);
    }
    float sum[4] = {};
#pragma unroll
    for (int s = 0; s < kSlicesOfK; ++s) {
      sum[0] += of_slice[s].x;
      sum[1] += of_slice[s].y;
      sum[2] += of_slice[s].z;
      sum[3] += of_slice[s].w;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (e < count) StoreOutput<false>(launch.gemm, first_row + row, first + e, terms[e], sum[e]);
    }
  }
}
#endif

// blockIdx.x / Shape::kBlocks: a cluster, which takes every (number of clusters)-th group;
// blockIdx.y: rows.
template <typename Form, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    ClusterGemmKernel(const __grid_constant__ SomeRowsLaunch launch) {
#if __CUDA_ARCH__ >= 900
  constexpr int kTiles = Shape::kTiles;
  constexpr int kRing = 2;
  extern __shared__ __align__(128) std::byte shared[];
  const int slice = threadIdx.x / Shape::kStagingThreads;  // of the block
  const int part = threadIdx.x / 32 % Shape::kSliceWarps;  // of the group's features
  const int64_t first_row = int64_t{blockIdx.y} * Shape::kRows;
  const int num_clusters = gridDim.x / Shape::kBlocks;
  const int begin = (blockIdx.x % Shape::kBlocks * Shape::kSlices + slice) * launch.slice_cols;
  const int slice_end = begin + launch.slice_cols;
  const int end = min(static_cast<int>(launch.weight.padded_cols), slice_end);
  const int chunks = (launch.slice_cols + kChunk - 1) / kChunk;
  std::byte* const stages = shared + slice * (Shape::kStages * Shape::kStageBytes);
  float* const sums = reinterpret_cast<float*>(shared + Shape::kInputBytes);
  int group = blockIdx.x / Shape::kBlocks;
  AllowNextKernel();

  WeightRows<Form, kTiles> rows;
  ChunkOfTile<Form> ring[kRing][kTiles] = {};
  int read_group = group, read_chunk = 0;
  // Of a group whole rings are read, the last with a chunk that is not there.
  const auto request_next = [&](int slot) {
    if (read_chunk >= chunks && read_chunk % kRing == 0) {
      read_chunk = 0;
      read_group += num_clusters;
    }
    if (read_chunk == 0 && read_group < launch.num_groups) {
      int64_t first[kTiles];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        first[i] = int64_t{read_group} * Shape::kFeatures + (part * kTiles + i) * kTileFeatures;
      }
      rows.Set(launch, first);
    }
    rows.Request(launch, begin + read_chunk * kChunk, read_group < launch.num_groups ? end : begin,
                 ring[1 - slot], ring[slot]);
    ++read_chunk;
  };
  request_next(0);

  AwaitLastKernel();
  const InputStages<Shape, ChunkForm<Form>::kOddRows> input(
      launch.gemm, first_row, threadIdx.x % Shape::kStagingThreads, stages);
  // Where all chunks have stages they are filled once, else for each group.
  const bool stays = chunks <= Shape::kStages;
  const int fills =
      stays ? chunks : chunks * ((launch.num_groups - group + num_clusters - 1) / num_clusters);
  int filled = 0, fill_chunk = 0;
  const auto fill_next = [&] {
    if (filled < fills) input.Fill(begin + fill_chunk * kChunk, slice_end, filled % Shape::kStages);
    CommitStage();
    ++filled;
    if (++fill_chunk == chunks) fill_chunk = 0;
  };
#pragma unroll
  for (int i = 0; i + 1 < Shape::kStages; ++i) fill_next();

  const int lane_row = static_cast<int>(threadIdx.x % 32) / 4 * kChunkBytes;
  int multiplied = 0, stage = 0;
  for (bool is_first = true; group < launch.num_groups; is_first = false) {
    float values[kTiles][Shape::kRowTiles][4] = {};
    for (int at = 0; at < chunks; at += kRing) {
#pragma unroll
      for (int u = 0; u < kRing; ++u) {
        request_next(1 - u);
        if (at + u >= chunks) continue;
        if (multiplied++ < fills) {
          AwaitStages<Shape::kStages - 2>();
          asm volatile("bar.sync %0, %1;" ::"r"(slice + 1), "n"(Shape::kStagingThreads) : "memory");
          fill_next();
        }
        MultiplyChunk<Form>(ring[u], stages + stage * Shape::kStageBytes + lane_row, values);
        if (++stage == Shape::kStages) stage = 0;
      }
    }
    if (stays) stage = 0;
    const auto exchange = [&](auto first_tile) {
      constexpr int kFirstTile = decltype(first_tile)::value;
      // Until all blocks have read the sums before these.
      if (!is_first || kFirstTile > 0) AwaitCluster();
      ShareSums<Shape, kFirstTile>(
          values, sums + slice * Shape::kSliceSums + part * (kTiles * kTileFeatures));
      ArriveAtCluster();
      AwaitCluster();
      StoreShare<Form, Shape>(launch, first_row + kFirstTile * kTileRows, group, sums);
      ArriveAtCluster();
    };
    exchange(std::integral_constant<int, 0>());
    if constexpr (Shape::kPartTiles < Shape::kRowTiles) {
      exchange(std::integral_constant<int, Shape::kPartTiles>());
    }
    group += num_clusters;
  }
  // A block's shared memory must not end before the others have read it.
  AwaitCluster();
#endif
}

// A kernel and its launch.
template <typename Form, typename Shape>
class ClusterGemm {
 public:
  // How many clusters the GPU holds at once; zero where it does not take the kernel. The first call
  // allows the kernel its shared memory.
  static int ClustersAtOnce() {
    static const int clusters = FindClustersAtOnce();
    return clusters;
  }

  // REQUIRES: ClustersAtOnce() > 0.
  static cudaError_t Launch(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                            cudaStream_t stream) {
    const int64_t groups = (gemm.out_features + Shape::kFeatures - 1) / Shape::kFeatures;
    const int64_t rounds = (groups + ClustersAtOnce() - 1) / ClustersAtOnce();
    cudaLaunchAttribute attributes[2];
    const cudaLaunchConfig_t config =
        Config((groups + rounds - 1) / rounds, (gemm.rows + Shape::kRows - 1) / Shape::kRows,
               stream, attributes);
    return cudaLaunchKernelEx(
        &config, &ClusterGemmKernel<Form, Shape>,
        SomeRowsLaunch{.gemm = gemm,
                       .weight = weight,
                       .slice_cols = ChunkForm<Form>::SliceCols(weight.padded_cols),
                       .num_groups = static_cast<int>(groups)});
  }

 private:
  static int FindClustersAtOnce() {
    const auto kernel = &ClusterGemmKernel<Form, Shape>;
    if (!IsCompiledForHopper(reinterpret_cast<const void*>(kernel), Shape::kSharedBytes)) return 0;
    cudaLaunchAttribute attributes[2];
    const cudaLaunchConfig_t config = Config(1, 1, nullptr, attributes);
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
      (void)cudaGetLastError();
      return 0;
    }
    return clusters;
  }

  static cudaLaunchConfig_t Config(int64_t clusters, int64_t row_blocks, cudaStream_t stream,
                                   cudaLaunchAttribute (&attributes)[2]) {
    attributes[0] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = Shape::kBlocks;
    attributes[0].val.clusterDim.y = 1;
    attributes[0].val.clusterDim.z = 1;
    attributes[1] = {};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim =
        dim3(static_cast<unsigned>(clusters * Shape::kBlocks), static_cast<unsigned>(row_blocks));
    config.blockDim = dim3(Shape::kThreads);
    config.dynamicSmemBytes = Shape::kSharedBytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return config;
  }
};

}  // namespace retroinfer::cuda
