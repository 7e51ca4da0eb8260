// Spherical k-means in a few launches a round: assignment (a matrix product whose epilogue keeps
// the largest of each row, so that no product leaves the registers; on Hopper that of
// cluster_assign_hopper.cu), a stable sort of the tokens by cluster, and new centroids. Bound by
// the tensor cores: 2 * n * m * d flops for each head and round.
//
// Invariants:
// * Sums run over a cluster's members in token order, split among four warps by place: the same
//   keys always give the same bits.
// * Ties between centroids go to the lower cluster number.
// * Keys and centroids are multiplied in the KV dtype: bf16 on tensor cores, f32 without.
#include "gpu_worker/ops/cuda/cuda_kv_format.h"
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/cuda/warp_mma.cuh"
#include "gpu_worker/ops/index/cluster_keys_check.h"
#include "gpu_worker/ops/index/cuda/cluster_assign.h"
#include "gpu_worker/ops/index/cuda/cluster_keys.h"
#include "gpu_worker/ops/index/cuda/cluster_rows.cuh"
#include "gpu_worker/ops/index/cuda/member_order.h"
#include "gpu_worker/ops/index/cuda/member_sums.cuh"

namespace retroinfer::cuda {
namespace {

// Centroids in shared memory at once.
template <int kDim>
constexpr int kTileClusters = kDim > 128 ? 32 : 64;

constexpr int kAssignThreads = 256;
constexpr int kKeysPerWarp = 32;
constexpr int kKeysPerAssignBlock = kAssignThreads / 32 * kKeysPerWarp;
constexpr int kPlainThreads = 128;

// partial[head][block][d] = sum of the block's rows.
template <typename T, int kDim>
__global__ void __launch_bounds__(kDim) PartialMeanKernel(Rows<T> keys, float* partial) {
  const int64_t head = blockIdx.y;
  const T* const rows =
      keys.data + head * keys.head_stride + int64_t{blockIdx.x} * kRowsPerBlock * kDim;
  float sum = 0;
#pragma unroll 16
  for (int i = 0; i < kRowsPerBlock; ++i) sum += ToFloat(rows[i * kDim + threadIdx.x]);
  partial[(head * gridDim.x + blockIdx.x) * kDim + threadIdx.x] = sum;
}

// out = keys less their mean, [heads][n][d].
template <typename T, int kDim>
__global__ void __launch_bounds__(kDim)
    CentreKernel(Rows<T> keys, const float* partial, int32_t num_tokens, T* out) {
  const int64_t head = blockIdx.y;
  constexpr unsigned kAhead = 16;  // loads under way
  float sum = 0;
  for (unsigned first_part = 0; first_part < gridDim.x; first_part += kAhead) {
    float parts[kAhead];
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) {
      const unsigned part = first_part + i;
      parts[i] = part < gridDim.x ? partial[(head * gridDim.x + part) * kDim + threadIdx.x] : 0.0f;
    }
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) sum += parts[i];
  }
  const float mean = sum / static_cast<float>(num_tokens);
  const int64_t first = int64_t{blockIdx.x} * kRowsPerBlock * kDim + threadIdx.x;
  const T* const from = keys.data + head * keys.head_stride + first;
  T* const to = out + head * num_tokens * kDim + first;
  static_assert(kRowsPerBlock % kAhead == 0);
  for (unsigned row = 0; row < kRowsPerBlock; row += kAhead) {
    float values[kAhead];
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) values[i] = ToFloat(from[(row + i) * kDim]);
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) to[(row + i) * kDim] = FromFloat<T>(values[i] - mean);
  }
}

// centroid = sum / |sum|; left alone if the sum is zero. One warp.
template <typename T, int kDim>
__device__ void StoreNormalized(const float (&sum)[kDim / 32], T* centroid) {
  float square = 0;
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) square += sum[i] * sum[i];
  square = WarpSum(square);
  if (!(square > 0)) return;
  const float scale = 1.0f / sqrtf(square);
  Elements<T, kDim / 32> out;
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) out.values[i] = FromFloat<T>(sum[i] * scale);
  reinterpret_cast<Elements<T, kDim / 32>*>(centroid)[threadIdx.x % 32] = out;
}

// Normalised keys at a uniform stride. One warp a cluster; blockIdx.y is the head.
template <typename T, int kDim>
__global__ void __launch_bounds__(32)
    InitializeKernel(Rows<T> keys, int32_t stride, int32_t num_clusters, T* centroids) {
  const int64_t head = blockIdx.y;
  const int64_t cluster = blockIdx.x;
  const auto row = LaneOfRow<T, kDim>(keys.data + head * keys.head_stride, cluster * stride);
  T* const centroid = centroids + (head * num_clusters + cluster) * kDim;
  // A key of zero is its own centroid.
  reinterpret_cast<Elements<T, kDim / 32>*>(centroid)[threadIdx.x] = row;
  float values[kDim / 32] = {};
  AddRow<T, kDim>(row, values);
  StoreNormalized<T, kDim>(values, centroid);
}

// The larger of two products, the lower cluster of equal ones.
__device__ void KeepBest(float product, int32_t cluster, float& best, int32_t& best_cluster) {
  if (product > best || (product == best && cluster < best_cluster)) {
    best = product;
    best_cluster = cluster;
  }
}

// Begins the copy of a tile of centroids; rows are padded so that ldmatrix meets no bank twice.
template <int kDim>
__device__ void CopyTile(const __nv_bfloat16* centroids, __nv_bfloat16 (*tile)[kDim + 8]) {
  constexpr int kChunks = kDim / 8;  // of 16 bytes, a row
  for (int i = static_cast<int>(threadIdx.x); i < kTileClusters<kDim> * kChunks;
       i += kAssignThreads) {
    CopyAsync16(SharedAddress(&tile[i / kChunks][i % kChunks * 8]), centroids + i * 8, 16);
  }
  CommitCopies();
}

// What a lane knows of its rows (lane / 4 and the one 8 below, of two matrices of 16 keys).
struct BestOfRows {
  float product[2][2];
  int32_t cluster[2][2];
};

// Products of the warp's keys with one tile, two columns of matrices at a time.
template <int kDim>
__device__ void ScoreTile(const uint32_t (&keys)[2][kDim / 16][4],
                          const __nv_bfloat16 (*tile)[kDim + 8], int32_t first_cluster,
                          BestOfRows& best) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int column = 0; column < kTileClusters<kDim> / 8; column += 2) {
    float sums[2][2][4] = {};
#pragma unroll
    for (int step = 0; step < kDim / 32; ++step) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        uint32_t b[4];
        LoadMatrices(SharedAddress(&tile[(column + c) * 8 + lane % 8][step * 32 + lane / 8 * 8]),
                     b);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          MultiplyAdd(keys[r][2 * step], b[0], b[1], sums[c][r]);
          MultiplyAdd(keys[r][2 * step + 1], b[2], b[3], sums[c][r]);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // ascending clusters for each row
        const int r = i / 4, half = i / 2 % 2;
        const int32_t cluster = first_cluster + (column + c) * 8 + lane % 4 * 2 + i % 2;
        const float product = sums[c][r][i % 4];
        if (product > best.product[r][half]) {
          best.product[r][half] = product;
          best.cluster[r][half] = cluster;
        }
      }
    }
  }
}

// blockIdx.x: 256 keys; blockIdx.y: head. A warp keeps 32 keys in registers and meets all centroids
// in shared memory, a tile at a time.
template <int kDim>
__global__ void __launch_bounds__(kAssignThreads, kDim > 128 ? 1 : 2)
    AssignKernel(Rows<__nv_bfloat16> keys, const __nv_bfloat16* centroids, int32_t num_tokens,
                 int32_t num_clusters, int32_t* assignment) {
  __shared__ alignas(16) __nv_bfloat16 tiles[2][kTileClusters<kDim>][kDim + 8];
  const int64_t head = blockIdx.y;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first_key =
      int64_t{blockIdx.x} * kKeysPerAssignBlock + threadIdx.x / 32 * kKeysPerWarp;
  centroids += head * num_clusters * kDim;
  AllowNextKernel();
  uint32_t a[2][kDim / 16][4];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const __nv_bfloat16* const row =
        keys.data + head * keys.head_stride + (first_key + r * 16 + lane / 4) * kDim + lane % 4 * 2;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[r][step][i] =
            *reinterpret_cast<const uint32_t*>(row + i % 2 * 8 * kDim + step * 16 + i / 2 * 8);
      }
    }
  }
  // The keys were there before the kernels of the rounds began.
  AwaitLastKernel();
  CopyTile<kDim>(centroids, tiles[0]);
  BestOfRows best;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    best.product[i / 2][i % 2] = -INFINITY;
    best.cluster[i / 2][i % 2] = 0;
  }
  const int num_tiles = num_clusters / kTileClusters<kDim>;
  for (int tile = 0; tile < num_tiles; ++tile) {
    if (tile + 1 < num_tiles) {
      CopyTile<kDim>(centroids + int64_t{tile + 1} * kTileClusters<kDim> * kDim,
                     tiles[(tile + 1) % 2]);
      WaitCopies<1>();
    } else {
      WaitCopies<0>();
    }
    __syncthreads();
    ScoreTile<kDim>(a, tiles[tile % 2], tile * kTileClusters<kDim>, best);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = i / 2, half = i % 2;
    for (int distance = 1; distance < 4; distance *= 2) {
      const float product = __shfl_xor_sync(kAllLanes, best.product[r][half], distance);
      const int32_t cluster = __shfl_xor_sync(kAllLanes, best.cluster[r][half], distance);
      KeepBest(product, cluster, best.product[r][half], best.cluster[r][half]);
    }
    if (lane % 4 == 0) {
      assignment[head * num_tokens + first_key + r * 16 + half * 8 + lane / 4] =
          best.cluster[r][half];
    }
  }
}

// The same in f32: a thread keeps one key.
template <int kDim>
__global__ void __launch_bounds__(kPlainThreads)
    PlainAssignKernel(Rows<float> keys, const float* centroids, int32_t num_tokens,
                      int32_t num_clusters, int32_t* assignment) {
  constexpr int kTile = 32;
  __shared__ float4 tile[kTile][kDim / 4];
  AllowNextKernel();
  AwaitLastKernel();
  const int64_t head = blockIdx.y;
  const int64_t row = int64_t{blockIdx.x} * kPlainThreads + threadIdx.x;
  const auto* const from =
      reinterpret_cast<const float4*>(keys.data + head * keys.head_stride + row * kDim);
  float4 key[kDim / 4];
#pragma unroll
  for (int i = 0; i < kDim / 4; ++i) key[i] = from[i];
  const auto* const all = reinterpret_cast<const float4*>(centroids + head * num_clusters * kDim);
  float best = -INFINITY;
  int32_t best_cluster = 0;
  for (int32_t first = 0; first < num_clusters; first += kTile) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kDim / 4; i += kPlainThreads) {
      (&tile[0][0])[i] = all[int64_t{first} * kDim / 4 + i];
    }
    __syncthreads();
    for (int32_t j = 0; j < kTile; ++j) {
      float product = 0;
#pragma unroll
      for (int i = 0; i < kDim / 4; ++i) {
        const float4 c = tile[j][i];
        product += key[i].x * c.x + key[i].y * c.y + key[i].z * c.z + key[i].w * c.w;
      }
      KeepBest(product, first + j, best, best_cluster);
    }
  }
  assignment[head * num_tokens + row] = best_cluster;
}

// One block for each cluster (blockIdx.x) and head (blockIdx.y).
template <typename T, int kDim>
__global__ void __launch_bounds__(kSumThreads)
    UpdateKernel(Rows<T> keys, MemberOrder order, const int32_t* sizes, int32_t num_tokens,
                 T* centroids) {
  __shared__ float shared[kSumWarps][kDim];
  const int64_t head = blockIdx.y;
  const int64_t at = head * gridDim.x + blockIdx.x;
  AllowNextKernel();
  AwaitLastKernel();
  const int32_t size = sizes[at];
  if (size == 0) return;
  float sum[kDim / 32] = {};
  AddMembers<T, kDim>(keys.data + head * keys.head_stride,
                      order.tokens + head * num_tokens + order.first[at], size, sum);
  AddWarps<kDim>(sum, shared);
  if (threadIdx.x < 32) StoreNormalized<T, kDim>(sum, centroids + at * kDim);
}

struct IndexOut {
  float* centroids;
  float* value_sums;
  float* radii;
};

// Mean, value sum and radius, of the KV as it is. Blocks as in UpdateKernel.
template <typename T, int kDim>
__global__ void __launch_bounds__(kSumThreads)
    IndexKernel(Rows<T> keys, Rows<T> values, MemberOrder order, const int32_t* sizes,
                int32_t num_tokens, IndexOut out) {
  constexpr int kPerLane = kDim / 32;
  __shared__ float key_sums[kSumWarps][kDim];
  __shared__ float value_sums[kSumWarps][kDim];
  __shared__ float distances[kSumWarps];
  AllowNextKernel();
  AwaitLastKernel();
  const int64_t head = blockIdx.y;
  const int64_t at = head * gridDim.x + blockIdx.x;
  const int32_t size = sizes[at];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint16_t* const members = order.tokens + head * num_tokens + order.first[at];
  const T* const head_keys = keys.data + head * keys.head_stride;
  float mean[kPerLane] = {}, value_sum[kPerLane] = {};
  AddMembers<T, kDim>(head_keys, members, size, mean);
  AddMembers<T, kDim>(values.data + head * values.head_stride, members, size, value_sum);
  AddWarps<kDim>(mean, key_sums);
  AddWarps<kDim>(value_sum, value_sums);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) mean[i] /= static_cast<float>(max(size, 1));
  float largest = 0;
  for (int32_t i = warp; i < size; i += kSumWarps) {
    const auto row = LaneOfRow<T, kDim>(head_keys, members[i]);
    float square = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const float difference = ToFloat(row.values[j]) - mean[j];
      square += difference * difference;
    }
    largest = fmaxf(largest, WarpSum(square));
  }
  if (lane == 0) distances[warp] = largest;
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    out.centroids[at * kDim + lane * kPerLane + i] = mean[i];
    out.value_sums[at * kDim + lane * kPerLane + i] = value_sum[i];
  }
  if (lane == 0) {
    for (int w = 1; w < kSumWarps; ++w) largest = fmaxf(largest, distances[w]);
    out.radii[at] = sqrtf(largest);
  }
}

// Parts of the scratch, for all heads.
struct Scratch {
  std::byte* keys;       // [h, n, d] centred keys, in KV dtype
  std::byte* centroids;  // [h, m, d] normalised, in KV dtype
  float* partial;        // [h, n / kRowsPerBlock, d] sums of keys
  MemberOrder order;
};

// Lays the parts out from `base` on.
Scratch PlaceScratch(std::byte* base, const ClusterScratchSizes& sizes) {
  const auto take = [&base](size_t bytes) {
    std::byte* const part = base;
    base += bytes;
    return part;
  };
  Scratch scratch{};
  scratch.keys = take(sizes.keys);
  scratch.centroids = take(sizes.centroids);
  scratch.partial = reinterpret_cast<float*>(take(sizes.partial));
  scratch.order.tokens = reinterpret_cast<uint16_t*>(take(sizes.tokens));
  scratch.order.first = reinterpret_cast<uint32_t*>(take(sizes.first));
  return scratch;
}

template <typename T, int kDim>
class Clustering {
 public:
  Clustering(CudaStream& stream, const ClusterKeysArgs& args)
      : stream_(stream),
        args_(args),
        heads_(args.kv.num_kv_heads),
        clusters_(static_cast<unsigned>(args.num_clusters), heads_) {
    scratch_ = PlaceScratch(args.scratch.device_data(),
                            {heads_, kDim, static_cast<size_t>(args.num_tokens),
                             static_cast<size_t>(args.num_clusters)});
    raw_ = {reinterpret_cast<const T*>(args.kv.Key(0, args.first_token)), args.kv.capacity * kDim};
    values_ = {reinterpret_cast<const T*>(args.kv.Value(0, args.first_token)),
               args.kv.capacity * kDim};
    centroids_ = reinterpret_cast<T*>(scratch_.centroids);
  }

  absl::Status Run() {
    RETURN_IF_ERROR(PrepareKeys());
    InitializeKernel<T, kDim><<<clusters_, 32, 0, stream_.get()>>>(
        keys_, args_.num_tokens / args_.num_clusters, args_.num_clusters, centroids_);
    RETURN_IF_ERROR(LaunchStatus("launching cluster_keys' first centroids"));
    for (int32_t round = 0; round < args_.rounds; ++round) {
      RETURN_IF_ERROR(Assign());
      RETURN_IF_ERROR(CudaStatus(
          LaunchDependent({.grid = clusters_, .block = kSumThreads, .stream = stream_.get()},
                          &UpdateKernel<T, kDim>, keys_, scratch_.order, args_.sizes.device_data(),
                          args_.num_tokens, centroids_),
          "launching cluster_keys' new centroids"));
    }
    RETURN_IF_ERROR(Assign());
    IndexKernel<T, kDim><<<clusters_, kSumThreads, 0, stream_.get()>>>(
        raw_, values_, scratch_.order, args_.sizes.device_data(), args_.num_tokens,
        {args_.centroids.device_data(), args_.value_sums.device_data(), args_.radii.device_data()});
    return LaunchStatus("launching cluster_keys' index");
  }

 private:
  // Points keys_ to what is clustered: the keys as they are, or a centred copy.
  absl::Status PrepareKeys() {
    keys_ = raw_;
    if (!args_.centre_keys) return absl::OkStatus();
    const dim3 grid(static_cast<unsigned>(args_.num_tokens) / kRowsPerBlock, heads_);
    PartialMeanKernel<T, kDim><<<grid, kDim, 0, stream_.get()>>>(raw_, scratch_.partial);
    RETURN_IF_ERROR(LaunchStatus("launching cluster_keys' mean"));
    T* const centred = reinterpret_cast<T*>(scratch_.keys);
    CentreKernel<T, kDim>
        <<<grid, kDim, 0, stream_.get()>>>(raw_, scratch_.partial, args_.num_tokens, centred);
    keys_ = {centred, int64_t{args_.num_tokens} * kDim};
    return LaunchStatus("launching cluster_keys' centring");
  }

  // Assigns every key and sorts the tokens by cluster.
  absl::Status Assign() {
    int32_t* const assignment = args_.assignment.device_data();
    const auto n = static_cast<unsigned>(args_.num_tokens);
    const auto launch = [&](auto kernel, unsigned keys_of_block, unsigned threads) {
      return CudaStatus(
          LaunchDependent(
              {.grid = dim3(n / keys_of_block, heads_), .block = threads, .stream = stream_.get()},
              kernel, keys_, centroids_, args_.num_tokens, args_.num_clusters, assignment),
          "launching cluster_keys' assignment");
    };
    if constexpr (sizeof(T) == 4) {
      RETURN_IF_ERROR(launch(&PlainAssignKernel<kDim>, kPlainThreads, kPlainThreads));
    } else if (HasHopperAssign(kDim)) {
      RETURN_IF_ERROR(CudaStatus(LaunchHopperAssign({.keys = keys_.data,
                                                     .head_stride = keys_.head_stride,
                                                     .centroids = centroids_,
                                                     .num_heads = heads_,
                                                     .num_tokens = args_.num_tokens,
                                                     .num_clusters = args_.num_clusters,
                                                     .assignment = assignment},
                                                    kDim, stream_.get()),
                                 "launching cluster_keys' assignment"));
    } else {
      RETURN_IF_ERROR(launch(&AssignKernel<kDim>, kKeysPerAssignBlock, kAssignThreads));
    }
    return OrderMembers(stream_, assignment, heads_, args_.num_tokens, args_.num_clusters,
                        scratch_.order, args_.sizes.device_data(), /*early=*/true);
  }

  CudaStream& stream_;
  const ClusterKeysArgs& args_;
  const unsigned heads_;
  const dim3 clusters_;
  Scratch scratch_{};
  Rows<T> raw_{};
  Rows<T> values_{};
  Rows<T> keys_{};
  T* centroids_ = nullptr;
};

template <typename T>
absl::Status RunClustering(CudaStream& stream, const ClusterKeysArgs& args) {
  switch (args.kv.head_dim) {
    case 64:
      return Clustering<T, 64>(stream, args).Run();
    case 128:
      return Clustering<T, 128>(stream, args).Run();
    default:
      return Clustering<T, 256>(stream, args).Run();
  }
}

}  // namespace

absl::Status ClusterKeys(CudaStream& stream, const ClusterKeysArgs& args) {
  RETURN_IF_ERROR(
      CheckClusterKeys(args, ClusterKeysScratchBytes(args.kv.num_kv_heads, args.kv.head_dim,
                                                     args.num_tokens, args.num_clusters)));
  RETURN_IF_ERROR(CheckPromptType(kKvElementTypes, "cluster_keys", args.kv.dtype));
  static_assert(kPrefillSegmentTokens <= kMaxOrderedTokens &&
                kPrefillSegmentTokens / kTokensPerCluster <= kMaxOrderedClusters);
  return args.kv.dtype == DType::kBf16 ? RunClustering<__nv_bfloat16>(stream, args)
                                       : RunClustering<float>(stream, args);
}

}  // namespace retroinfer::cuda
