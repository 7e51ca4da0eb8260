// Invariants:
// * An item is a slice of 64 dimensions of one sequence and KV head. Every slice computes the same
//   weights, in the same order; the first one writes max and sum.
// * Items write disjoint places, so the result does not depend on how they are shared out.
#include "gpu_worker/ops/index/cpu/estimate.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/cpu_kv_format.h"
#include "gpu_worker/ops/index/estimate_check.h"
#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/index/cpu/estimate.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
//
#include "gpu_worker/ops/cpu/vector_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

constexpr int kMaxHeads = 4;  // query heads worked on at once
constexpr int32_t kBlock = 64;
constexpr int32_t kSliceDims = 64;

// What one call works on: up to four query heads of one KV head and 64 dimensions.
struct Slice {
  const int32_t* candidates;
  int32_t num_candidates;
  const int32_t* estimated;
  int32_t num_estimated;  // candidates included
  const float* scores;    // of the first head
  int64_t score_stride;
  const MetaBlockId* block_ids;
  MetaPoolView pool;
  uint32_t layer;
  uint32_t head;
  int64_t first_dim;
  float* max;  // [heads]; max and sum are null in all slices but the first
  float* sum;
  float* acc;  // of the first head, at first_dim

  int32_t Cluster(int32_t i) const {
    return i < num_candidates ? candidates[i] : estimated[i - num_candidates];
  }
};

template <int kHeads>
void FindMaxima(const Slice& slice, float* max) {
  for (int g = 0; g < kHeads; ++g) {
    const float* scores = slice.scores + g * slice.score_stride;
    float largest = -std::numeric_limits<float>::infinity();
    for (int32_t i = 0; i < slice.num_estimated; ++i) {
      largest = std::max(largest, scores[slice.Cluster(i)]);
    }
    max[g] = largest;
  }
}

// weights[g][i] = exp(score - max) of clusters [first, first + count), zero for a score of -inf;
// zero up to kBlock.
template <int kHeads>
void FindWeights(const Slice& slice, int32_t first, int32_t count, const float* max,
                 float (*weights)[kBlock]) {
  const FloatTag d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  for (int g = 0; g < kHeads; ++g) {
    const float* scores = slice.scores + g * slice.score_stride;
    for (int32_t i = 0; i < count; ++i) {
      weights[g][i] = scores[slice.Cluster(first + i)] - max[g];  // NaN where both are -inf
    }
    std::fill(weights[g] + count, weights[g] + kBlock, -1000.0f);
    for (int32_t i = 0; i < kBlock; i += lanes) {
      hn::StoreU(ExpOf(d, hn::LoadU(d, weights[g] + i)), d, weights[g] + i);
    }
  }
}

// Where the value sum of the i-th estimated cluster lies, from the slice's first dimension on.
template <typename Element>
const Element* ValueSumAt(const Slice& slice, int32_t i) {
  const int32_t cluster = slice.Cluster(i);
  const MetaBlockId block = slice.block_ids[cluster / int32_t{kClustersPerMetaBlock}];
  const auto place = static_cast<int64_t>(cluster) % int64_t{kClustersPerMetaBlock};
  return reinterpret_cast<const Element*>(slice.pool.ValueSums(block, slice.layer, slice.head)) +
         place * slice.pool.geometry.head_dim + slice.first_dim;
}

// The scale of that value sum, in f16 behind the block's vectors.
float ValueScaleOf(const Slice& slice, int32_t i) {
  const int32_t cluster = slice.Cluster(i);
  const MetaBlockId block = slice.block_ids[cluster / int32_t{kClustersPerMetaBlock}];
  const size_t scales =
      kInt8Vectors.ScalesOffset(kClustersPerMetaBlock, slice.pool.geometry.head_dim);
  const auto* const from = reinterpret_cast<const uint16_t*>(
      slice.pool.ValueSums(block, slice.layer, slice.head) + scales);
  return hn::GetLane(
      LoadScales(hn::CappedTag<float, 1>(), from + cluster % int32_t{kClustersPerMetaBlock}));
}

float SizeOf(const Slice& slice, int32_t i) {
  const int32_t cluster = slice.Cluster(i);
  const MetaBlockId block = slice.block_ids[cluster / int32_t{kClustersPerMetaBlock}];
  return static_cast<float>(
      slice.pool.Entries(block, slice.layer, slice.head)[cluster % int32_t{kClustersPerMetaBlock}]
          .num_tokens);
}

// Asks for the value sums of a block of clusters, which lie far apart, before they are needed.
template <typename Element>
void PrefetchBlock(const Slice& slice, int32_t first) {
  const int32_t end = std::min(first + kBlock, slice.num_estimated);
  for (int32_t i = first; i < end; ++i) {
    const auto* line = reinterpret_cast<const std::byte*>(ValueSumAt<Element>(slice, i));
    for (size_t at = 0; at < kSliceDims * sizeof(Element); at += 64) hwy::Prefetch(line + at);
  }
}

template <int kHeads, typename Element>
void EstimateSlice(const Slice& slice) {
  const hn::CappedTag<float, kSliceDims / 4> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int kMaxVectors = kSliceDims / 4;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int64_t head_dim = slice.pool.geometry.head_dim;
  float max[kHeads];
  float sum[kHeads] = {};
  PrefetchBlock<Element>(slice, 0);
  FindMaxima<kHeads>(slice, max);
  alignas(64) float weights[kHeads][kBlock];
  alignas(64) float acc[kHeads][kSliceDims] = {};
  for (int32_t first = 0; first < slice.num_estimated; first += kBlock) {
    const int32_t count = std::min(kBlock, slice.num_estimated - first);
    PrefetchBlock<Element>(slice, first + kBlock);
    FindWeights<kHeads>(slice, first, count, max, weights);
    const Element* rows[kBlock];
    for (int32_t i = 0; i < count; ++i) {
      rows[i] = ValueSumAt<Element>(slice, first + i);
      const float size = SizeOf(slice, first + i);
      for (int g = 0; g < kHeads; ++g) sum[g] += size * weights[g][i];
      if constexpr (std::is_same_v<Element, int8_t>) {
        const float scale = ValueScaleOf(slice, first + i);
        for (int g = 0; g < kHeads; ++g) weights[g][i] *= scale;
      }
    }
    static_assert(kMaxVectors % 4 == 0);
    for (int dim = 0; dim < kSliceDims; dim += 4 * lanes) {
      V sums[kHeads][4];
      for (int g = 0; g < kHeads; ++g) {
        for (int v = 0; v < 4; ++v) sums[g][v] = hn::Load(d, acc[g] + dim + v * lanes);
      }
      for (int32_t i = 0; i < count; ++i) {
        for (int v = 0; v < 4; ++v) {
          const V value = LoadF32(d, rows[i] + dim + v * lanes);
          for (int g = 0; g < kHeads; ++g) {
            sums[g][v] = hn::MulAdd(hn::Set(d, weights[g][i]), value, sums[g][v]);
          }
        }
      }
      for (int g = 0; g < kHeads; ++g) {
        for (int v = 0; v < 4; ++v) hn::Store(sums[g][v], d, acc[g] + dim + v * lanes);
      }
    }
  }
  for (int g = 0; g < kHeads; ++g) {
    std::copy_n(acc[g], kSliceDims, slice.acc + g * head_dim);
    if (slice.max == nullptr) continue;
    slice.max[g] = max[g];
    slice.sum[g] = sum[g];
  }
}

template <typename Element>
void EstimateHeads(Slice slice, int32_t group) {
  const int64_t head_dim = slice.pool.geometry.head_dim;
  const auto advance = [&](int heads) {
    slice.scores += heads * slice.score_stride;
    slice.acc += heads * head_dim;
    if (slice.max != nullptr) {
      slice.max += heads;
      slice.sum += heads;
    }
    group -= heads;
  };
  for (; group >= kMaxHeads; advance(kMaxHeads)) EstimateSlice<kMaxHeads, Element>(slice);
  for (; group >= 2; advance(2)) EstimateSlice<2, Element>(slice);
  for (; group >= 1; advance(1)) EstimateSlice<1, Element>(slice);
}

}  // namespace

void EstimateItem(const EstimateArgs& args, int32_t sequence, uint32_t head, int64_t first_dim) {
  const KvGeometry& geometry = args.pool.geometry;
  const int64_t row = int64_t{sequence} * geometry.num_kv_heads + head;
  const int32_t group = args.num_query_heads / static_cast<int32_t>(geometry.num_kv_heads);
  const int64_t query_row = row * group;
  const bool is_first = first_dim == 0;
  const int32_t num_candidates =
      args.max_candidates == 0 ? 0 : args.num_candidates.device_data()[row];
  const Slice slice{
      .candidates = args.candidates.device_data() + row * args.max_candidates,
      .num_candidates = num_candidates,
      .estimated = args.estimated.device_data() + row * args.max_estimated,
      .num_estimated = num_candidates + args.num_estimated.device_data()[row],
      .scores = args.scores.device_data() + query_row * args.max_clusters,
      .score_stride = args.max_clusters,
      .block_ids = args.indexes.device_data()[sequence].block_ids,
      .pool = args.pool,
      .layer = args.layer,
      .head = head,
      .first_dim = first_dim,
      .max = is_first ? args.out.max.device_data() + query_row : nullptr,
      .sum = is_first ? args.out.sum.device_data() + query_row : nullptr,
      .acc = args.out.acc.device_data() + query_row * geometry.head_dim + first_dim,
  };
  if (geometry.format.value_sum.element == DType::kF32) {
    EstimateHeads<float>(slice, group);
  } else if (geometry.format.value_sum.element == DType::kInt8) {
    EstimateHeads<int8_t>(slice, group);
  } else {
    EstimateHeads<Bf16>(slice, group);
  }
}

}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {
namespace {

HWY_EXPORT(EstimateItem);

}  // namespace

absl::Status Estimate(CpuStream& stream, const EstimateArgs& args) {
  RETURN_IF_ERROR(CheckEstimate(args));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  return stream.Launch([args](ThreadPool& pool) {
    constexpr int64_t kDims = 64;  // of one item
    const int64_t num_heads = args.pool.geometry.num_kv_heads;
    const int64_t num_slices = args.pool.geometry.head_dim / kDims;
    const auto estimate = HWY_DYNAMIC_DISPATCH(EstimateItem);
    pool.ParallelFor(args.batch * num_heads * num_slices, [&](int64_t item) {
      estimate(args, static_cast<int32_t>(item / num_slices / num_heads),
               static_cast<uint32_t>(item / num_slices % num_heads), item % num_slices * kDims);
    });
  });
}

}  // namespace retroinfer::cpu
#endif  // HWY_ONCE
