// A row is the clusters of a (sequence, KV head) (invariants in row_select.cuh).
#include <cstdint>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/index/cluster_select_check.h"
#include "gpu_worker/ops/index/cuda/cluster_select.h"
#include "gpu_worker/ops/index/cuda/row_select.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int64_t kMaxAlone = 16 * 1024;  // clusters of a row whose sums are not cut

// What a row's selection is, for SelectRow.
struct ClusterJob {
  static constexpr bool kPlansEarly = true;  // the budgets are a step's, written before its kernels

  const float* scores;
  int64_t max_clusters;
  int32_t group;
  int32_t num_kv_heads;
  const SelectionBudget* budgets;
  int64_t max_retrieved;
  int64_t max_estimated;
  int32_t* retrieved;
  int32_t* num_retrieved;
  int32_t* estimated;
  int32_t* num_estimated;
  float* scratch;  // [rows, 2 * max_clusters]; null: ranks in shared memory

  __device__ RowPlan Plan(int64_t row) const {
    const SelectionBudget budget = budgets[row / num_kv_heads];
    // Budgets come from the host's own plan, but memory past a row belongs to another.
    const auto count =
        static_cast<int32_t>(min(max(int64_t{budget.num_clusters}, int64_t{0}), max_clusters));
    const auto r = static_cast<int32_t>(min(int64_t{budget.num_retrieved}, max_retrieved));
    const auto e = static_cast<int32_t>(min(int64_t{budget.num_estimated}, max_estimated));
    return {count, count > kMaxAlone, {r, r + e}, budget.ranking};
  }
  __device__ RowScores Scores(int64_t row, const Places& places) const {
    return {scores + row * group * max_clusters + places.begin, max_clusters, group, places.count};
  }
  __device__ float* Ranks(int64_t row, const Places& places, float* shared) const {
    return scratch == nullptr ? shared : scratch + row * 2 * max_clusters + places.begin;
  }
  struct Taker {
    int32_t* zones[2];
    __device__ void Take(int k, int32_t at, int32_t place) const { zones[k][at] = place; }
  };
  __device__ Taker Of(int64_t row) const {
    Taker taker{{retrieved + row * max_retrieved, estimated + row * max_estimated}};
    // Products that the compiler would otherwise form again at each of sixteen places.
    asm volatile("" : "+l"(taker.zones[0]), "+l"(taker.zones[1]));
    return taker;
  }
  __device__ void SetSize(int64_t row, int k, int32_t size) const {
    (k == 0 ? num_retrieved : num_estimated)[row] = size;
  }
};

}  // namespace

absl::Status ClusterSelect(CudaStream& stream, const ClusterSelectArgs& args) {
  RETURN_IF_ERROR(CheckClusterSelect(args));
  const int32_t group = args.num_query_heads / args.num_kv_heads;
  RETURN_IF_ERROR(CheckArg(group <= kMaxGroup, "cluster_select", "needs at most ", kMaxGroup,
                           " query heads for each KV head, has ", group));
  if (args.batch == 0) return absl::OkStatus();
  ClusterJob job{
      .scores = args.scores.device_data(),
      .max_clusters = args.max_clusters,
      .group = group,
      .num_kv_heads = args.num_kv_heads,
      .budgets = args.budgets.device_data(),
      .max_retrieved = args.max_retrieved,
      .max_estimated = args.max_estimated,
      .retrieved = args.retrieved.device_data(),
      .num_retrieved = args.num_retrieved.device_data(),
      .estimated = args.estimated.device_data(),
      .num_estimated = args.num_estimated.device_data(),
      .scratch = reinterpret_cast<float*>(args.scratch.device_data()),
  };
  // A block has at most all places of a row that is not cut.
  const bool in_shared = args.max_clusters <= kMaxSharedRanks;
  if (in_shared) job.scratch = nullptr;
  return CudaStatus(
      LaunchSelection(stream.get(), args.batch * args.num_kv_heads, group, args.max_clusters,
                      args.max_clusters > kMaxAlone, in_shared ? args.max_clusters : 0, job),
      "cluster_select");
}

}  // namespace retroinfer::cuda
