// The n-th largest keys of a row, by a histogram whose bins leave a few candidates (invariants in
// row_select.cuh).
#pragma once

#include <cstdint>

#include "gpu_worker/ops/index/cuda/cluster_ranks.cuh"

namespace retroinfer::cuda {

constexpr uint64_t kNoKey = UINT64_MAX;

__device__ inline uint64_t KeyOf(float rank, int32_t place) {
  return uint64_t{OrderOf(rank)} << 32 | (0xffffffffu - static_cast<uint32_t>(place));
}
__device__ inline int32_t PlaceOfKey(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

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
    auto* const to = reinterpret_cast<uint4*>(shared.coarse_sizes[blocks.index()]) + coarse / 4;
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
    auto* const to = reinterpret_cast<uint4*>(shared.fine_sizes[k][blocks.index()]) + lane % kSends;
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
        kAllLanes, is_before ? static_cast<int32_t>(shared.fine_sizes[k][lane][found.bin]) : 0);
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

// Finds threshold k where there are too many candidates, and tells all blocks how many of this
// one's are not below it.
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
__device__ void CompareCandidates(const typename Form::Blocks& blocks, SelectShared<Form>& shared) {
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

}  // namespace retroinfer::cuda
