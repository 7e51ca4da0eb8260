// Invariants:
// * A head is clustered by one thread from start to end and all sums run in token order, so the
//   result does not depend on the number of threads.
// * Ties between centroids go to the lower cluster number.
// * Keys and centroids are multiplied in bf16 where KV is bf16 and the processor is good at it,
//   else in f32; sums, norms and the resulting index are f32 sums of the KV elements.
#include "gpu_worker/ops/index/cpu/cluster_keys.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/convert.h"
#include "gpu_worker/ops/cpu/cpu_features.h"
#include "gpu_worker/ops/cpu/cpu_kv_format.h"
#include "gpu_worker/ops/cpu/matmul_kernel.h"
#include "gpu_worker/ops/index/cluster_keys_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/index/cpu/cluster_keys.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
//
#include "gpu_worker/ops/cpu/vector_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

// Largest of `count` values, a multiple of 64.
float MaxOfMany(const float* values, int64_t count) {
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  FloatVec max0 = hn::LoadU(d, values), max1 = max0, max2 = max0, max3 = max0;
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    max0 = hn::Max(max0, hn::LoadU(d, values + i));
    max1 = hn::Max(max1, hn::LoadU(d, values + i + lanes));
    max2 = hn::Max(max2, hn::LoadU(d, values + i + 2 * lanes));
    max3 = hn::Max(max3, hn::LoadU(d, values + i + 3 * lanes));
  }
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(max0, max1), hn::Max(max2, max3))));
}

// out[i] = index of the largest of row i of [num_rows][num_cols], the lowest of equal ones; 0 for a
// row of NaN. REQUIRES: num_cols is a multiple of 64.
void ArgMaxRows(const float* products, int64_t num_rows, int64_t num_cols, int32_t* out) {
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t row = 0; row < num_rows; ++row) {
    const float* values = products + row * num_cols;
    const auto max = hn::Set(d, MaxOfMany(values, num_cols));
    out[row] = 0;
    for (int64_t j = 0; j < num_cols; j += lanes) {
      const intptr_t lane = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, values + j), max));
      if (lane < 0) continue;
      out[row] = static_cast<int32_t>(j + lane);
      break;
    }
  }
}

template <typename T>
void AddRowsOf(const T* rows, const int32_t* assignment, int64_t num_rows, int64_t size,
               float* sums) {
  for (int64_t i = 0; i < num_rows; ++i) {
    AddScaled(rows + i * size, 1.0f, sums + assignment[i] * size, static_cast<size_t>(size));
  }
}

void AddF16Rows(const hwy::float16_t* rows, const int32_t* assignment, int64_t num_rows,
                int64_t size, float* sums) {
  const FloatTag d;
  const hn::Rebind<hwy::float16_t, FloatTag> d16;
  for (int64_t i = 0; i < num_rows; ++i) {
    float* const sum = sums + assignment[i] * size;
    for (int64_t at = 0; at < size; at += static_cast<int64_t>(hn::Lanes(d))) {
      const auto values = hn::PromoteTo(d, hn::LoadU(d16, rows + i * size + at));
      hn::StoreU(hn::Add(hn::LoadU(d, sum + at), values), d, sum + at);
    }
  }
}

// sums[assignment[i]] += rows[i]. REQUIRES: size is a multiple of 64.
void AddRows(const std::byte* rows, DType dtype, const int32_t* assignment, int64_t num_rows,
             int64_t size, float* sums) {
  switch (dtype) {
    case DType::kF32:
      return AddRowsOf(reinterpret_cast<const float*>(rows), assignment, num_rows, size, sums);
    case DType::kBf16:
      return AddRowsOf(reinterpret_cast<const Bf16*>(rows), assignment, num_rows, size, sums);
    case DType::kF16:
      return AddF16Rows(reinterpret_cast<const hwy::float16_t*>(rows), assignment, num_rows, size,
                        sums);
    case DType::kInt8:
      RI_CHECK(false);
  }
}

// x /= |x|. Returns false and leaves x alone if it is zero.
bool NormalizeVector(float* x, int64_t size) {
  const float square = Dot(x, x, static_cast<size_t>(size));
  if (!(square > 0)) return false;
  Scale(1.0f / std::sqrt(square), x, static_cast<size_t>(size));
  return true;
}

float SquaredNorm(const float* x, int64_t size) { return Dot(x, x, static_cast<size_t>(size)); }

void SubtractVector(const float* from_each, int64_t num_rows, int64_t size, float* rows) {
  for (int64_t i = 0; i < num_rows; ++i) {
    AddScaled(from_each, -1.0f, rows + i * size, static_cast<size_t>(size));
  }
}

}  // namespace
}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer {
namespace cpu {
namespace {

HWY_EXPORT(ArgMaxRows);
HWY_EXPORT(AddRows);
HWY_EXPORT(NormalizeVector);
HWY_EXPORT(SquaredNorm);
HWY_EXPORT(SubtractVector);

// In which type keys and centroids are multiplied.
DType ProductType(DType kv_dtype) {
  const bool has_bf16 = HasAvx512Bf16() || HasAmxBf16();
  return kv_dtype == DType::kBf16 && has_bf16 ? DType::kBf16 : DType::kF32;
}

// Parts of the scratch of one head.
struct Scratch {
  std::byte* keys;    // [n, d] converted or centred keys, in the type that is multiplied
  std::byte* packed;  // [m, d] centroids as the matrix product wants them
  float* centroids;   // [m, d] normalised
  float* sums;        // [m, d]
  float* block;       // [kKeysPerBlock, d]
  float* mean;        // [d] of the keys
};

// Lays the parts out from `base` on.
Scratch PlaceScratch(std::byte* base, const ClusterScratchSizes& sizes) {
  const auto take = [&base](size_t bytes) {
    std::byte* part = base;
    base += bytes;
    return part;
  };
  Scratch scratch{};
  scratch.keys = take(sizes.keys);
  scratch.packed = take(sizes.packed);
  scratch.centroids = reinterpret_cast<float*>(take(sizes.centroids));
  scratch.sums = reinterpret_cast<float*>(take(sizes.sums));
  scratch.block = reinterpret_cast<float*>(take(sizes.block));
  scratch.mean = reinterpret_cast<float*>(take(sizes.mean));
  return scratch;
}

// Clusters the keys of one head.
class HeadClustering {
 public:
  HeadClustering(const ClusterKeysArgs& args, const MatmulKernel& products, uint32_t head)
      : args_(args),
        products_(products),
        head_(head),
        n_(args.num_tokens),
        m_(args.num_clusters),
        d_(args.kv.head_dim),
        dtype_(ProductType(args.kv.dtype)),
        assignment_(args.assignment.device_data() + head * n_),
        sizes_(args.sizes.device_data() + head * m_) {
    const ClusterScratchSizes sizes(args.kv.head_dim, args.num_tokens, args.num_clusters);
    scratch_ = PlaceScratch(args.scratch.device_data() + head * sizes.total(), sizes);
  }

  void Run() {
    PrepareKeys();
    InitializeCentroids();
    for (int32_t round = 0; round < args_.rounds; ++round) {
      Assign();
      UpdateCentroids();
    }
    Assign();
    WriteIndex();
  }

 private:
  const std::byte* RawKeys() const { return args_.kv.Key(head_, args_.first_token); }

  // Points keys_ to what is clustered: the keys as they are, or a converted or centred copy.
  void PrepareKeys() {
    keys_ = RawKeys();
    if (!args_.centre_keys && dtype_ == args_.kv.dtype) return;
    if (args_.centre_keys) FindMean();
    const int64_t bytes = static_cast<int64_t>(DTypeBytes(dtype_));
    const int64_t raw_bytes = static_cast<int64_t>(DTypeBytes(args_.kv.dtype));
    for (int64_t first = 0; first < n_; first += kKeysPerBlock) {
      ConvertToF32(args_.kv.dtype, RawKeys() + first * d_ * raw_bytes, scratch_.block,
                   kKeysPerBlock * d_);
      if (args_.centre_keys) {
        HWY_DYNAMIC_DISPATCH(SubtractVector)(scratch_.mean, kKeysPerBlock, d_, scratch_.block);
      }
      ConvertFromF32(scratch_.block, dtype_, scratch_.keys + first * d_ * bytes,
                     kKeysPerBlock * d_);
    }
    keys_ = scratch_.keys;
  }

  void FindMean() {
    std::fill_n(scratch_.mean, d_, 0.0f);
    std::fill_n(assignment_, n_, 0);
    HWY_DYNAMIC_DISPATCH(AddRows)(RawKeys(), args_.kv.dtype, assignment_, n_, d_, scratch_.mean);
    for (int64_t i = 0; i < d_; ++i) scratch_.mean[i] /= static_cast<float>(n_);
  }

  // Normalised keys at a uniform stride.
  void InitializeCentroids() {
    const int64_t bytes_between = n_ / m_ * d_ * static_cast<int64_t>(DTypeBytes(dtype_));
    for (int64_t j = 0; j < m_; ++j) {
      float* centroid = scratch_.centroids + j * d_;
      ConvertToF32(dtype_, keys_ + j * bytes_between, centroid, d_);
      HWY_DYNAMIC_DISPATCH(NormalizeVector)(centroid, d_);
    }
  }

  void Assign() {
    const auto packed = products_.Pack(
        DType::kF32, reinterpret_cast<const std::byte*>(scratch_.centroids), d_, scratch_.packed);
    RI_CHECK(packed.ok());
    const int64_t bytes = static_cast<int64_t>(DTypeBytes(dtype_));
    for (int64_t first = 0; first < n_; first += kKeysPerBlock) {
      const float* products = products_.Run(keys_ + first * d_ * bytes, *packed);
      HWY_DYNAMIC_DISPATCH(ArgMaxRows)(products, kKeysPerBlock, m_, assignment_ + first);
    }
  }

  // Centroid = normalised sum of the members; the old one where there are none.
  void UpdateCentroids() {
    std::fill_n(scratch_.sums, m_ * d_, 0.0f);
    HWY_DYNAMIC_DISPATCH(AddRows)(keys_, dtype_, assignment_, n_, d_, scratch_.sums);
    for (int64_t j = 0; j < m_; ++j) {
      float* sum = scratch_.sums + j * d_;
      if (!HWY_DYNAMIC_DISPATCH(NormalizeVector)(sum, d_)) continue;
      std::copy_n(sum, d_, scratch_.centroids + j * d_);
    }
  }

  // Largest distance of a member to the cluster's mean.
  void WriteRadii(const float* centroids) {
    float* radii = args_.radii.device_data() + head_ * m_;
    std::fill_n(radii, m_, 0.0f);
    const int64_t raw_bytes = static_cast<int64_t>(DTypeBytes(args_.kv.dtype));
    for (int64_t first = 0; first < n_; first += kKeysPerBlock) {
      ConvertToF32(args_.kv.dtype, RawKeys() + first * d_ * raw_bytes, scratch_.block,
                   kKeysPerBlock * d_);
      for (int64_t i = 0; i < kKeysPerBlock; ++i) {
        const int32_t cluster = assignment_[first + i];
        float* key = scratch_.block + i * d_;
        HWY_DYNAMIC_DISPATCH(SubtractVector)(centroids + cluster * d_, 1, d_, key);
        radii[cluster] = std::max(radii[cluster], HWY_DYNAMIC_DISPATCH(SquaredNorm)(key, d_));
      }
    }
    for (int64_t j = 0; j < m_; ++j) radii[j] = std::sqrt(radii[j]);
  }

  // Sizes, means of the members, value sums and radii, of the KV as it is.
  void WriteIndex() {
    std::fill_n(sizes_, m_, 0);
    for (int64_t i = 0; i < n_; ++i) ++sizes_[assignment_[i]];
    float* centroids = args_.centroids.device_data() + head_ * m_ * d_;
    float* value_sums = args_.value_sums.device_data() + head_ * m_ * d_;
    std::fill_n(centroids, m_ * d_, 0.0f);
    std::fill_n(value_sums, m_ * d_, 0.0f);
    HWY_DYNAMIC_DISPATCH(AddRows)
    (RawKeys(), args_.kv.dtype, assignment_, n_, d_, centroids);
    HWY_DYNAMIC_DISPATCH(AddRows)
    (args_.kv.Value(head_, args_.first_token), args_.kv.dtype, assignment_, n_, d_, value_sums);
    for (int64_t j = 0; j < m_; ++j) {
      if (sizes_[j] == 0) continue;
      const float size = static_cast<float>(sizes_[j]);
      for (int64_t i = 0; i < d_; ++i) centroids[j * d_ + i] /= size;
    }
    WriteRadii(centroids);
  }

  const ClusterKeysArgs& args_;
  const MatmulKernel& products_;
  const uint32_t head_;
  const int64_t n_;
  const int64_t m_;
  const int64_t d_;
  const DType dtype_;  // in which keys and centroids are multiplied
  int32_t* const assignment_;
  int32_t* const sizes_;
  Scratch scratch_{};
  const std::byte* keys_ = nullptr;
};

}  // namespace

absl::Status ClusterKeys(CpuStream& stream, const ClusterKeysArgs& args) {
  RETURN_IF_ERROR(
      CheckClusterKeys(args, ClusterKeysScratchBytes(args.kv.num_kv_heads, args.kv.head_dim,
                                                     args.num_tokens, args.num_clusters)));
  RETURN_IF_ERROR(CheckPromptType(kKvElementTypes, "cluster_keys", args.kv.dtype));
  const int64_t m = args.num_clusters, d = args.kv.head_dim;
  ASSIGN_OR_RETURN(const std::shared_ptr<const MatmulKernel> products,
                   MatmulKernel::Get(kKeysPerBlock, m, d, ProductType(args.kv.dtype)));
  RI_CHECK(products->packed_bytes() <= static_cast<size_t>(m * d) * sizeof(float));
  return stream.Launch([args, products](ThreadPool& pool) {
    pool.ParallelFor(args.kv.num_kv_heads, [&](int64_t head) {
      HeadClustering(args, *products, static_cast<uint32_t>(head)).Run();
    });
  });
}

}  // namespace cpu
}  // namespace retroinfer
#endif  // HWY_ONCE
