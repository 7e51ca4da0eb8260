// Selection of the best places of rows, by the scores of a group of heads: of clusters
// (cluster_select.cu), and of pages (page_select.cu).
//
// Invariants:
// * A place's rank is the logarithm of its weight: max_g or log sum_g exp of (x_g - log-sum-exp of
//   head g). It is finite for a live place, however small its weight; -inf for an empty one.
// * A place's key is (rank, place) in one 64-bit number, the lower place the larger key. Keys are
//   unique, so "the n-th largest key" chooses exactly n places, and ties go to the first ones.
// * In which order numbers are added up depends on the row alone, not on how many blocks do it, so
//   a row's result does not depend on the batch, nor on the device among those with clusters of
//   blocks: others add up a row of more than 16,384 clusters in fewer parts.
// * No rank is -0, so ranks are equal as numbers where their keys are.
// Up to eight blocks work on a row, a (sequence, KV head), where the device has clusters of
// blocks. They tell each other four things (row_blocks.cuh): sums of exponentials, sizes of coarse
// bins, sizes of the fine bins of a coarse one, candidates. Bound by the latency of these steps;
// with one block by instructions, several hundred of a thread. Reads 4 * group * places bytes of
// scores twice (L2), then works on ranks in registers. The n-th largest key is found by a histogram
// of equal steps below the largest rank, which leaves a few candidates that are compared with each
// other; where there are too many (ties), by radix selection.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/index/cuda/row_thresholds.cuh"
#include "gpu_worker/ops/index/cuda/row_zones.cuh"

namespace retroinfer::cuda {

// Of a block. Beside what blocks share, as many as a block of any GPU from compute capability 8.0
// on has room for: 99 KiB.
constexpr int64_t kMaxSharedRanks = 19 * 1024;
static_assert(sizeof(SelectShared<RowForm<1024, false>>) + kMaxSharedRanks * sizeof(float) <=
              99 * 1024);

// What is to be done with a row.
struct RowPlan {
  int32_t count;       // places, a multiple of 64
  bool is_cut;         // whether its sums are those of parts, if there are several blocks
  int32_t numbers[2];  // the best, and the best with those behind them; 0: none
  GroupRanking ranking;
};

// What a block does before it needs anything of others: empties what it counts in.
template <typename Form>
__device__ void Prepare(const typename Form::Blocks& blocks, SelectShared<Form>& shared) {
  auto* const bins = reinterpret_cast<uint4*>(shared.histogram);
  for (int i = static_cast<int>(threadIdx.x); i < Form::kBins / 4; i += Form::kThreads) {
    bins[i] = {};
  }
  if (threadIdx.x < 32) {
    for (uint32_t(&sizes)[32] : shared.zone_sizes) sizes[threadIdx.x] = 0;
  }
  if (threadIdx.x < 2) {
    shared.num_ties[threadIdx.x] = 0;
    shared.threshold[threadIdx.x] = kNoKey;
    shared.is_split[threadIdx.x] = false;
  }
  if (threadIdx.x == 0) {
    blocks.Prepare(shared.arrivals);
    const auto all = static_cast<int32_t>(blocks.count() * sizeof(uint32_t));
    blocks.Expect(shared.arrivals[shared.kCoarse], all * Form::kCoarseBins);
    for (int k = 0; k < 2; ++k) {
      blocks.Expect(shared.arrivals[shared.kFine + k], all * Form::kFineBins);
    }
  }
  blocks.Meet();
}

// grid: [rows * blocks of a row], which are clusters if there are several. kHeads: at least the
// group. A Job has of each row
//   RowPlan Plan(row)
//   RowScores Scores(row, places)       group and scores
//   float* Ranks(row, places, shared)   memory for the ranks of places; `shared` is shared memory
//   Of(row).Take(k, at, place)          place `place` is number `at` of zone k
//   void SetSize(row, k, size)
//   kPlansEarly                         whether Plan reads nothing that the kernel before writes
// kHeld: no block has more places than HeldPlaces.
template <int kHeads, bool kHeld, typename Form, typename Job>
__global__ void __launch_bounds__(Form::kThreads, 1024 / Form::kThreads) SelectRow(const Job job) {
  if constexpr (!Form::Blocks::kIsThere) return;
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<SelectShared<Form>*>(memory);
  auto* const shared_ranks = reinterpret_cast<float*>(&shared + 1);
  const typename Form::Blocks blocks;
  const int64_t row = blockIdx.x >> blocks.log_count();
  AllowNextKernel();
  RowPlan plan;
  if constexpr (Job::kPlansEarly) plan = job.Plan(row);
  Prepare(blocks, shared);
  AwaitLastKernel();
  if constexpr (!Job::kPlansEarly) plan = job.Plan(row);
  const int log_parts = Form::kHasMany && plan.is_cut ? kLogCutParts : 0;
  if (threadIdx.x == 0) {
    blocks.Expect(shared.arrivals[shared.kSums],
                  (kSumsOfPart << log_parts) * static_cast<int32_t>(sizeof(ExpSum)));
  }
  SendSums(blocks, job, row, plan.count, log_parts, shared);
  const Places places = Places::Of(plan.count, blocks.index(), blocks.log_count());
  const RowScores scores = job.Scores(row, places);
  PlaceRanks<Form::kThreads, kHeld> ranks(kHeld ? nullptr : job.Ranks(row, places, shared_ranks),
                                          places.count);
  constexpr bool kEarly = kHeld && Form::kThreads <= 512 && kHeads <= 4;
  EarlyScores<kHeads, kEarly> early(scores, ranks);
  MergeSums(blocks, scores.group, log_parts, shared);
  const Binning<Form> binning(plan.count, scores.group, plan.ranking, shared);
  FindRanks<kHeads>(scores, early, plan.ranking, binning, ranks, shared);
  FindThresholds(blocks, ranks, places.begin, binning, plan.numbers, shared);
  WriteZones(blocks, job, ranks, places.begin, row, shared);
  if (threadIdx.x != 0 || blocks.index() != 0) return;
  const int32_t best = min(max(plan.numbers[0], 0), shared.num_live);
  job.SetSize(row, 0, best);
  job.SetSize(row, 1, max(min(plan.numbers[1], shared.num_live) - best, 0));
}

struct RowShape {
  int blocks;
  int threads;
};

// How many blocks a row has: as many as are fastest (decision 0111), which changes no result.
inline RowShape ShapeOf(int32_t num_rows, int64_t max_places, bool may_be_cut) {
  constexpr int32_t kFewRows = 32;       // of four blocks each, one on a multiprocessor of an H100
  constexpr int64_t kManyPlaces = 8192;  // what a block alone takes longer for than two
  if (!StartsKernelsEarly()) return {1, 1024};  // 9.0 has clusters, too
  if (may_be_cut) return {8, 1024};
  if (num_rows <= kFewRows) return {4, 512};
  return {max_places > kManyPlaces ? 2 : 1, 1024};
}

// What a block of this process's device may have of shared memory; several blocks of a row and all
// ranks are more than GPUs with 99 KiB have, of which launches of longer rows need the former
// alone.
struct SharedLimit {
  cudaError_t code = cudaSuccess;
  int bytes = 0;
};
inline SharedLimit FindSharedLimit() {
  SharedLimit limit;
  int device = 0;
  limit.code = cudaGetDevice(&device);
  if (limit.code != cudaSuccess) return limit;
  limit.code =
      cudaDeviceGetAttribute(&limit.bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return limit;
}

template <bool kHeld, typename Form, typename Job>
cudaError_t LaunchForm(cudaStream_t stream, int32_t num_rows, int32_t group, int num_blocks,
                       int64_t shared_ranks, const Job& job) {
  const auto kernel = group <= 2   ? SelectRow<2, kHeld, Form, Job>
                      : group <= 4 ? SelectRow<4, kHeld, Form, Job>
                      : group <= 8 ? SelectRow<8, kHeld, Form, Job>
                                   : SelectRow<kMaxGroup, kHeld, Form, Job>;
  constexpr size_t kBytes = sizeof(SelectShared<Form>);
  // The same for all launches, which may be made by several threads.
  static const SharedLimit limit = FindSharedLimit();
  if (limit.code != cudaSuccess) return limit.code;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
      min(limit.bytes, static_cast<int>(kBytes + (kHeld ? 0 : kMaxSharedRanks * sizeof(float)))));
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(num_blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<uint32_t>(num_rows * num_blocks));
  config.blockDim = dim3(Form::kThreads);
  config.dynamicSmemBytes =
      kBytes + (kHeld ? 0 : static_cast<size_t>(shared_ranks) * sizeof(float));
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = num_blocks > 1 ? 2 : StartsKernelsEarly() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, job);
}

// `max_places`: of a row. may_be_cut: whether a row's plan may be.
template <typename Job>
cudaError_t LaunchSelection(cudaStream_t stream, int32_t num_rows, int32_t group,
                            int64_t max_places, bool may_be_cut, int64_t shared_ranks,
                            const Job& job) {
  const RowShape shape = ShapeOf(num_rows, max_places, may_be_cut);
  const int64_t of_block = (max_places / 64 + shape.blocks - 1) / shape.blocks * 64;
  const bool held = of_block <= HeldPlaces(shape.threads);
  const auto launch = [&](auto form, auto is_held) {
    return LaunchForm<decltype(is_held)::value, decltype(form)>(stream, num_rows, group,
                                                                shape.blocks, shared_ranks, job);
  };
  const auto launch_form = [&](auto form) {
    return held ? launch(form, std::true_type{}) : launch(form, std::false_type{});
  };
  if (shape.blocks == 1) return launch_form(RowForm<1024, false>{});
  return shape.threads == 512 ? launch_form(RowForm<512, true>{})
                              : launch_form(RowForm<1024, true>{});
}

}  // namespace retroinfer::cuda
