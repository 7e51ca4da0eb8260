// Invariants:
// * An item is one meta block of one sequence and KV head: 64 clusters, for all heads of the group.
// * Items write disjoint places of `scores`, so the result does not depend on how they are shared
//   out among threads, nor on the rest of the batch.
#include "gpu_worker/ops/index/cpu/centroid_score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/cpu_kv_format.h"
#include "gpu_worker/ops/index/centroid_score_check.h"
#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/index/cpu/centroid_score.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
//
#include "gpu_worker/ops/cpu/store_sums-inl.h"
#include "gpu_worker/ops/cpu/vector_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

// Clusters between the one that is scored and the one that is fetched: 4 KiB of bf16 at head_dim
// 128, where the processor's own prefetching starts anew.
constexpr uint32_t kClustersAhead = 16;

// scores[g][i] = scale * queries[g] . centroids[i] for 64 clusters and kHeads query heads. `next`:
// the centroids of the block to come.
template <int kHeads, typename Element>
void ScoreHeads(const float* queries, const Element* centroids, const Element* next,
                int64_t head_dim, float scale, int64_t score_stride, float* scores) {
  const FloatTag d;
  using V = FloatVec;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (uint32_t first = 0; first < kClustersPerMetaBlock; first += 4) {
    const Element* rows = centroids + first * head_dim;
    const uint32_t ahead = first + kClustersAhead;
    const Element* to_come = ahead < kClustersPerMetaBlock
                                 ? centroids + ahead * head_dim
                                 : next + (ahead - kClustersPerMetaBlock) * head_dim;
    for (int64_t i = 0; i < 4 * head_dim; i += 64 / static_cast<int64_t>(sizeof(Element))) {
      hwy::Prefetch(to_come + i);
    }
    V sums[kHeads][4];
    for (auto& of_head : sums) {
      for (V& sum : of_head) sum = hn::Zero(d);
    }
    for (int64_t i = 0; i < head_dim; i += lanes) {
      const V c0 = LoadF32(d, rows + i);
      const V c1 = LoadF32(d, rows + head_dim + i);
      const V c2 = LoadF32(d, rows + 2 * head_dim + i);
      const V c3 = LoadF32(d, rows + 3 * head_dim + i);
      for (int g = 0; g < kHeads; ++g) {
        const V q = hn::LoadU(d, queries + g * head_dim + i);
        sums[g][0] = hn::MulAdd(q, c0, sums[g][0]);
        sums[g][1] = hn::MulAdd(q, c1, sums[g][1]);
        sums[g][2] = hn::MulAdd(q, c2, sums[g][2]);
        sums[g][3] = hn::MulAdd(q, c3, sums[g][3]);
      }
    }
    for (int g = 0; g < kHeads; ++g) {
      StoreSums(d, sums[g][0], sums[g][1], sums[g][2], sums[g][3], scale,
                scores + g * score_stride + first);
    }
  }
}

// Multiplies the scores of 64 centroids in int8 by the centroids' scales, which lie behind them.
void ScaleScores(const int8_t* centroids, int64_t head_dim, float* scores) {
  const FloatTag d;
  const auto* const scales = reinterpret_cast<const uint16_t*>(
      centroids +
      kInt8Vectors.ScalesOffset(kClustersPerMetaBlock, static_cast<uint32_t>(head_dim)));
  for (size_t i = 0; i < kClustersPerMetaBlock; i += hn::Lanes(d)) {
    hn::StoreU(hn::Mul(LoadScales(d, scales + i), hn::LoadU(d, scores + i)), d, scores + i);
  }
}

// ranks[i] = scores[i] + reach * radius of cluster i; -inf for an empty one.
void RankBlock(const float* scores, const MetaEntry* entries, float reach, float* ranks) {
  for (uint32_t i = 0; i < kClustersPerMetaBlock; ++i) {
    ranks[i] = entries[i].num_tokens == 0 ? -std::numeric_limits<float>::infinity()
                                          : scores[i] + reach * entries[i].radius;
  }
}

template <typename Element>
void ScoreBlock(const CentroidScoreArgs& args, int32_t sequence, int32_t block, uint32_t head) {
  const KvGeometry& geometry = args.pool.geometry;
  const int64_t head_dim = geometry.head_dim;
  const int64_t num_query_heads = args.queries.cols / head_dim;
  const int64_t group = num_query_heads / geometry.num_kv_heads;
  const MetaIndexView& index = args.indexes.device_data()[sequence];
  const MetaBlockId id = index.block_ids[block];
  const MetaBlockId next_id = block + 1 < index.num_blocks ? index.block_ids[block + 1] : id;
  const auto* centroids =
      reinterpret_cast<const Element*>(args.pool.Centroids(id, args.layer, head));
  const auto* next =
      reinterpret_cast<const Element*>(args.pool.Centroids(next_id, args.layer, head));
  const float* queries = reinterpret_cast<const float*>(args.queries.data) +
                         sequence * args.queries.row_stride + head * group * head_dim;
  float* scores = args.scores.device_data() +
                  (sequence * num_query_heads + head * group) * args.max_clusters +
                  int64_t{block} * kClustersPerMetaBlock;
  const auto run = [&](auto heads, int64_t first) {
    ScoreHeads<heads()>(queries + first * head_dim, centroids, next, head_dim, args.scale,
                        args.max_clusters, scores + first * args.max_clusters);
  };
  int64_t g = 0;
  for (; g + 4 <= group; g += 4) run(std::integral_constant<int, 4>(), g);
  if (g + 2 <= group) {
    run(std::integral_constant<int, 2>(), g);
    g += 2;
  }
  if (g < group) run(std::integral_constant<int, 1>(), g);
  if constexpr (std::is_same_v<Element, int8_t>) {
    for (int64_t h = 0; h < group; ++h) {
      ScaleScores(centroids, head_dim, scores + h * args.max_clusters);
    }
  }

  const MetaEntry* entries = args.pool.Entries(id, args.layer, head);
  if (args.radius_weight != 0) {
    float* ranks = args.ranks.device_data() + (scores - args.scores.device_data());
    for (int64_t h = 0; h < group; ++h) {
      const float* query = queries + h * head_dim;
      const float reach = args.radius_weight * args.scale *
                          std::sqrt(Dot(query, query, static_cast<size_t>(head_dim)));
      RankBlock(scores + h * args.max_clusters, entries, reach, ranks + h * args.max_clusters);
    }
  }
  for (uint32_t i = 0; i < kClustersPerMetaBlock; ++i) {
    if (entries[i].num_tokens != 0) continue;
    for (int64_t h = 0; h < group; ++h) {
      scores[h * args.max_clusters + i] = -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace

void CentroidScoreBlock(const CentroidScoreArgs& args, int32_t sequence, int32_t block,
                        uint32_t head) {
  const DType element = args.pool.geometry.format.centroid.element;
  if (element == DType::kF32) {
    ScoreBlock<float>(args, sequence, block, head);
  } else if (element == DType::kInt8) {
    ScoreBlock<int8_t>(args, sequence, block, head);
  } else {
    ScoreBlock<Bf16>(args, sequence, block, head);
  }
}

}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {
namespace {

HWY_EXPORT(CentroidScoreBlock);

// Meta blocks that one iteration scores: 128 KiB of bf16 centroids at head_dim 128.
constexpr int64_t kBlocksPerItem = 8;

}  // namespace

absl::Status CentroidScore(CpuStream& stream, const CentroidScoreArgs& args) {
  RETURN_IF_ERROR(CheckCentroidScore(args, DType::kF32));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  return stream.Launch([args](ThreadPool& pool) {
    const int64_t num_heads = args.pool.geometry.num_kv_heads;
    const int64_t max_blocks = args.max_clusters / kClustersPerMetaBlock;
    const int64_t num_parts = (max_blocks + kBlocksPerItem - 1) / kBlocksPerItem;
    const auto score = HWY_DYNAMIC_DISPATCH(CentroidScoreBlock);
    pool.ParallelFor(args.queries.rows * num_heads * num_parts, [&](int64_t item) {
      const int64_t part = item % num_parts;
      const int64_t head = item / num_parts % num_heads;
      const int64_t sequence = item / num_parts / num_heads;
      const int64_t num_blocks = args.indexes.device_data()[sequence].num_blocks;
      const int64_t end = std::min(num_blocks, (part + 1) * kBlocksPerItem);
      for (int64_t block = part * kBlocksPerItem; block < end; ++block) {
        score(args, static_cast<int32_t>(sequence), static_cast<int32_t>(block),
              static_cast<uint32_t>(head));
      }
    });
  });
}

}  // namespace retroinfer::cpu
#endif  // HWY_ONCE
