// Three kernels. WeighPages reads the codes: a block takes kCandidatesOfPart candidates of one
// (sequence, KV head). A warp multiplies the levels of 16 tokens of one cluster by the group's
// turned queries, padded to 8 heads, on tensor cores, and adds up pages among its lanes: 16 tokens
// from a multiple of 16 on are whole pages. Which places the pages have follows from the entries of
// all candidates before them, which each block adds up itself. SelectRow (row_select.cuh) chooses
// among the pages, whose masses are scores of places. FindRests adds up what is left.
//
// Invariants:
// * What is added in which order depends on the row alone: a page is added up by one warp, the same
//   way wherever it lies in a part.
// * Turned queries are divided by their lengths, so that f16 holds them to 2^-11; levels are exact.
// Bound by memory for many rows: d / 4 + 4 bytes a token of a candidate; for few by latency.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/cuda/cuda_kv_format.h"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/cuda/meta_runs.cuh"
#include "gpu_worker/ops/index/cuda/page_select.h"
#include "gpu_worker/ops/index/cuda/row_select.cuh"
#include "gpu_worker/ops/index/cuda/turned_vector.cuh"
#include "gpu_worker/ops/index/page_select_check.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
static_assert(kMaxGroup <= kWarps);          // a warp turns a query
constexpr int kCandidatesOfPart = 32;        // a lane each
constexpr int kTileTokens = 16;              // rows of a product
constexpr int32_t kMaxAloneCandidates = 3072;  // of a row that one block chooses for
constexpr int kRestThreads = 128;

struct WeighParams {
  MetaRuns runs;
  size_t factors_offset;  // in a block's codes
  const __nv_bfloat16* queries;
  int64_t query_stride;
  const MetaIndexView* indexes;
  uint32_t layer;
  int32_t group;
  float scale;
  float* scores;
  int64_t max_clusters;
  const int32_t* candidates;
  const int32_t* num_candidates;
  int64_t max_candidates;
  int32_t per_page;
  int64_t max_pages;
  float* masses;
  float* rests;
  ChosenPage* pages;
  int32_t* first_pages;
  int32_t* num_pages;
  int32_t* num_tokens;
};

// What a part has of its candidates, and of the queries.
template <int kDim>
struct WeighShared {
  alignas(16) __half turned[kMaxGroup][kDim];  // of length 1; zeros behind the group
  float product_scale[kMaxGroup];              // of such a product, to be a logit
  float half_variance[kMaxGroup];              // of a logit's error, over error^2
  float scores[kMaxGroup][kCandidatesOfPart];
  int32_t number[kCandidatesOfPart];  // the cluster's block's, in the index
  int32_t first_code[kCandidatesOfPart];
  MetaBlockId blocks[kCandidatesOfPart][2];  // that hold the first code, and those behind it
  int32_t num_tokens[kCandidatesOfPart];
  PageId page[kCandidatesOfPart];
  int32_t first_place[kCandidatesOfPart];
  int32_t first_tile[kCandidatesOfPart];
  int32_t num_tiles;
  int32_t end_place;
  int32_t pages_of_warp[kWarps];   // of candidates before the part
  int32_t tokens_of_warp[kWarps];
};

// The row, and the candidates of it that a block works on.
struct Part {
  int64_t row;
  uint32_t head;
  MetaIndexView index;
  int32_t num_candidates;  // of the row
  int32_t first;

  __device__ explicit Part(const WeighParams& params)
      : row(static_cast<int64_t>(blockIdx.z) * gridDim.x + blockIdx.x),
        head(blockIdx.x),
        index(params.indexes[blockIdx.z]),
        num_candidates(params.max_candidates == 0
                           ? 0
                           : static_cast<int32_t>(min(int64_t{params.num_candidates[row]},
                                                      params.max_candidates))),
        first(static_cast<int32_t>(blockIdx.y) * kCandidatesOfPart) {}
  __device__ bool is_last() const { return first + kCandidatesOfPart >= num_candidates; }
};

__device__ MetaBlockId BlockOf(const MetaIndexView& index, int32_t number) {
  if (number < 0 || number >= index.num_blocks) __trap();
  return index.block_ids[number];
}

// Turns the group's queries, a warp each.
template <int kDim>
__device__ void TurnQueries(const WeighParams& params, const Part& part,
                            WeighShared<kDim>& shared) {
  constexpr int kPerLane = kDim / 32;
  const int head = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  if (head >= kMaxGroup) return;
  float channels[kPerLane] = {};
  float squares = 0;
  if (head < params.group) {
    const __nv_bfloat16* const query =
        params.queries + blockIdx.z * params.query_stride +
        (static_cast<int64_t>(part.head) * params.group + head) * kDim + lane * kPerLane;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      channels[j] = __bfloat162float(query[j]);
      squares += channels[j] * channels[j];
    }
  }
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(kAllLanes, squares, step);
  TurnedVector<kDim>::Turn(channels);
  const float length = sqrtf(squares);
  const float factor = length > 0 ? rsqrtf(static_cast<float>(kDim)) / length : 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    shared.turned[head][lane * kPerLane + j] = __float2half_rn(channels[j] * factor);
  }
  if (lane != 0) return;
  shared.product_scale[head] = length * params.scale;
  shared.half_variance[head] =
      0.5f * params.scale * params.scale * squares / static_cast<float>(kDim);
}

// Adds up the pages and tokens of the candidates before this part, which the threads share.
template <int kDim>
__device__ void CountBefore(const WeighParams& params, const Part& part,
                            WeighShared<kDim>& shared) {
  const int32_t* const candidates = params.candidates + part.row * params.max_candidates;
  int32_t num_pages = 0, num_tokens = 0;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < part.first; i += kThreads) {
    const auto cluster = static_cast<uint32_t>(candidates[i]);
    const MetaBlockId block =
        BlockOf(part.index, static_cast<int32_t>(cluster / kClustersPerMetaBlock));
    const auto tokens = static_cast<int32_t>(
        params.runs.Entries(block, params.layer, part.head)[cluster % kClustersPerMetaBlock]
            .num_tokens);
    num_tokens += tokens;
    num_pages += (tokens + params.per_page - 1) / params.per_page;
  }
  num_pages = __reduce_add_sync(kAllLanes, num_pages);
  num_tokens = __reduce_add_sync(kAllLanes, num_tokens);
  if (threadIdx.x % 32 != 0) return;
  shared.pages_of_warp[threadIdx.x / 32] = num_pages;
  shared.tokens_of_warp[threadIdx.x / 32] = num_tokens;
}

// The sum over the lanes before this one.
__device__ int32_t SumBefore(int32_t value) {
  int32_t sum = value;
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(kAllLanes, sum, step);
    if (static_cast<int>(threadIdx.x % 32) >= step) sum += other;
  }
  return sum - value;
}

// One warp reads the part's own candidates, a lane each. `end_place` is left to count from 0.
template <int kDim>
__device__ void ReadCandidates(const WeighParams& params, const Part& part,
                               WeighShared<kDim>& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int32_t at = part.first + lane;
  const bool is_candidate = at < part.num_candidates;
  MetaEntry entry{};
  int32_t number = 0, first_code = 0;
  if (is_candidate) {
    const auto cluster =
        static_cast<uint32_t>(params.candidates[part.row * params.max_candidates + at]);
    const uint32_t in_block = cluster % kClustersPerMetaBlock;
    number = static_cast<int32_t>(cluster / kClustersPerMetaBlock);
    const MetaBlockId block = BlockOf(part.index, number);
    entry = params.runs.Entries(block, params.layer, part.head)[in_block];
    first_code = params.runs.FirstCodes(block, params.layer, part.head)[in_block];
    for (int g = 0; g < params.group; ++g) {
      shared.scores[g][lane] =
          params.scores[(part.row * params.group + g) * params.max_clusters + cluster];
    }
    const CodePlace place = CodePlaceOf(number, first_code, 0);
    shared.blocks[lane][0] = BlockOf(part.index, place.block);
    shared.blocks[lane][1] =
        part.index.block_ids[min(place.block + 1, part.index.num_blocks - 1)];
  }
  const auto tokens = static_cast<int32_t>(entry.num_tokens);
  const int32_t pages = (tokens + params.per_page - 1) / params.per_page;
  const int32_t tiles = (tokens + kTileTokens - 1) / kTileTokens;
  const int32_t first_place = SumBefore(pages), first_tile = SumBefore(tiles);
  shared.number[lane] = number;
  shared.first_code[lane] = first_code;
  shared.num_tokens[lane] = tokens;
  shared.page[lane] = entry.first_page;
  shared.first_place[lane] = first_place;
  shared.first_tile[lane] = first_tile;
  if (lane != 31) return;
  shared.num_tiles = first_tile + tiles;
  shared.end_place = first_place + pages;
}

// Turns counted places into places of the row, and ends the row behind its last candidate.
template <int kDim>
__device__ int32_t PlacePages(const WeighParams& params, const Part& part,
                              const WeighShared<kDim>& shared) {
  int32_t before = 0, tokens = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    before += shared.pages_of_warp[i];
    tokens += shared.tokens_of_warp[i];
  }
  const int32_t end = before + shared.end_place;
  if (end > params.max_pages) __trap();  // As the CPU's RI_CHECK.
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread < kCandidatesOfPart && part.first + thread < part.num_candidates) {
    params.first_pages[part.row * params.max_candidates + part.first + thread] =
        before + shared.first_place[thread];
  }
  if (!part.is_last()) return before;
  // Places are chosen from 64 at a time.
  const int32_t padded = (end + 63) / 64 * 64;
  for (int32_t i = end + thread % 64; i < padded; i += 64) {
    for (int32_t g = thread / 64; g < params.group; g += kThreads / 64) {
      params.masses[(part.row * params.group + g) * params.max_pages + i] = -INFINITY;
    }
  }
  if (thread == 0) {
    for (const int32_t of_candidate : shared.num_tokens) tokens += of_candidate;
    params.num_pages[part.row] = end;
    params.num_tokens[part.row] = tokens;
  }
  return before;
}

// The codes of 16 tokens of one cluster, as a lane reads them: of tokens lane / 4 and lane / 4 + 8,
// quarter lane % 4. Tokens that are not there have codes of another one.
template <int kDim>
struct Tile {
  static constexpr int kWords = kDim / 64;  // of 16 channels
  int32_t candidate;  // of the part; -1: no tile
  int32_t first;      // token of the cluster
  uint32_t words[2][kWords];
  TokenCodeFactors factors[2];
};

template <int kDim>
__device__ Tile<kDim> ReadTile(const WeighParams& params, const Part& part, int32_t number,
                               int32_t first_tile_of_lane, const WeighShared<kDim>& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  Tile<kDim> tile;
  tile.candidate = -1;
  if (number >= shared.num_tiles) return tile;
  // The last candidate that does not begin behind it: those without tokens come before it.
  const int c = __popc(__ballot_sync(kAllLanes, first_tile_of_lane <= number)) - 1;
  tile.candidate = c;
  tile.first = (number - shared.first_tile[c]) * kTileTokens;
  const int32_t first_code = shared.first_code[c];
  const int32_t first_block = CodePlaceOf(shared.number[c], first_code, 0).block;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int32_t token = min(tile.first + lane / 4 + 8 * r, shared.num_tokens[c] - 1);
    const CodePlace place =
        CodePlaceOf(shared.number[c], first_code, static_cast<uint32_t>(token));
    const int32_t ahead = place.block - first_block;
    const MetaBlockId block =
        ahead < 2 ? shared.blocks[c][ahead] : BlockOf(part.index, place.block);
    const std::byte* const codes = params.runs.Codes(block, params.layer, part.head);
    const std::byte* const quarter =
        codes + place.in_block * (kDim / 4) + lane % 4 * (kDim / 16);
    if constexpr (kDim == 128) {
      const uint2 words = __ldcs(reinterpret_cast<const uint2*>(quarter));
      tile.words[r][0] = words.x;
      tile.words[r][1] = words.y;
    } else {
      tile.words[r][0] = __ldcs(reinterpret_cast<const uint32_t*>(quarter));
    }
    const uint32_t factors = __ldcs(
        reinterpret_cast<const uint32_t*>(codes + params.factors_offset) + place.in_block);
    tile.factors[r] = {static_cast<uint16_t>(factors & 0xffff),
                       static_cast<uint16_t>(factors >> 16)};
  }
  return tile;
}

// Pairs of channels in the order in which UnpackWord gives them: (0, 2), (4, 6), (8, 10), (12, 14),
// and the same of odd channels.
__device__ constexpr int ChannelOf(int pair, int which) {
  return pair / 4 + pair % 4 * 4 + 2 * which;
}

// The levels of 16 channels as pairs of f16, whose lower bytes are all zero.
__device__ void UnpackWord(uint32_t word, uint32_t (&pairs)[8]) {
  static_assert(kSmallLevel == 3 && kLargeLevel == 10);
  constexpr uint32_t kUpperBytes = 0x4942c2c9u;  // of 10, 3, -3 and -10, by code from the right
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    const uint32_t codes = word >> (2 * odd) & 0x33333333u;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t levels = __byte_perm(kUpperBytes, 0, codes >> (16 * half));
      pairs[4 * odd + 2 * half] = __byte_perm(levels, 0, 0x1404);
      pairs[4 * odd + 2 * half + 1] = __byte_perm(levels, 0, 0x3424);
    }
  }
}

// The turned queries of head lane / 4, for the channels that this lane reads of codes.
template <int kDim>
struct QueryPairs {
  uint32_t pairs[Tile<kDim>::kWords][8];

  __device__ explicit QueryPairs(const WeighShared<kDim>& shared) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const __half* const query = shared.turned[lane / 4] + lane % 4 * (kDim / 4);
#pragma unroll
    for (int w = 0; w < Tile<kDim>::kWords; ++w) {
#pragma unroll
      for (int p = 0; p < 8; ++p) {
        const __half2 pair = __halves2half2(query[16 * w + ChannelOf(p, 0)],
                                            query[16 * w + ChannelOf(p, 1)]);
        pairs[w][p] = *reinterpret_cast<const uint32_t*>(&pair);
      }
    }
  }
};

// products[2 r + h]: of token lane / 4 + 8 r and head 2 (lane % 4) + h.
template <int kDim>
__device__ void Multiply(const Tile<kDim>& tile, const QueryPairs<kDim>& query,
                         float (&products)[4]) {
#pragma unroll
  for (int w = 0; w < Tile<kDim>::kWords; ++w) {
    uint32_t low[8], high[8];
    UnpackWord(tile.words[0][w], low);
    UnpackWord(tile.words[1][w], high);
#pragma unroll
    for (int p = 0; p < 8; p += 2) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};\n"
          : "+f"(products[0]), "+f"(products[1]), "+f"(products[2]), "+f"(products[3])
          : "r"(low[p]), "r"(high[p]), "r"(low[p + 1]), "r"(high[p + 1]),
            "r"(query.pairs[w][p]), "r"(query.pairs[w][p + 1]));
    }
  }
}

// Logarithms of the sums over a page, of exp(logits) and of exp(lowered); all lanes of a page get
// them. `logits` as products of Multiply; a page has `per_page` tokens, 16 or a divisor of 8.
__device__ void SumPages(int32_t per_page, float (&logits)[4], float (&lowered)[4]) {
  const int lanes = min(per_page, 8);
  float max[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    max[i] = logits[i];
    for (int step = 1; step < lanes; step *= 2) {
      max[i] = fmaxf(max[i], __shfl_xor_sync(kAllLanes, max[i], 4 * step));
    }
  }
  if (per_page == kTileTokens) {
    max[0] = max[2] = fmaxf(max[0], max[2]);
    max[1] = max[3] = fmaxf(max[1], max[3]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool is_empty = max[i] == -INFINITY;
    logits[i] = is_empty ? 0 : Exp(logits[i] - max[i]);
    lowered[i] = is_empty ? 0 : Exp(lowered[i] - max[i]);
    for (int step = 1; step < lanes; step *= 2) {
      logits[i] += __shfl_xor_sync(kAllLanes, logits[i], 4 * step);
      lowered[i] += __shfl_xor_sync(kAllLanes, lowered[i], 4 * step);
    }
  }
  if (per_page == kTileTokens) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      logits[h] = logits[2 + h] = logits[h] + logits[2 + h];
      lowered[h] = lowered[2 + h] = lowered[h] + lowered[2 + h];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    logits[i] = max[i] + __logf(logits[i]);
    lowered[i] = max[i] + __logf(lowered[i]);
  }
}

// Weighs and writes the pages of one tile. `before`: places before the part's.
template <int kDim>
__device__ void WeighTile(const WeighParams& params, const Part& part, const Tile<kDim>& tile,
                          const QueryPairs<kDim>& query, int32_t before,
                          const WeighShared<kDim>& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int c = tile.candidate;
  const int32_t num_tokens = shared.num_tokens[c];
  float products[4] = {}, logits[4], lowered[4];
  Multiply(tile, query, products);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float scale = __half2float(__ushort_as_half(tile.factors[r].scale));
    const float error = __half2float(__ushort_as_half(tile.factors[r].error));
    const bool is_token = tile.first + lane / 4 + 8 * r < num_tokens;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int head = 2 * (lane % 4) + h;
      const float logit =
          shared.scores[head][c] + shared.product_scale[head] * scale * products[2 * r + h];
      logits[2 * r + h] = is_token ? logit : -INFINITY;
      lowered[2 * r + h] =
          is_token ? logit - shared.half_variance[head] * error * error : -INFINITY;
    }
  }
  SumPages(params.per_page, logits, lowered);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int32_t first = tile.first + lane / 4 + 8 * r;
    if (first % params.per_page != 0 || first >= num_tokens) continue;
    const int32_t in_cluster = first / params.per_page;
    const int64_t place = before + shared.first_place[c] + in_cluster;
    if (lane % 4 == 0) {
      params.pages[part.row * params.max_pages + place] = {
          shared.page[c] + static_cast<PageId>(in_cluster),
          static_cast<uint16_t>(min(params.per_page, num_tokens - first)),
          static_cast<uint16_t>(in_cluster)};
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int head = 2 * (lane % 4) + h;
      if (head >= params.group) continue;
      const int64_t at = (part.row * params.group + head) * params.max_pages + place;
      params.masses[at] = logits[2 * r + h];
      params.rests[at] = lowered[2 * r + h];
    }
  }
}

// grid: [kv_heads, parts, batch], as in centroid_score.cu
template <int kDim>
__global__ void __launch_bounds__(kThreads) WeighPages(const WeighParams params) {
  __shared__ WeighShared<kDim> shared;
  AllowNextKernel();
  AwaitLastKernel();
  const Part part(params);
  if (part.first >= part.num_candidates) {
    if (part.first == 0 && threadIdx.x == 0) {
      params.num_pages[part.row] = params.num_tokens[part.row] = 0;
    }
    return;
  }
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  if (warp == kWarps - 1) ReadCandidates(params, part, shared);
  CountBefore(params, part, shared);
  TurnQueries(params, part, shared);
  __syncthreads();
  const int32_t before = PlacePages(params, part, shared);
  const QueryPairs<kDim> query(shared);
  const int32_t first_tile = shared.first_tile[lane];
  Tile<kDim> tile = ReadTile(params, part, warp, first_tile, shared);
  for (int32_t number = warp; tile.candidate >= 0; number += kWarps) {
    const Tile<kDim> next = ReadTile(params, part, number + kWarps, first_tile, shared);
    WeighTile(params, part, tile, query, before, shared);
    tile = next;
  }
}

// The choice of pages of a row, for SelectRow: places are those of the pages.
struct PageJob {
  WeighParams weighed;
  const SelectionBudget* budgets;
  int32_t num_kv_heads;
  int64_t max_chosen;
  ChosenPage* chosen;
  int32_t* num_chosen;
  int64_t shared_ranks;

  __device__ RowPlan Plan(int64_t row) const {
    const auto wanted = static_cast<int32_t>(
        min(max(int64_t{budgets[row / num_kv_heads].num_pages}, int64_t{0}), max_chosen));
    const bool is_cut =
        weighed.max_candidates > 0 && weighed.num_candidates[row] > kMaxAloneCandidates;
    return {(weighed.num_pages[row] + 63) / 64 * 64, is_cut, {wanted, 0},
            GroupRanking::kMaxOfSoftmax};
  }
  __device__ RowScores Scores(int64_t row, const Places& places) const {
    return {weighed.masses + row * weighed.group * weighed.max_pages + places.begin,
            weighed.max_pages, weighed.group, places.count};
  }
  // More than fit lie where the first head's masses were.
  __device__ float* Ranks(int64_t row, const Places& places, float* shared) const {
    return places.count <= shared_ranks
               ? shared
               : weighed.masses + row * weighed.group * weighed.max_pages + places.begin;
  }
  __device__ void Take(int64_t row, int /*k*/, int32_t at, int32_t place) const {
    chosen[row * max_chosen + at] = weighed.pages[row * weighed.max_pages + place];
    for (int32_t g = 0; g < weighed.group; ++g) {
      weighed.rests[(row * weighed.group + g) * weighed.max_pages + place] = -INFINITY;
    }
  }
  __device__ void SetSize(int64_t row, int k, int32_t size) const {
    if (k == 0) num_chosen[row] = size;
  }
};

// A thread for each candidate and query head. grid: [query_heads, parts, batch]
__global__ void __launch_bounds__(kRestThreads) FindRests(const WeighParams params) {
  const int64_t query_row = static_cast<int64_t>(blockIdx.z) * gridDim.x + blockIdx.x;
  const int64_t row = query_row / params.group;
  const auto at = static_cast<int32_t>(blockIdx.y * kRestThreads + threadIdx.x);
  const int32_t num_candidates =
      static_cast<int32_t>(min(int64_t{params.num_candidates[row]}, params.max_candidates));
  if (at >= num_candidates) return;
  const auto cluster = static_cast<uint32_t>(params.candidates[row * params.max_candidates + at]);
  const int32_t* const first_pages = params.first_pages + row * params.max_candidates;
  const int32_t first = first_pages[at];
  const int32_t end = at + 1 < num_candidates ? first_pages[at + 1] : params.num_pages[row];
  const MetaBlockId block = BlockOf(params.indexes[blockIdx.z],
                                    static_cast<int32_t>(cluster / kClustersPerMetaBlock));
  const uint32_t num_tokens =
      params.runs
          .Entries(block, params.layer, blockIdx.x / static_cast<uint32_t>(params.group))
              [cluster % kClustersPerMetaBlock]
          .num_tokens;
  const float* const rests = params.rests + query_row * params.max_pages;
  ExpSum sum{-INFINITY, 0};
  for (int32_t place = first; place < end; ++place) {
    const float rest = rests[place];
    if (rest > -INFINITY) sum = Merge(sum, {rest, 1});
  }
  params.scores[query_row * params.max_clusters + cluster] =
      sum.max == -INFINITY
          ? -INFINITY
          : sum.max + logf(sum.sum) - logf(static_cast<float>(num_tokens));
}

absl::Status CheckCudaPageSelect(const PageSelectArgs& args) {
  RETURN_IF_ERROR(CheckPageSelect(args, DType::kBf16));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  const uint32_t per_page = args.pool.geometry.tokens_per_page();
  return CheckArg(per_page <= kTileTokens, "page_select", "needs at most ", kTileTokens,
                  " tokens a page, has ", per_page);
}

WeighParams ParamsOf(const PageSelectArgs& args) {
  const KvGeometry& geometry = args.pool.geometry;
  const auto num_heads = static_cast<int64_t>(geometry.num_kv_heads);
  return {
      .runs = MetaRuns(args.pool),
      .factors_offset = TokenCodeLayout(geometry.format, geometry.head_dim).factors_offset,
      .queries = reinterpret_cast<const __nv_bfloat16*>(args.queries.data),
      .query_stride = args.queries.row_stride,
      .indexes = args.indexes.device_data(),
      .layer = args.layer,
      .group = static_cast<int32_t>(args.queries.cols / geometry.head_dim / num_heads),
      .scale = args.scale,
      .scores = args.scores.device_data(),
      .max_clusters = args.max_clusters,
      .candidates = args.candidates.device_data(),
      .num_candidates = args.num_candidates.device_data(),
      .max_candidates = args.max_candidates,
      .per_page = static_cast<int32_t>(geometry.tokens_per_page()),
      .max_pages = args.max_pages,
      .masses = args.scratch.masses.device_data(),
      .rests = args.scratch.rests.device_data(),
      .pages = args.scratch.pages.device_data(),
      .first_pages = args.scratch.first_pages.device_data(),
      .num_pages = args.scratch.num_pages.device_data(),
      .num_tokens = args.num_tokens.device_data(),
  };
}

}  // namespace

absl::Status PageSelect(CudaStream& stream, const PageSelectArgs& args) {
  RETURN_IF_ERROR(CheckCudaPageSelect(args));
  if (args.queries.rows == 0) return absl::OkStatus();
  const KvGeometry& geometry = args.pool.geometry;
  const WeighParams params = ParamsOf(args);
  const int64_t parts = std::max<int64_t>(1, DivideUp(args.max_candidates, kCandidatesOfPart));
  const dim3 grid(geometry.num_kv_heads, static_cast<uint32_t>(parts),
                  static_cast<uint32_t>(args.queries.rows));
  const auto weigh = geometry.head_dim == 128 ? WeighPages<128> : WeighPages<64>;
  RETURN_IF_ERROR(CudaStatus(
      LaunchDependent({.grid = grid, .block = dim3(kThreads), .stream = stream.get()}, weigh,
                      params),
      "page_select"));
  const PageJob job{.weighed = params,
                    .budgets = args.budgets.device_data(),
                    .num_kv_heads = static_cast<int32_t>(geometry.num_kv_heads),
                    .max_chosen = args.max_chosen,
                    .chosen = args.chosen.device_data(),
                    .num_chosen = args.num_chosen.device_data(),
                    .shared_ranks = std::min(args.max_pages, kMaxSharedRanks)};
  const auto num_rows = static_cast<int32_t>(args.queries.rows * geometry.num_kv_heads);
  const bool cut = StartsKernelsEarly() && args.max_candidates > kMaxAloneCandidates;
  const auto choose = cut ? LaunchSelection<kClusterParts, PageJob> : LaunchSelection<1, PageJob>;
  return CudaStatus(choose(stream.get(), num_rows, params.group, job.shared_ranks, job),
                    "page_select");
}

absl::Status CandidateRest(CudaStream& stream, const PageSelectArgs& args) {
  RETURN_IF_ERROR(CheckCudaPageSelect(args));
  if (args.queries.rows == 0 || args.max_candidates == 0) return absl::OkStatus();
  const WeighParams params = ParamsOf(args);
  const dim3 grid(args.pool.geometry.num_kv_heads * static_cast<uint32_t>(params.group),
                  static_cast<uint32_t>(DivideUp(args.max_candidates, kRestThreads)),
                  static_cast<uint32_t>(args.queries.rows));
  FindRests<<<grid, kRestThreads, 0, stream.get()>>>(params);
  return LaunchStatus("candidate_rest");
}

}  // namespace retroinfer::cuda
