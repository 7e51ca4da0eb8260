// Invariants:
// * An item is one sequence and KV head, for all heads of the group. Clusters are added up in
// order,
//   64 at a time, so the result depends neither on the batch nor on the number of threads.
#include "gpu_worker/ops/index/cpu/unseen_mass.h"

#include <algorithm>
#include <limits>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/index/unseen_mass_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/index/cpu/unseen_mass.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
//
#include "gpu_worker/ops/cpu/vector_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

constexpr int32_t kBlock = kClustersPerMetaBlock;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Sum of size * exp(score - max) over 64 clusters.
float WeighedSizes(const float* scores, const float* sizes, float max) {
  const FloatTag d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto shift = hn::Set(d, max);
  auto sum = hn::Zero(d);
  for (int32_t i = 0; i < kBlock; i += lanes) {
    const auto weight = ExpOf(d, hn::Sub(hn::LoadU(d, scores + i), shift));
    sum = hn::MulAdd(weight, hn::LoadU(d, sizes + i), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

}  // namespace

void UnseenMassRow(const UnseenMassArgs& args, int32_t sequence, uint32_t head) {
  const auto kv_heads = static_cast<int32_t>(args.pool.geometry.num_kv_heads);
  const int64_t row = int64_t{sequence} * kv_heads + head;
  const int32_t group = args.num_query_heads / kv_heads;
  const MetaIndexView& index = args.indexes.device_data()[sequence];
  const auto entries_of = [&](int32_t block) {
    return args.pool.Entries(index.block_ids[block], args.layer, head);
  };
  const auto scores_of = [&](int32_t g) {
    return args.scores.device_data() + (row * group + g) * args.max_clusters;
  };
  const int32_t num_blocks =
      std::min(index.num_blocks, static_cast<int32_t>(args.max_clusters / kBlock));
  float max[kMaxDecodeGroup];
  float sum[kMaxDecodeGroup] = {};
  for (int32_t g = 0; g < group; ++g) {
    max[g] = MaxOf(scores_of(g), static_cast<size_t>(num_blocks) * kBlock);
  }
  float sizes[kBlock];
  for (int32_t block = 0; block < num_blocks; ++block) {
    const MetaEntry* const entries = entries_of(block);
    for (int32_t i = 0; i < kBlock; ++i) sizes[i] = static_cast<float>(entries[i].num_tokens);
    for (int32_t g = 0; g < group; ++g) {
      if (max[g] == kMinusInfinity) continue;
      sum[g] += WeighedSizes(scores_of(g) + int64_t{block} * kBlock, sizes, max[g]);
    }
  }
  const int32_t* const retrieved = args.retrieved.device_data() + row * args.max_retrieved;
  const int32_t num_retrieved = args.max_retrieved == 0 ? 0 : args.num_retrieved.device_data()[row];
  float scores[kBlock];
  for (int32_t first = 0; first < num_retrieved; first += kBlock) {
    const int32_t count = std::min(kBlock, num_retrieved - first);
    std::fill(sizes + count, sizes + kBlock, 0.0f);
    std::fill(scores + count, scores + kBlock, kMinusInfinity);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t cluster = retrieved[first + i];
      sizes[i] = static_cast<float>(entries_of(cluster / kBlock)[cluster % kBlock].num_tokens);
    }
    for (int32_t g = 0; g < group; ++g) {
      if (max[g] == kMinusInfinity) continue;
      for (int32_t i = 0; i < count; ++i) scores[i] = scores_of(g)[retrieved[first + i]];
      sum[g] -= WeighedSizes(scores, sizes, max[g]);
    }
  }
  for (int32_t g = 0; g < group; ++g) {
    args.out.max.device_data()[row * group + g] = max[g];
    args.out.sum.device_data()[row * group + g] = std::max(sum[g], 0.0f);
  }
}

}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {
namespace {

HWY_EXPORT(UnseenMassRow);

}  // namespace

absl::Status UnseenMass(CpuStream& stream, const UnseenMassArgs& args) {
  RETURN_IF_ERROR(CheckUnseenMass(args));
  return stream.Launch([args](ThreadPool& pool) {
    const int64_t num_heads = args.pool.geometry.num_kv_heads;
    const auto find = HWY_DYNAMIC_DISPATCH(UnseenMassRow);
    pool.ParallelFor(args.batch * num_heads, [&](int64_t row) {
      find(args, static_cast<int32_t>(row / num_heads), static_cast<uint32_t>(row % num_heads));
    });
  });
}

}  // namespace retroinfer::cpu
#endif  // HWY_ONCE
