// How one launch of decode attention is divided among its blocks, on the device: lengths change
// while a captured graph is replayed.
//
// A *unit* is a (sequence, KV head); its tokens are *tiles* of 16 places: the sink, the window,
// then groups of pages of the execution buffer. Each sequence is cut into about as many *parts* as
// the grid of a launch with one sequence has blocks, its units into parts of nearly equal tiles: by
// its own lengths and the device alone, so that its result does not depend on the batch. Part i of
// the launch belongs to block i % grid, so each block gets about the same share of every sequence.
#pragma once

#include <cstdint>

#include "gpu_worker/ops/attention/cuda/decode_attention_kernel.h"

namespace retroinfer::cuda {

inline constexpr int32_t kTileTokens = 16;
inline constexpr int32_t kTilesOfBlock = kDenseBlockTokens / kTileTokens;
inline constexpr int32_t kDecodeWarps = 4;
inline constexpr int32_t kDecodeThreads = 32 * kDecodeWarps;
// Bytes of one (layer, head) of a dense block.
template <int kTokensOfPage>
inline constexpr int64_t kRunBytes = kDenseBlockTokens / kTokensOfPage* kPageBytes;
// A part has at least a tile for each warp.
inline constexpr int32_t kMinTilesOfPart = 2 * kDecodeWarps;
// A block has at most one part of each unit; fewer than all units if those have a part each.
inline constexpr int32_t kMaxPartsOfBlock = kMaxDecodeSequences;

// A part that belongs to this block.
struct DecodePart {
  const DenseBlockId* block_ids;
  const PageRef* pages;  // the unit's
  int64_t run_in_block;  // of the unit's layer and head, bytes
  int32_t sequence, head;
  int32_t index;       // among all parts of the launch
  int32_t begin, end;  // tiles of the unit
  int32_t sink_tokens, window_tokens, num_pages;
  int32_t hidden_tokens;  // leading tokens of the window that are not attended
};

// Shared memory that is needed while planning only.
struct DecodePlanScratch {
  int32_t tiles[kMaxDecodeUnits];
  int32_t parts[kMaxDecodeUnits];
  int32_t final_parts[kMaxDecodeUnits];
  int32_t first_part[kMaxDecodeUnits];
};

__device__ inline int32_t CeilDivide(int32_t a, int32_t b) { return (a + b - 1) / b; }

// Parts of a unit, for whoever merges them: in scratch.
struct UnitParts {
  int32_t first;  // among all parts of the launch
  int32_t count;
};
static_assert(sizeof(UnitParts) * kMaxDecodeUnits == kDecodePlanBytes);

__device__ inline UnitParts* PlannedUnits(const DecodeLaunch& launch) {
  return reinterpret_cast<UnitParts*>(launch.scratch);
}

// Results of the launch's parts, in scratch: (max, sum) [parts][slice.count], values
// [parts][slice.count][head_dim], relative to the maximum.
__device__ inline float2* PartMaxSums(const DecodeLaunch& launch) {
  return reinterpret_cast<float2*>(launch.scratch + kDecodePlanBytes);
}
__device__ inline float* PartValues(const DecodeLaunch& launch) {
  return reinterpret_cast<float*>(PartMaxSums(launch) +
                                  MaxDecodeParts(launch.num_sequences) * launch.slice.count);
}

// Describes unit `unit` of the launch, but for its parts.
template <int kTokensOfPage>
__device__ inline DecodePart DescribeUnit(const DecodeLaunch& launch, int32_t unit) {
  const int32_t sequence = launch.first_sequence + unit / launch.num_heads;
  const int64_t head = launch.first_head + unit % launch.num_heads;
  const int64_t list = sequence * int64_t{launch.kv_heads} + head;
  const DenseZone zone = launch.zones[sequence];
  DecodePart part = {};
  part.sequence = sequence;
  part.head = static_cast<int32_t>(head);
  part.run_in_block = (int64_t{launch.layer} * launch.kv_heads + head) * kRunBytes<kTokensOfPage>;
  part.block_ids = zone.block_ids;
  part.sink_tokens = zone.num_sink_tokens;
  part.window_tokens = zone.num_window_tokens;
  part.hidden_tokens = launch.window == 0 ? 0 : max(0, part.window_tokens - launch.window);
  part.num_pages = launch.num_pages == nullptr ? 0 : launch.num_pages[list];
  for (int32_t i = 0; i < launch.num_runs; ++i) {
    if (launch.runs[i].first_row == sequence) part.num_pages = 0;  // its other rows have none
  }
  part.pages = launch.pages + list * launch.max_pages;
  part.end = (part.sink_tokens > 0 ? 1 : 0) + CeilDivide(part.window_tokens, kTileTokens) +
             CeilDivide(part.num_pages, kTileTokens / kTokensOfPage);
  return part;
}

// The sum of `value` over this lane and those before it.
__device__ inline int32_t SumOfLanes(int32_t value) {
  for (int32_t step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(~0u, value, step);
    if (static_cast<int32_t>(threadIdx.x % 32) >= step) value += other;
  }
  return value;
}

// Exclusive sums of plan.final_parts, by one warp; returns their total to all its lanes.
__device__ inline int32_t SumParts(int32_t units, DecodePlanScratch& plan) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  int32_t total = 0;
  for (int32_t base = 0; base < units; base += 32) {
    const int32_t own = base + lane < units ? plan.final_parts[base + lane] : 0;
    const int32_t sum = SumOfLanes(own);
    if (base + lane < units) plan.first_part[base + lane] = total + sum - own;
    total += __shfl_sync(~0u, sum, 31);
  }
  return total;
}

// The parts of a unit of `own` tiles whose sequence has `tiles`.
__device__ inline int32_t WantedParts(const DecodeLaunch& launch, int32_t own, int32_t tiles) {
  const int32_t size = max(kMinTilesOfPart, CeilDivide(tiles, launch.plan_blocks));
  return max(1, CeilDivide(own, size));
}
// The same where the units of the sequence want `parts` in all. Rounding up may have made more
// parts than blocks; larger parts cannot.
__device__ inline int32_t FinalParts(const DecodeLaunch& launch, int32_t wanted, int32_t own,
                                     int32_t tiles, int32_t parts) {
  const int32_t blocks = launch.plan_blocks, heads = launch.num_heads;
  if (heads >= blocks) return 1;
  if (parts <= blocks) return wanted;
  const int32_t size = max(kMinTilesOfPart, CeilDivide(tiles, blocks - heads));
  return max(1, CeilDivide(own, size));
}

// Chooses plan.final_parts of every unit from plan.tiles. Called by the whole block, between
// barriers.
__device__ inline void ChooseParts(const DecodeLaunch& launch, int32_t units,
                                   DecodePlanScratch& plan) {
  const int32_t heads = launch.num_heads;
  for (int32_t unit = static_cast<int32_t>(threadIdx.x); unit < units; unit += kDecodeThreads) {
    const int32_t first = unit / heads * heads;
    int32_t tiles = 0;
    for (int32_t h = 0; h < heads; ++h) tiles += plan.tiles[first + h];
    plan.parts[unit] = WantedParts(launch, plan.tiles[unit], tiles);
  }
  __syncthreads();
  for (int32_t unit = static_cast<int32_t>(threadIdx.x); unit < units; unit += kDecodeThreads) {
    const int32_t first = unit / heads * heads;
    int32_t tiles = 0, parts = 0;
    for (int32_t h = 0; h < heads; ++h) {
      tiles += plan.tiles[first + h];
      parts += plan.parts[first + h];
    }
    plan.final_parts[unit] = FinalParts(launch, plan.parts[unit], plan.tiles[unit], tiles, parts);
  }
}

// Writes the part of a unit that belongs to this block, if there is one, and in the first block
// which parts the unit has: `count` from `first` on. `part`: the unit.
__device__ inline void TakePart(const DecodeLaunch& launch, int32_t unit, int32_t first,
                                int32_t count, DecodePart part, DecodePart* parts) {
  const auto block = static_cast<int32_t>(blockIdx.x), blocks = static_cast<int32_t>(gridDim.x);
  if (block == 0) PlannedUnits(launch)[unit] = {first, count};
  const int32_t own = first + (block + blocks - first % blocks) % blocks;
  if (own >= first + count) return;
  const int32_t tiles = part.end / count, rest = part.end % count, i = own - first;
  part.index = own;
  part.begin = i * tiles + min(i, rest);
  part.end = part.begin + tiles + (i < rest ? 1 : 0);
  parts[own / blocks] = part;
}

// Whether PlanByLanes can plan that many units: no sequence has heads in two warps.
__device__ inline bool CanPlanByLanes(const DecodeLaunch& launch, int32_t units) {
  return units <= 32 || (units <= kDecodeThreads && 32 % launch.num_heads == 0);
}

// Plans units, a thread each: the first warp alone up to 32, without a barrier; otherwise the whole
// block, with one. Returns the number of all parts.
template <int kTokensOfPage>
__device__ inline int32_t PlanByLanes(const DecodeLaunch& launch, int32_t units,
                                      DecodePlanScratch& plan, DecodePart* parts) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t heads = launch.num_heads;
  const int32_t unit = min(thread, units - 1), first = unit / heads * heads;
  const DecodePart part = DescribeUnit<kTokensOfPage>(launch, unit);
  int32_t tiles = 0, of_sequence = 0;
  for (int32_t h = 0; h < heads; ++h) tiles += __shfl_sync(~0u, part.end, (first + h) % 32);
  const int32_t wanted = WantedParts(launch, part.end, tiles);
  for (int32_t h = 0; h < heads; ++h) of_sequence += __shfl_sync(~0u, wanted, (first + h) % 32);
  const int32_t count =
      thread < units ? FinalParts(launch, wanted, part.end, tiles, of_sequence) : 0;
  const int32_t end = SumOfLanes(count);
  int32_t before = 0, total = __shfl_sync(~0u, end, 31);
  if (units > 32) {
    if (thread % 32 == 0) plan.parts[thread / 32] = total;
    __syncthreads();
    total = 0;
    for (int32_t w = 0; w < kDecodeWarps; ++w) {
      if (w == thread / 32) before = total;
      total += plan.parts[w];
    }
  }
  if (thread < units) TakePart(launch, unit, before + end - count, count, part, parts);
  return total;
}

// Where page `page` of a tile lies, as far as is known without waiting for memory.
struct PageRequest {
  unsigned long long word;  // block id, or address
  int64_t offset;           // in the pool beyond the block's beginning, or kIsAddress
  int32_t tokens;           // that the page holds; 0 if there is no such page
  int32_t hidden;           // its leading tokens that are not attended
};
inline constexpr int64_t kIsAddress = -1;

// Begins to look for a page of tile `tile` of the part's unit.
template <int kTokensOfPage>
__device__ inline PageRequest RequestPage(const DecodePart& part, int32_t tile, int32_t page) {
  constexpr int32_t kPagesOfTile = kTileTokens / kTokensOfPage;
  if (page >= kPagesOfTile) return {0, 0, 0, 0};
  const int32_t sink_tiles = part.sink_tokens > 0 ? 1 : 0;
  const int32_t window_tiles = CeilDivide(part.window_tokens, kTileTokens);
  const int32_t window_tile = tile - sink_tiles;
  if (window_tile >= window_tiles) {
    const int32_t i = (window_tile - window_tiles) * kPagesOfTile + page;
    if (i >= part.num_pages) return {0, 0, 0, 0};
    const auto ref = __ldg(reinterpret_cast<const ulonglong2*>(part.pages + i));
    return {ref.x, kIsAddress, static_cast<int32_t>(ref.y & 0xffff'ffff), 0};
  }
  const bool is_sink = window_tile < 0;
  const int32_t block = is_sink ? 0 : 1 + window_tile / kTilesOfBlock;
  const int32_t place = is_sink ? 0 : window_tile % kTilesOfBlock;
  const int32_t left = is_sink ? part.sink_tokens : part.window_tokens - window_tile * kTileTokens;
  const int32_t hidden = is_sink ? 0 : part.hidden_tokens - window_tile * kTileTokens;
  return {static_cast<unsigned long long>(__ldg(part.block_ids + block)),
          part.run_in_block + (place * kPagesOfTile + page) * static_cast<int64_t>(kPageBytes),
          min(max(left - page * kTokensOfPage, 0), kTokensOfPage),
          min(max(hidden - page * kTokensOfPage, 0), kTokensOfPage)};
}

// Bytes of a dense block of all layers and heads.
template <int kTokensOfPage>
__device__ inline int64_t BlockBytes(const DecodeLaunch& launch) {
  return int64_t{launch.num_layers} * launch.kv_heads * kRunBytes<kTokensOfPage>;
}

// Address of a requested page; anything in the pool if it has no tokens.
__device__ inline const std::byte* ResolvePage(const DecodeLaunch& launch, int64_t block_bytes,
                                               const PageRequest& request) {
  if (request.tokens == 0) return launch.pool;
  if (request.offset == kIsAddress) return reinterpret_cast<const std::byte*>(request.word);
  return launch.pool + static_cast<int64_t>(request.word) * block_bytes + request.offset;
}

// Writes this block's parts, and the first block all units' to scratch;
// returns the number of this block's. Called by the whole block.
template <int kTokensOfPage>
__device__ inline int32_t PlanParts(const DecodeLaunch& launch, DecodePlanScratch& plan,
                                    int32_t& total_parts, DecodePart* parts) {
  const int32_t units = launch.num_sequences * launch.num_heads;
  const auto block = static_cast<int32_t>(blockIdx.x), blocks = static_cast<int32_t>(gridDim.x);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (CanPlanByLanes(launch, units)) {
    if (units > 32 || thread < 32) {
      const int32_t total = PlanByLanes<kTokensOfPage>(launch, units, plan, parts);
      if (thread == 0) total_parts = total;
    }
  } else {
    for (int32_t unit = thread; unit < units; unit += kDecodeThreads) {
      plan.tiles[unit] = DescribeUnit<kTokensOfPage>(launch, unit).end;
    }
    __syncthreads();
    ChooseParts(launch, units, plan);
    __syncthreads();
    if (thread < 32) {
      const int32_t total = SumParts(units, plan);
      if (thread == 0) total_parts = total;
    }
    __syncthreads();
    for (int32_t unit = thread; unit < units; unit += kDecodeThreads) {
      TakePart(launch, unit, plan.first_part[unit], plan.final_parts[unit],
               DescribeUnit<kTokensOfPage>(launch, unit), parts);
    }
  }
  __syncthreads();
  return total_parts > block ? (total_parts - block - 1) / blocks + 1 : 0;
}

}  // namespace retroinfer::cuda
