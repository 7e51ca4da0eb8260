// Invariants:
// * Ranks are sums or maxima of softmax weights, so they are non-negative floats, whose bit
//   patterns order as unsigned integers. An empty cluster has key 0 and a live one its rank's bits
//   + 1.
// * The selection is by threshold: every key above it, and of those equal to it the first ones in
//   cluster order, up to the budget. So the result is a function of the scores alone.
#include "gpu_worker/ops/index/cpu/cluster_select.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>

#include "common/kv/kv_geometry.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/index/cluster_select_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/ops/index/cpu/cluster_select.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
//
#include "gpu_worker/ops/cpu/vector_kernels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace retroinfer::cpu::HWY_NAMESPACE {
namespace {

// All loops below run over multiples of 64 places, so no vector crosses the end of a row.
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// out[i] = exp(in[i] - max), 0 for an empty cluster; returns the sum.
float ExpInto(const float* in, float max, int32_t count, float* out) {
  const FloatTag d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto shift = hn::Set(d, max);
  auto sum = hn::Zero(d);
  for (int32_t i = 0; i < count; i += lanes) {
    const auto e = ExpOf(d, hn::Sub(hn::LoadU(d, in + i), shift));
    hn::StoreU(e, d, out + i);
    sum = hn::Add(sum, e);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

void Combine(const float* weights, float factor, GroupRanking ranking, int32_t count, float* rank) {
  const FloatTag d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto f = hn::Set(d, factor);
  for (int32_t i = 0; i < count; i += lanes) {
    const auto w = hn::Mul(hn::LoadU(d, weights + i), f);
    const auto r = hn::LoadU(d, rank + i);
    hn::StoreU(ranking == GroupRanking::kSumOfSoftmax ? hn::Add(r, w) : hn::Max(r, w), d, rank + i);
  }
}

// Turns ranks into keys in place; a place whose score is -inf is empty. Returns the live places.
int32_t MakeKeys(const float* scores, int32_t count, const float* rank, uint32_t* keys) {
  const FloatTag d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto one = hn::Set(du, 1);
  const auto empty = hn::Set(d, kMinusInfinity);
  size_t live = 0;
  for (int32_t i = 0; i < count; i += lanes) {
    const auto is_live = hn::Gt(hn::LoadU(d, scores + i), empty);
    const auto bits = hn::Add(hn::BitCast(du, hn::LoadU(d, rank + i)), one);
    hn::StoreU(hn::IfThenElseZero(hn::RebindMask(du, is_live), bits), du, keys + i);
    live += hn::CountTrue(d, is_live);
  }
  return static_cast<int32_t>(live);
}

// Ranks and keys of one row: `keys` receives [count] keys, `weights` is scratch of the same size.
int32_t RankRow(const float* scores, int64_t score_stride, int32_t group, int32_t count,
                GroupRanking ranking, float* weights, uint32_t* keys) {
  float* rank = reinterpret_cast<float*>(keys);
  std::memset(rank, 0, static_cast<size_t>(count) * sizeof(float));
  for (int32_t g = 0; g < group; ++g) {
    const float* row = scores + g * score_stride;
    const float max = MaxOf(row, static_cast<size_t>(count));
    if (max == kMinusInfinity) continue;
    const float sum = ExpInto(row, max, count, weights);
    Combine(weights, 1.0f / sum, ranking, count, rank);
  }
  return MakeKeys(scores, count, rank, keys);
}

// The key of the n-th largest element (n >= 1) and how many keys are above it.
struct Threshold {
  uint32_t key;
  int32_t num_above;
};

// Finds, in a histogram from the highest bin down, the bin that holds the n-th largest element.
int32_t FindBin(const uint32_t* histogram, int32_t num_bins, int32_t n, int32_t* num_above) {
  int32_t above = 0;
  for (int32_t bin = num_bins - 1; bin >= 0; --bin) {
    const int32_t next = above + static_cast<int32_t>(histogram[bin]);
    if (next >= n) {
      *num_above = above;
      return bin;
    }
    above = next;
  }
  *num_above = above;
  return 0;
}

constexpr int kTopBits = 11;
constexpr int kTopShift = 32 - kTopBits;

// Radix selection: `top` is the histogram of the keys' top 11 bits. Keys of the bin are copied into
// `candidates`, which has room for all, and narrowed by nth_element.
Threshold NthLargest(const uint32_t* keys, int32_t count, const uint32_t* top, int32_t n,
                     uint32_t* candidates) {
  const hn::ScalableTag<uint32_t> du;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(du));
  int32_t above = 0;
  const int32_t bin = FindBin(top, 1 << kTopBits, n, &above);
  const auto wanted = hn::Set(du, static_cast<uint32_t>(bin));
  size_t num_candidates = 0;
  for (int32_t i = 0; i < count; i += lanes) {
    const auto key = hn::LoadU(du, keys + i);
    const auto in_bin = hn::Eq(hn::ShiftRight<kTopShift>(key), wanted);
    num_candidates += hn::CompressBlendedStore(key, in_bin, du, candidates + num_candidates);
  }
  uint32_t* end = candidates + num_candidates;
  uint32_t* nth = candidates + (n - above - 1);
  std::nth_element(candidates, nth, end, std::greater<uint32_t>());
  const uint32_t key = *nth;
  // nth_element leaves every larger key before `nth`.
  return {key, above + static_cast<int32_t>(std::count_if(
                           candidates, nth, [key](uint32_t other) { return other > key; }))};
}

// One side of the split: appends in cluster order what passes its threshold.
struct Zone {
  int32_t* out;
  int32_t size;
};

// Writes the clusters above `first` (and its share of the equal ones) to `retrieved`, those of the
// remaining above `second` to `estimated`.
void Split(const uint32_t* keys, int32_t count, Threshold first, int32_t r, Threshold second,
           int32_t total, Zone& retrieved, Zone& estimated) {
  const hn::ScalableTag<uint32_t> du;
  const hn::RebindToSigned<decltype(du)> di;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(du));
  int32_t first_ties = r - first.num_above;        // equal to first.key that are retrieved
  int32_t second_ties = total - second.num_above;  // equal to second.key that are chosen at all
  const auto t1 = hn::Set(du, first.key);
  const auto t2 = hn::Set(du, second.key);
  for (int32_t i = 0; i < count; i += lanes) {
    const auto key = hn::LoadU(du, keys + i);
    const auto equal1 = hn::Eq(key, t1);
    const auto equal2 = hn::Eq(key, t2);
    if (hn::AllFalse(du, hn::Or(equal1, equal2))) {
      const auto above1 = hn::Gt(key, t1);
      const auto above2 = hn::AndNot(above1, hn::Gt(key, t2));
      const auto number = hn::Iota(di, i);
      retrieved.size += static_cast<int32_t>(hn::CompressBlendedStore(
          number, hn::RebindMask(di, above1), di, retrieved.out + retrieved.size));
      estimated.size += static_cast<int32_t>(hn::CompressBlendedStore(
          number, hn::RebindMask(di, above2), di, estimated.out + estimated.size));
      continue;
    }
    for (int32_t j = i; j < i + lanes; ++j) {
      if (keys[j] < second.key) continue;
      if (keys[j] == second.key && second_ties-- <= 0) continue;
      const bool is_retrieved = keys[j] > first.key || (keys[j] == first.key && first_ties-- > 0);
      Zone& zone = is_retrieved ? retrieved : estimated;
      zone.out[zone.size++] = j;
    }
  }
}

}  // namespace

void ClusterSelectRow(const ClusterSelectArgs& args, int32_t sequence, int32_t head) {
  const SelectionBudget& budget = args.budgets.device_data()[sequence];
  const int64_t row = int64_t{sequence} * args.num_kv_heads + head;
  const int32_t group = args.num_query_heads / args.num_kv_heads;
  const int32_t count = budget.num_clusters;
  Zone retrieved{args.retrieved.device_data() + row * args.max_retrieved, 0};
  Zone estimated{args.estimated.device_data() + row * args.max_estimated, 0};
  int32_t& num_retrieved = args.num_retrieved.device_data()[row];
  int32_t& num_estimated = args.num_estimated.device_data()[row];
  num_retrieved = 0;
  num_estimated = 0;
  if (count == 0) return;

  const float* scores =
      args.scores.device_data() +
      (int64_t{sequence} * args.num_query_heads + head * group) * args.max_clusters;
  auto* keys =
      reinterpret_cast<uint32_t*>(args.scratch.device_data()) + row * 2 * args.max_clusters;
  uint32_t* candidates = keys + args.max_clusters;
  const int32_t live = RankRow(scores, args.max_clusters, group, count, budget.ranking,
                               reinterpret_cast<float*>(candidates), keys);
  const int32_t r = std::min(budget.num_retrieved, live);
  const int32_t total = std::min(budget.num_retrieved + budget.num_estimated, live);
  if (total == 0) return;

  std::array<uint32_t, 1 << kTopBits> top{};
  for (int32_t i = 0; i < count; ++i) ++top[keys[i] >> kTopShift];
  const Threshold second = NthLargest(keys, count, top.data(), total, candidates);
  // Nothing retrieved: a threshold that no key reaches.
  const Threshold first = r == 0 ? Threshold{std::numeric_limits<uint32_t>::max(), 0}
                                 : NthLargest(keys, count, top.data(), r, candidates);
  Split(keys, count, first, r, second, total, retrieved, estimated);
  num_retrieved = retrieved.size;
  num_estimated = estimated.size;
}

}  // namespace retroinfer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace retroinfer::cpu {
namespace {

HWY_EXPORT(ClusterSelectRow);

absl::Status ValidateBudget(const ClusterSelectArgs& args, const SelectionBudget& budget) {
  constexpr char kOp[] = "cluster_select";
  RETURN_IF_ERROR(CheckArg(budget.num_clusters >= 0 && budget.num_clusters <= args.max_clusters &&
                               budget.num_clusters % int32_t{kClustersPerMetaBlock} == 0,
                           kOp, "needs budgets of whole meta blocks up to max_clusters"));
  RETURN_IF_ERROR(CheckArg(budget.num_retrieved >= 0 && budget.num_retrieved <= args.max_retrieved,
                           kOp, "needs num_retrieved from 0 to max_retrieved"));
  RETURN_IF_ERROR(CheckArg(budget.num_estimated >= 0 && budget.num_estimated <= args.max_estimated,
                           kOp, "needs num_estimated from 0 to max_estimated"));
  return CheckArg(budget.num_retrieved + budget.num_estimated <= budget.num_clusters, kOp,
                  "needs num_retrieved + num_estimated up to num_clusters");
}

}  // namespace

absl::Status ClusterSelect(CpuStream& stream, const ClusterSelectArgs& args) {
  RETURN_IF_ERROR(CheckClusterSelect(args));
  for (size_t i = 0; i < args.budgets.size(); ++i) {
    RETURN_IF_ERROR(ValidateBudget(args, args.budgets.device_data()[i]));
  }
  return stream.Launch([args](ThreadPool& pool) {
    const auto select = HWY_DYNAMIC_DISPATCH(ClusterSelectRow);
    pool.ParallelFor(int64_t{args.batch} * args.num_kv_heads, [&](int64_t row) {
      select(args, static_cast<int32_t>(row / args.num_kv_heads),
             static_cast<int32_t>(row % args.num_kv_heads));
    });
  });
}

}  // namespace retroinfer::cpu
#endif  // HWY_ONCE
