// Selection of the best places of rows, by the scores of a group of heads: of clusters
// (cluster_select.cu), and of pages (page_select.cu).
//
// Invariants:
// * A place's rank is the logarithm of its weight: max_g or log sum_g exp of (x_g - log-sum-exp of
//   head g). It is finite for a live place, however small its weight; -inf for an empty one.
// * A place's key is (rank, place) in one 64-bit number, the lower place the larger key. Keys are
//   unique, so "the n-th largest key" chooses exactly n places, and ties go to the first ones.
// * In which order numbers are added up depends on the row alone, not on how many blocks do it, so
//   a row's result does not depend on the batch or the device.
// * No rank is -0, so ranks are equal as numbers where their keys are.
// Up to sixteen blocks work on a row, a (sequence, KV head), where the device has clusters of blocks.
// They tell each other four things (row_blocks.cuh): sums of exponentials, sizes of coarse bins,
// sizes of the fine bins of a coarse one, candidates. Bound by the latency of these steps; with one
// block by instructions, several hundred of a thread. Reads 4 * group * places bytes of scores
// twice (L2), then works on ranks in registers. The n-th largest key is found by a histogram of
// equal steps below the largest rank, which leaves a few candidates that are compared with each
// other; where there are too many (ties), by radix selection.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/index/cuda/cluster_ranks.cuh"
#include "gpu_worker/ops/index/cuda/row_zones.cuh"

namespace retroinfer::cuda {

// Of a block. Beside what blocks share, as many as a block of any GPU from compute capability 8.0 on
// has room for: 99 KiB.
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

// Adds up the bins of each coarse one, and sends that to all blocks.
template <typename Form>
__device__ void SendCoarseSizes(const typename Form::Blocks& blocks, SelectShared<Form>& shared) {
  constexpr int kReads = Form::kFineBins / 4;  // of a coarse bin
  constexpr int kLanes = Form::kThreads / Form::kCoarseBins < kReads
                             ? Form::kThreads / Form::kCoarseBins
                             : kReads;  // for a coarse bin
  const int coarse = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (coarse >= Form::kCoarseBins) return;
  const auto* sizes = reinterpret_cast<const uint4*>(shared.histogram) + coarse * kReads;
  uint32_t all = 0;
#pragma unroll
  for (int i = 0; i < kReads / kLanes; ++i) {
    // Neighbours begin in different banks.
    const uint4 four = sizes[(lane % kLanes + kLanes * (i + coarse)) % kReads];
    all += four.x + four.y + four.z + four.w;
  }
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) all += __shfl_xor_sync(kAllLanes, all, step);
  if constexpr (Form::kHasMany) {
    constexpr int kOfFour = 4 * kLanes;
    static_assert(kOfFour <= 32);
    const int first = lane / kOfFour * kOfFour;
    const uint4 four{__shfl_sync(kAllLanes, all, first),
                     __shfl_sync(kAllLanes, all, first + kLanes),
                     __shfl_sync(kAllLanes, all, first + 2 * kLanes),
                     __shfl_sync(kAllLanes, all, first + 3 * kLanes)};
    auto* const to =
        reinterpret_cast<uint4*>(shared.coarse_sizes[blocks.index()]) + coarse / 4;
    for (int block = lane % kOfFour; block < blocks.count(); block += kOfFour) {
      blocks.Send(to, four, block, shared.arrivals[shared.kCoarse]);
    }
  } else if (lane % kLanes == 0) {
    shared.coarse_sizes[0][coarse] = all;
  }
}

// A bin of some, whose sizes are sums over blocks.
struct FoundBin {
  int32_t bin;     // -1: none
  int32_t wanted;  // place of what was looked for among what is in the bin, from 1
  int32_t size;
  int32_t all;  // that are in any of the bins
};

// Finds the bin of the number-th largest rank, or of the smallest one where there are fewer; none
// for 0. One warp calls it. sizes: [num_blocks, kBins]
template <int kBins>
__device__ FoundBin FindBin(const uint32_t* sizes, int num_blocks, int32_t number) {
  constexpr int kEach = kBins / 32;
  struct alignas(4 * kEach) Sizes {
    int32_t of_bins[kEach];
  };
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first = kBins - kEach * (lane + 1);  // from the uppermost bins down
  Sizes own = {};
  int32_t own_all = 0;
#pragma unroll 4
  for (int block = 0; block < num_blocks; ++block) {
    const auto of_block = *reinterpret_cast<const Sizes*>(sizes + block * kBins + first);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      own.of_bins[i] += of_block.of_bins[i];
      own_all += of_block.of_bins[i];
    }
  }
  int32_t end = own_all;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int32_t before = __shfl_up_sync(kAllLanes, end, step);
    if (lane >= step) end += before;
  }
  const int32_t all = __shfl_sync(kAllLanes, end, 31);
  number = min(number, all);
  FoundBin found{-1, 0, 0, all};
  int32_t above = end - own_all;
#pragma unroll
  for (int i = kEach - 1; i >= 0; --i) {
    if (number > above && number <= above + own.of_bins[i]) {
      found = {first + i, number - above, own.of_bins[i], all};
    }
    above += own.of_bins[i];
  }
  const uint32_t finders = __ballot_sync(kAllLanes, found.bin >= 0);
  if (finders == 0) return found;
  const int finder = __ffs(static_cast<int>(finders)) - 1;
  return {__shfl_sync(kAllLanes, found.bin, finder), __shfl_sync(kAllLanes, found.wanted, finder),
          __shfl_sync(kAllLanes, found.size, finder), all};
}

// Places of this block in bins above that of threshold k, whose coarse bin has the sizes `fine`.
template <typename Form>
__device__ int32_t CountAbove(const typename Form::Blocks& blocks, int32_t coarse_bin,
                              int32_t fine_bin, const uint32_t* fine,
                              const SelectShared<Form>& shared) {
  int32_t above = 0;
  for (auto i = static_cast<int>(threadIdx.x % 32); i < Form::kCoarseBins; i += 32) {
    if (i > coarse_bin) above += static_cast<int32_t>(shared.coarse_sizes[blocks.index()][i]);
  }
  for (auto i = static_cast<int>(threadIdx.x % 32); i < Form::kFineBins; i += 32) {
    if (i > fine_bin) above += static_cast<int32_t>(fine[i]);
  }
  return __reduce_add_sync(kAllLanes, above);
}

// Finds the bin of the number-th largest rank of the row, as threshold k. One warp calls it.
template <typename Form>
__device__ void FindThresholdBin(const typename Form::Blocks& blocks, int k, int32_t number,
                                 SelectShared<Form>& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const FoundBin coarse =
      FindBin<Form::kCoarseBins>(shared.coarse_sizes[0], blocks.count(), number);
  const uint32_t* const own = shared.histogram + max(coarse.bin, 0) * Form::kFineBins;
  const uint32_t* fine = own;
  if constexpr (Form::kHasMany) {
    constexpr int kSends = Form::kFineBins / 4;  // for a block
    Arrival& arrival = shared.arrivals[shared.kFine + k];
    const uint4 four = reinterpret_cast<const uint4*>(own)[lane % kSends];
    auto* const to =
        reinterpret_cast<uint4*>(shared.fine_sizes[k][blocks.index()]) + lane % kSends;
    for (int block = lane / kSends; block < blocks.count(); block += 32 / kSends) {
      blocks.Send(to, four, block, arrival);
    }
    blocks.Await(arrival);
    fine = shared.fine_sizes[k][0];
  }
  const FoundBin found = FindBin<Form::kFineBins>(fine, blocks.count(), coarse.wanted);
  int32_t before = 0;  // candidates of blocks before this one
  if constexpr (Form::kHasMany) {
    Arrival& arrival = shared.arrivals[shared.kCandidates + k];
    const int32_t above =
        found.bin < 0 ? 0 : CountAbove(blocks, coarse.bin, found.bin, own, shared);
    if (lane < blocks.count()) blocks.Send(&shared.above[k][blocks.index()], above, lane, arrival);
    const bool is_before = found.bin >= 0 && lane < blocks.index();
    before = __reduce_add_sync(
        kAllLanes,
        is_before ? static_cast<int32_t>(shared.fine_sizes[k][lane][found.bin]) : 0);
    if (lane == 0) {
      const int32_t num_keys = found.size <= kMaxCandidates ? found.size : 0;
      blocks.Expect(arrival, blocks.count() * static_cast<int32_t>(sizeof(int32_t)) +
                                 num_keys * static_cast<int32_t>(sizeof(uint64_t)));
    }
  }
  if (lane != 0) return;
  shared.num_live = coarse.all;  // either warp finds the same
  shared.bin[k] = found.bin < 0 ? -1 : coarse.bin * Form::kFineBins + found.bin;
  shared.wanted[k] = found.wanted;
  shared.num_candidates[k] = found.size;
  shared.next_candidate[k] = before;
}

// The wanted-th largest key of a bin by radix selection, 8 bits at a time.
template <typename Form, typename Ranks>
__device__ uint64_t RadixSelect(const typename Form::Blocks& blocks, const Ranks& ranks,
                                int32_t first_place, const Binning<Form>& binning, uint32_t bin,
                                int32_t wanted, SelectShared<Form>& shared) {
  uint64_t prefix = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (auto i = threadIdx.x; i < 256; i += Form::kThreads) shared.histogram[i] = 0;
    __syncthreads();
    const uint64_t mask = shift == 56 ? 0 : kNoKey << (shift + 8);
    ranks.ForLive([&](int32_t place, float rank) {
      const uint64_t key = KeyOf(rank, first_place + place);
      if (binning.Of(rank) != bin || (key & mask) != prefix) return;
      const auto digit = static_cast<uint32_t>(key >> shift) & 255;
      const uint32_t peers = __match_any_sync(__activemask(), digit);
      if (static_cast<int>(threadIdx.x % 32) == __ffs(static_cast<int>(peers)) - 1) {
        atomicAdd(&shared.histogram[digit], static_cast<uint32_t>(__popc(peers)));
      }
    });
    blocks.Sync();
    for (auto i = threadIdx.x; i < 256; i += Form::kThreads) {
      uint32_t size = 0;
      for (int block = 0; block < blocks.count(); ++block) {
        size += blocks.Read(&shared.histogram[i], block);
      }
      shared.digits[i] = size;
    }
    blocks.Sync();
    uint32_t digit = 255;  // every thread finds the same one
    for (; digit > 0 && static_cast<int32_t>(shared.digits[digit]) < wanted; --digit) {
      wanted -= static_cast<int32_t>(shared.digits[digit]);
    }
    prefix |= uint64_t{digit} << shift;
    __syncthreads();
  }
  return prefix;
}

// Finds threshold k where there are too many candidates, and tells all blocks how many of this one's
// are not below it.
template <typename Form, typename Ranks>
__device__ void SelectAmongMany(const typename Form::Blocks& blocks, int k, const Ranks& ranks,
                                int32_t first_place, const Binning<Form>& binning,
                                SelectShared<Form>& shared) {
  const auto bin = static_cast<uint32_t>(shared.bin[k]);
  const uint64_t threshold =
      RadixSelect(blocks, ranks, first_place, binning, bin, shared.wanted[k], shared);
  if (threadIdx.x == 0) {
    shared.threshold[k] = threshold;
    shared.is_split[k] = true;  // for all that is known
  }
  if constexpr (Form::kHasMany) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    int32_t ties = 0;
    ranks.ForLive([&](int32_t place, float rank) {
      ties += binning.Of(rank) == bin && KeyOf(rank, first_place + place) >= threshold ? 1 : 0;
    });
    ties = __reduce_add_sync(kAllLanes, ties);
    if (lane == 0 && ties != 0) atomicAdd(&shared.num_ties[k], ties);
    __syncthreads();
    Arrival& arrival = shared.arrivals[shared.kTies + k];
    if (threadIdx.x == 0) {
      blocks.Expect(arrival, blocks.count() * static_cast<int32_t>(sizeof(int32_t)));
    }
    if (threadIdx.x < static_cast<unsigned>(blocks.count())) {
      blocks.Send(&shared.ties[k][blocks.index()], shared.num_ties[k], lane, arrival);
    }
    blocks.Await(arrival);
  }
}

// Lists this block's keys of both bins among those of all blocks, unless they are too many.
template <typename Form, typename Ranks>
__device__ void SendCandidates(const typename Form::Blocks& blocks, const Ranks& ranks,
                               int32_t first_place, const Binning<Form>& binning,
                               SelectShared<Form>& shared) {
  float positions[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const bool are_few = shared.num_candidates[k] <= kMaxCandidates;
    positions[k] = binning.PositionOf(are_few ? shared.bin[k] : -1);  // no rank's
  }
  for (int32_t batch = 0; batch < ranks.num_batches(); ++batch) {
    const RankBatch read = ranks.Batch(batch);
    uint32_t found = 0;  // a bit for each place, the second bin's above 16
#pragma unroll
    for (int i = 0; i < 4 * kPlaceRounds; ++i) {
      const float position = binning.Position(read.Rank(i / 4, i % 4));
      if (position == positions[0]) found |= 1u << i;
      if (position == positions[1]) found |= 1u << (16 + i);
    }
    for (; found != 0; found &= found - 1) {  // mostly once in a warp, if at all
      const int bit = __ffs(static_cast<int>(found)) - 1;
      const int k = bit / 16, place = bit % 16;
      float rank = 0;
#pragma unroll
      for (int i = 0; i < 4 * kPlaceRounds; ++i) {
        if (place == i) rank = read.Rank(i / 4, i % 4);
      }
      if (rank == -INFINITY) continue;  // in no bin
      const uint64_t key = KeyOf(rank, first_place + ranks.PlaceOf(batch, place / 4) + place % 4);
      uint64_t* const to = &shared.candidates[k][atomicAdd(&shared.next_candidate[k], 1)];
      for (int block = 0; block < blocks.count(); ++block) {
        blocks.Send(to, key, block, shared.arrivals[shared.kCandidates + k]);
      }
    }
  }
}

// Finds the thresholds among a few candidates. Half of the warps work on each: a warp compares a
// candidate with all.
template <typename Form>
__device__ void CompareCandidates(const typename Form::Blocks& blocks,
                                  SelectShared<Form>& shared) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int k = warp % 2;
  blocks.Await(shared.arrivals[shared.kCandidates + k]);
  const uint64_t* const keys = shared.candidates[k];
  const int32_t count = shared.num_candidates[k];
  if (count > kMaxCandidates) return;
  const int32_t wanted = shared.wanted[k];
  for (int32_t i = warp / 2; i < count; i += Form::kWarps / 2) {
    const uint64_t key = keys[i];
    int32_t above = 0;
    for (int32_t j = lane; j < count; j += 32) above += keys[j] > key ? 1 : 0;
    if (__reduce_add_sync(kAllLanes, above) != wanted - 1) continue;
    bool is_split = false;
    for (int32_t j = lane; j < count; j += 32) {
      is_split |= keys[j] < key && keys[j] >> 32 == key >> 32;
    }
    is_split = __any_sync(kAllLanes, is_split);
    if (lane != 0) return;
    shared.threshold[k] = key;
    shared.is_split[k] = is_split;
    return;
  }
}

// Finds the numbers[k]-th largest keys of the row, whose ranks the histograms have counted; kNoKey
// where the number is 0.
template <typename Form, typename Ranks>
__device__ void FindThresholds(const typename Form::Blocks& blocks, const Ranks& ranks,
                               int32_t first_place, const Binning<Form>& binning,
                               const int32_t (&numbers)[2], SelectShared<Form>& shared) {
  const auto warp = static_cast<int>(threadIdx.x / 32);
  __syncthreads();
  SendCoarseSizes(blocks, shared);
  if (warp < 2 || !Form::kHasMany) blocks.Await(shared.arrivals[shared.kCoarse]);
  if (warp < 2) FindThresholdBin(blocks, warp, numbers[warp], shared);
  __syncthreads();
  SendCandidates(blocks, ranks, first_place, binning, shared);
  CompareCandidates(blocks, shared);
#pragma unroll 1
  for (int k = 0; k < 2; ++k) {
    if (shared.num_candidates[k] <= kMaxCandidates) continue;
    SelectAmongMany(blocks, k, ranks, first_place, binning, shared);
  }
  __syncthreads();
}

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
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<SelectShared<Form>*>(memory);
  auto* const shared_ranks = reinterpret_cast<float*>(&shared + 1);
  const typename Form::Blocks blocks;
  const int64_t row = static_cast<int64_t>(blockIdx.x) / blocks.count();
  AllowNextKernel();
  RowPlan plan;
  if constexpr (Job::kPlansEarly) plan = job.Plan(row);
  Prepare(blocks, shared);
  AwaitLastKernel();
  if constexpr (!Job::kPlansEarly) plan = job.Plan(row);
  const int num_parts = Form::kHasMany && plan.is_cut ? kCutParts : 1;
  if (threadIdx.x == 0) {
    blocks.Expect(shared.arrivals[shared.kSums],
                  num_parts * kSumsOfPart * static_cast<int32_t>(sizeof(ExpSum)));
  }
  SendSums(blocks, job, row, plan.count, num_parts, shared);
  const Places places = Places::Of(plan.count, blocks.index(), blocks.count());
  const RowScores scores = job.Scores(row, places);
  PlaceRanks<Form::kThreads, kHeld> ranks(kHeld ? nullptr : job.Ranks(row, places, shared_ranks),
                                          places.count);
  constexpr bool kEarly = kHeld && Form::kThreads <= 512 && kHeads <= 4;
  EarlyScores<kHeads, kEarly> early(scores, ranks);
  MergeSums(blocks, scores.group, num_parts, shared);
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

// How many blocks a row has, by how many rows and places there are. MEASURING: by the environment.
inline RowShape ShapeOf(int32_t num_rows, int64_t max_places, bool may_be_cut) {
  if (!StartsKernelsEarly()) return {1, 1024};  // 9.0 has clusters, too
  const auto number = [](const char* name, int otherwise) {
    const char* value = std::getenv(name);
    return value == nullptr ? otherwise : std::atoi(value);
  };
  static const int of_short = number("SELECT_SHORT", 4), of_long = number("SELECT_LONG", 16);
  if (may_be_cut) {
    const int threads = max_places > HeldPlaces(512) * 16 && of_long == 16 ? 1024 : 512;
    return {of_long, of_long == 16 ? threads : 1024};
  }
  (void)num_rows;
  const int threads = 1024 / of_short;
  return {of_short, max_places > HeldPlaces(1024) && of_short > 1 ? 2 * threads : threads};
}

template <bool kHeld, typename Form, typename Job>
cudaError_t LaunchForm(cudaStream_t stream, int32_t num_rows, int32_t group, int num_blocks,
                       int64_t shared_ranks, const Job& job) {
  const auto kernel = group <= 2   ? SelectRow<2, kHeld, Form, Job>
                      : group <= 4 ? SelectRow<4, kHeld, Form, Job>
                      : group <= 8 ? SelectRow<8, kHeld, Form, Job>
                                   : SelectRow<kMaxGroup, kHeld, Form, Job>;
  constexpr size_t kBytes = sizeof(SelectShared<Form>);
  constexpr size_t kMostBytes = kBytes + (kHeld ? 0 : kMaxSharedRanks * sizeof(float));
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(kMostBytes));
  if (error != cudaSuccess) return error;
  if (num_blocks > 8) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;
  }
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
  if (shape.threads == 1024) return launch_form(RowForm<1024, true>{});
  if (shape.threads == 512) return launch_form(RowForm<512, true>{});
  if (shape.threads == 256) return launch_form(RowForm<256, true>{});
  return launch_form(RowForm<128, true>{});
}

}  // namespace retroinfer::cuda
