// A block has all centroids of a head in shared memory, as products of four warps want them (rows
// of 128 bytes, swizzled). Each of its four warpgroups keeps 64 keys in registers and meets 64
// centroids at a time; while it looks for the largest product among these, the tensor cores work
// for the other three. Bound by the tensor cores.
#include <cmath>

#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/warp_mma.cuh"
#include "gpu_worker/ops/cuda/warpgroup_mma.cuh"
#include "gpu_worker/ops/index/cuda/cluster_assign.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarpgroups = kThreads / 128;
constexpr int kKeysAtOnce = 64 * kWarpgroups;
constexpr int kKeysOfBlock = 2 * kKeysAtOnce;  // so that copying the centroids pays
constexpr uint32_t kAlignment = 1024;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kTileClusters = 64;
constexpr uint32_t kChunkBytes = kTileClusters * 128;  // 64 dimensions of a tile
constexpr uint32_t kGroupBytes = 8 * 128;
constexpr int kFirstTiles = 2;  // products begin when so many are there, at most
constexpr uint32_t kAllLanes = 0xffffffff;

template <int kDim>
constexpr uint32_t kTileBytes = kDim / 64 * kChunkBytes;

// Begins to copy centroids [begin, end).
template <int kDim>
__device__ void CopyCentroids(const __nv_bfloat16* centroids, int begin, int end, uint32_t shared) {
  constexpr int kPieces = kDim / 8;  // of 16 bytes, a row
  for (int i = begin * kPieces + static_cast<int>(threadIdx.x); i < end * kPieces; i += kThreads) {
    const int cluster = i / kPieces, piece = i % kPieces;
    const uint32_t row = static_cast<uint32_t>(cluster % kTileClusters);
    const uint32_t place = static_cast<uint32_t>(cluster / kTileClusters) * kTileBytes<kDim> +
                           static_cast<uint32_t>(piece / 8) * kChunkBytes + row * 128 +
                           ((static_cast<uint32_t>(piece) ^ row) % 8) * 16;
    CopyAsync16(shared + place, centroids + int64_t{i} * 8, 16);
  }
  CommitCopies();
}

// The keys of one warp, as the product of its warpgroup wants them, and what it knows of them: of
// rows lane / 4 and the one 8 below.
template <int kDim>
class WarpKeys {
 public:
  __device__ void Load(const __nv_bfloat16* first_row) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const __nv_bfloat16* const row = first_row + lane / 4 * kDim + lane % 4 * 2;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        keys_[step][i] =
            *reinterpret_cast<const uint32_t*>(row + i % 2 * 8 * kDim + step * 16 + i / 2 * 8);
      }
    }
    best_[0] = best_[1] = -INFINITY;
    cluster_[0] = cluster_[1] = 0;
  }

  // Products with tiles [begin, end).
  __device__ void MeetTiles(uint32_t shared, int begin, int end) {
    float products[32];
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) {
      Issue(shared + static_cast<uint32_t>(tile) * kTileBytes<kDim>, products);
      WaitProducts<0>();
      KeepOrder(products);
      Take(products, tile * kTileClusters);
    }
  }

  // Writes the warp's 16 assignments.
  __device__ void Store(int32_t* assignment) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      for (int distance = 1; distance < 4; distance *= 2) {
        const float product = __shfl_xor_sync(kAllLanes, best_[half], distance);
        const int32_t cluster = __shfl_xor_sync(kAllLanes, cluster_[half], distance);
        if (product > best_[half] || (product == best_[half] && cluster < cluster_[half])) {
          best_[half] = product;
          cluster_[half] = cluster;
        }
      }
      if (lane % 4 == 0) assignment[half * 8 + lane / 4] = cluster_[half];
    }
  }

 private:
  __device__ void Issue(uint32_t tile, float (&products)[32]) {
    BeginProducts();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const auto offset =
          static_cast<uint32_t>(step / 4) * kChunkBytes + static_cast<uint32_t>(step % 4) * 32;
      MultiplyRegisters(keys_[step], TileDescriptor(tile + offset, kGroupBytes, 16), step > 0,
                        products);
    }
    CommitProducts();
  }

  // Lane i has columns 8 c + 2 (i % 4) and the next: ascending clusters for each row.
  __device__ void Take(const float (&products)[32], int32_t first_cluster) {
    const int32_t first = first_cluster + static_cast<int32_t>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int half = i / 2 % 2;
      if (products[i] > best_[half]) {
        best_[half] = products[i];
        cluster_[half] = first + i / 4 * 8 + i % 2;
      }
    }
  }

  uint32_t keys_[kDim / 16][4];
  float best_[2];
  int32_t cluster_[2];
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// blockIdx.x: 512 keys; blockIdx.y: head.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    HopperAssignKernel(const __grid_constant__ AssignLaunch launch) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte dynamic_shared[];
  const uint32_t shared =
      (SharedAddress(dynamic_shared) + kAlignment - 1) / kAlignment * kAlignment;
  const int64_t head = blockIdx.y;
  const int64_t first_key =
      int64_t{blockIdx.x} * kKeysOfBlock + static_cast<int64_t>(threadIdx.x / 32) * 16;
  const __nv_bfloat16* const keys = launch.keys + head * launch.head_stride + first_key * kDim;
  int32_t* const assignment = launch.assignment + head * launch.num_tokens + first_key;
  const __nv_bfloat16* const centroids = launch.centroids + head * launch.num_clusters * kDim;
  const int num_tiles = launch.num_clusters / kTileClusters;
  const int first_tiles = min(kFirstTiles, num_tiles);
  AllowNextKernel();
  WarpKeys<kDim> warp;
  warp.Load(keys);
  AwaitLastKernel();
  CopyCentroids<kDim>(centroids, 0, first_tiles * kTileClusters, shared);
  CopyCentroids<kDim>(centroids, first_tiles * kTileClusters, launch.num_clusters, shared);
  WaitCopies<1>();
  PublishToProducts();
  __syncthreads();
  warp.MeetTiles(shared, 0, first_tiles);
  WaitCopies<0>();
  PublishToProducts();
  __syncthreads();
  if (first_tiles < num_tiles) warp.MeetTiles(shared, first_tiles, num_tiles);
  warp.Store(assignment);
  warp.Load(keys + int64_t{kKeysAtOnce} * kDim);
  warp.MeetTiles(shared, 0, num_tiles);
  warp.Store(assignment + kKeysAtOnce);
#endif
}

bool IsHopper() {
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         major == 9 && minor == 0;
}

template <int kDim>
cudaError_t Launch(const AssignLaunch& launch, cudaStream_t stream) {
  const size_t bytes =
      static_cast<size_t>(launch.num_clusters) * kDim * sizeof(__nv_bfloat16) + kAlignment;
  const cudaError_t error =
      cudaFuncSetAttribute(HopperAssignKernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  return LaunchDependent(
      {.grid = dim3(static_cast<unsigned>(launch.num_tokens / kKeysOfBlock), launch.num_heads),
       .block = kThreads,
       .shared_bytes = bytes,
       .stream = stream},
      &HopperAssignKernel<kDim>, launch);
}

}  // namespace

bool HasHopperAssign(int head_dim) {
  static const bool has = RETROINFER_SM90A != 0 && IsHopper();
  return has && (head_dim == 64 || head_dim == 128);
}

cudaError_t LaunchHopperAssign(const AssignLaunch& launch, uint32_t head_dim, cudaStream_t stream) {
  return head_dim == 128 ? Launch<128>(launch, stream) : Launch<64>(launch, stream);
}

}  // namespace retroinfer::cuda
