// Two kernels. WeighPages reads the codes: a block takes kCandidatesOfPart candidates of one
// (sequence, KV head). A warp multiplies the levels of 16 tokens of one cluster by the group's
// turned queries, padded to 8 heads (larger groups take several launches), on tensor cores, and
// adds up pages among its lanes: 16 tokens from a multiple of 16 on are whole pages. Which places
// the pages have follows from the entries of all candidates before them, which each block adds up
// itself. SelectRow (row_select.cuh) chooses among the pages, whose masses are scores of places.
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
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/index/cuda/code_products.cuh"
#include "gpu_worker/ops/index/cuda/page_select.h"
#include "gpu_worker/ops/index/cuda/page_select_params.cuh"
#include "gpu_worker/ops/index/cuda/row_select.cuh"
#include "gpu_worker/ops/index/cuda/turned_vector.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
static_assert(kProductHeads == kWarps);  // a warp turns a query
// A lane each. Blocks of 32 candidates take 37 us for 30 at batch 1 (120K tokens, an H100), and at
// batch 6 87 for 90.
constexpr int kCandidatesOfPart = 16;
constexpr int32_t kMaxAloneCandidates = 3072;  // of a row whose sums are not cut

// What a part has of its candidates, a lane each, and of the queries.
template <int kDim>
struct WeighShared {
  alignas(16) __half turned[kProductHeads][kDim];  // of length 1; zeros behind the slice
  float product_scale[kProductHeads];              // of such a product, to be a logit
  float half_variance[kProductHeads];              // of a logit's error, over error^2
  float scores[kProductHeads][32];
  int32_t number[32];  // the cluster's block's, in the index
  int32_t first_code[32];
  MetaBlockId blocks[32][2];  // that hold the first code, and those behind it
  int32_t num_tokens[32];
  PageId page[32];
  int32_t first_place[32];
  int32_t first_tile[32];
  int32_t num_tiles;
  int32_t end_place;
  int32_t pages_of_warp[kWarps - 1];  // of candidates before the part
  int32_t tokens_of_warp[kWarps - 1];
};

// The row, and the candidates of it that a block works on.
struct Part {
  int64_t row;
  uint32_t head;
  MetaIndexView index;
  int32_t num_candidates;  // of the row
  int32_t first;

  __device__ explicit Part(const PageSelectParams& params)
      : row(static_cast<int64_t>(blockIdx.z) * gridDim.x + blockIdx.x),
        head(blockIdx.x),
        index(params.indexes[blockIdx.z]),
        num_candidates(params.max_candidates == 0
                           ? 0
                           : static_cast<int32_t>(
                                 min(int64_t{params.num_candidates[row]}, params.max_candidates))),
        first(static_cast<int32_t>(blockIdx.y) * kCandidatesOfPart) {}
  __device__ bool is_last() const { return first + kCandidatesOfPart >= num_candidates; }
};

// Of a slice's head, among all query heads of the batch.
__device__ int64_t QueryRow(const PageSelectParams& params, const Part& part, int head) {
  return part.row * params.group + params.slice.first + head;
}

// This lane's channels of the query that its warp turns; of none zeros.
template <int kDim>
struct QueryChannels {
  static constexpr int kPerLane = kDim / 32;
  float channels[kPerLane] = {};

  __device__ QueryChannels(const PageSelectParams& params, const Part& part) {
    const int head = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    if (head >= params.slice.count) return;
    struct alignas(sizeof(__nv_bfloat16) * kPerLane) Loaded {
      __nv_bfloat16 numbers[kPerLane];
    };
    const Loaded loaded = reinterpret_cast<const Loaded*>(
        params.queries + blockIdx.z * params.query_stride +
        (static_cast<int64_t>(part.head) * params.group + params.slice.first + head) * kDim)[lane];
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) channels[j] = __bfloat162float(loaded.numbers[j]);
  }
};

// Turns the group's queries, a warp each.
template <int kDim>
__device__ void TurnQueries(const PageSelectParams& params, QueryChannels<kDim>& query,
                            WeighShared<kDim>& shared) {
  constexpr int kPerLane = QueryChannels<kDim>::kPerLane;
  const int head = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) squares += query.channels[j] * query.channels[j];
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(kAllLanes, squares, step);
  TurnedVector<kDim>::Turn(query.channels);
  const float length = sqrtf(squares);
  const float factor = length > 0 ? rsqrtf(static_cast<float>(kDim)) / length : 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    shared.turned[head][lane * kPerLane + j] = __float2half_rn(query.channels[j] * factor);
  }
  if (lane != 0) return;
  shared.product_scale[head] = length * params.scale;
  shared.half_variance[head] =
      0.5f * params.scale * params.scale * squares / static_cast<float>(kDim);
}

// Adds up the pages and tokens of the candidates before this part, which all warps but the last
// share. Each number is behind a load of the one before it (candidate, block, entry), so a thread
// has the loads of several candidates under way.
template <int kDim>
__device__ void CountBefore(const PageSelectParams& params, const Part& part,
                            WeighShared<kDim>& shared) {
  constexpr int kAtOnce = 8;
  constexpr int32_t kStep = kThreads - 32;
  const int32_t* const candidates = params.candidates + part.row * params.max_candidates;
  int32_t num_pages = 0, num_tokens = 0;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < part.first; i += kAtOnce * kStep) {
    uint32_t clusters[kAtOnce];
    MetaBlockId blocks[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      // Behind the end the first one is read again, and not counted.
      clusters[j] =
          static_cast<uint32_t>(candidates[i + j * kStep < part.first ? i + j * kStep : 0]);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      blocks[j] = BlockOf(part.index, static_cast<int32_t>(clusters[j] / kClustersPerMetaBlock));
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const auto tokens = static_cast<int32_t>(
          params.runs
              .Entries(blocks[j], params.layer, part.head)[clusters[j] % kClustersPerMetaBlock]
              .num_tokens);
      if (i + j * kStep >= part.first) continue;
      num_tokens += tokens;
      num_pages += (tokens + params.per_page - 1) / params.per_page;
    }
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
__device__ void ReadCandidates(const PageSelectParams& params, const Part& part,
                               WeighShared<kDim>& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int32_t at = part.first + lane;
  const bool is_candidate = lane < kCandidatesOfPart && at < part.num_candidates;
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
    for (int g = 0; g < params.slice.count; ++g) {
      shared.scores[g][lane] =
          params.scores[QueryRow(params, part, g) * params.max_clusters + cluster];
    }
    const CodePlace place = CodePlaceOf(number, first_code, 0);
    shared.blocks[lane][0] = BlockOf(part.index, place.block);
    shared.blocks[lane][1] = part.index.block_ids[min(place.block + 1, part.index.num_blocks - 1)];
  }
  const auto tokens = static_cast<int32_t>(entry.num_tokens);
  const int32_t pages = (tokens + params.per_page - 1) / params.per_page;
  const int32_t tiles = (tokens + kTileTokens - 1) / kTileTokens;
  const int32_t first_place = SumBefore(pages), first_tile = SumBefore(tiles);
  shared.number[lane] = number;
  shared.first_code[lane] = first_code;
  shared.num_tokens[lane] = tokens;
  shared.page[lane] = entry.first_place;
  shared.first_place[lane] = first_place;
  shared.first_tile[lane] = first_tile;
  if (lane != 31) return;
  shared.num_tiles = first_tile + tiles;
  shared.end_place = first_place + pages;
}

// Turns counted places into places of the row, and ends the row behind its last candidate.
template <int kDim>
__device__ int32_t PlacePages(const PageSelectParams& params, const Part& part,
                              const WeighShared<kDim>& shared) {
  int32_t before = 0, tokens = 0;
#pragma unroll
  for (int i = 0; i < kWarps - 1; ++i) {
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
    for (int32_t g = thread / 64; g < params.slice.count; g += kThreads / 64) {
      params.masses[QueryRow(params, part, g) * params.max_pages + i] = -INFINITY;
    }
  }
  if (thread == 0) {
    for (const int32_t of_candidate : shared.num_tokens) tokens += of_candidate;
    params.num_pages[part.row] = end;
    params.num_tokens[part.row] = tokens;
  }
  return before;
}

// The tile of this number in the part; all lanes of a warp take part.
template <int kDim>
__device__ Tile<kDim> ReadTile(const PageSelectParams& params, const Part& part, int32_t number,
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
    const CodePlace place = CodePlaceOf(shared.number[c], first_code, static_cast<uint32_t>(token));
    const int32_t ahead = place.block - first_block;
    const MetaBlockId block =
        ahead < 2 ? shared.blocks[c][ahead] : BlockOf(part.index, place.block);
    const std::byte* const codes = params.runs.Codes(block, params.layer, part.head);
    const std::byte* const quarter = codes + place.in_block * (kDim / 4) + lane % 4 * (kDim / 16);
    if constexpr (kDim == 256) {
      const uint4 words = __ldcs(reinterpret_cast<const uint4*>(quarter));
      tile.words[r][0] = words.x;
      tile.words[r][1] = words.y;
      tile.words[r][2] = words.z;
      tile.words[r][3] = words.w;
    } else if constexpr (kDim == 128) {
      const uint2 words = __ldcs(reinterpret_cast<const uint2*>(quarter));
      tile.words[r][0] = words.x;
      tile.words[r][1] = words.y;
    } else {
      tile.words[r][0] = __ldcs(reinterpret_cast<const uint32_t*>(quarter));
    }
    const uint32_t factors =
        __ldcs(reinterpret_cast<const uint32_t*>(codes + params.factors_offset) + place.in_block);
    tile.factors[r] = {static_cast<uint16_t>(factors & 0xffff),
                       static_cast<uint16_t>(factors >> 16)};
  }
  return tile;
}

// Weighs and writes the pages of one tile. `before`: places before the part's.
template <int kDim, int kPerPage>
__device__ void WeighTile(const PageSelectParams& params, const Part& part, const Tile<kDim>& tile,
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
  SumPages<kPerPage>(logits);
  SumPages<kPerPage>(lowered);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int32_t first = tile.first + lane / 4 + 8 * r;
    if (first % kPerPage != 0 || first >= num_tokens) continue;
    const int32_t in_cluster = first / kPerPage;
    const int64_t place = before + shared.first_place[c] + in_cluster;
    if (lane % 4 == 0) {
      params.pages[part.row * params.max_pages + place] = {
          shared.page[c] + static_cast<PageId>(in_cluster),
          static_cast<uint16_t>(min(kPerPage, num_tokens - first)),
          static_cast<uint16_t>(in_cluster)};
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int head = 2 * (lane % 4) + h;
      if (head >= params.slice.count) continue;
      const int64_t at = QueryRow(params, part, head) * params.max_pages + place;
      params.masses[at] = logits[2 * r + h];
      params.rests[at] = lowered[2 * r + h];
    }
  }
}

// grid: [kv_heads, parts, batch], as in centroid_score.cu
template <int kDim, int kPerPage>
__global__ void __launch_bounds__(kThreads) WeighPages(const PageSelectParams params) {
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
  QueryChannels<kDim> channels(params, part);  // under way while candidates are read
  if (warp == kWarps - 1) {
    ReadCandidates(params, part, shared);
  } else {
    CountBefore(params, part, shared);
  }
  TurnQueries(params, channels, shared);
  __syncthreads();
  const int32_t before = PlacePages(params, part, shared);
  const QueryPairs<kDim> query(shared.turned);
  const int32_t first_tile = shared.first_tile[lane];
  Tile<kDim> tile = ReadTile(params, part, warp, first_tile, shared);
  for (int32_t number = warp; tile.candidate >= 0; number += kWarps) {
    const Tile<kDim> next = ReadTile(params, part, number + kWarps, first_tile, shared);
    WeighTile<kDim, kPerPage>(params, part, tile, query, before, shared);
    tile = next;
  }
}

// The choice of pages of a row, for SelectRow: places are those of the pages.
struct PageJob {
  static constexpr bool kPlansEarly = false;

  PageSelectParams weighed;
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
    return {
        (weighed.num_pages[row] + 63) / 64 * 64, is_cut, {wanted, 0}, GroupRanking::kMaxOfSoftmax};
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
  struct Taker {
    const PageJob& job;
    int64_t row;
    __device__ void Take(int /*k*/, int32_t at, int32_t place) const {
      const PageSelectParams& weighed = job.weighed;
      job.chosen[row * job.max_chosen + at] = weighed.pages[row * weighed.max_pages + place];
      for (int32_t g = 0; g < weighed.group; ++g) {
        weighed.rests[(row * weighed.group + g) * weighed.max_pages + place] = -INFINITY;
      }
    }
  };
  __device__ Taker Of(int64_t row) const { return {*this, row}; }
  __device__ void SetSize(int64_t row, int k, int32_t size) const {
    if (k == 0) num_chosen[row] = size;
  }
};

template <int kDim>
auto WeighKernel(int32_t per_page) {
  return per_page == 16  ? WeighPages<kDim, 16>
         : per_page == 8 ? WeighPages<kDim, 8>
         : per_page == 4 ? WeighPages<kDim, 4>
         : per_page == 2 ? WeighPages<kDim, 2>
                         : WeighPages<kDim, 1>;
}

}  // namespace

absl::Status PageSelect(CudaStream& stream, const PageSelectArgs& args) {
  RETURN_IF_ERROR(CheckCudaPageSelect(args));
  if (args.queries.rows == 0) return absl::OkStatus();
  const KvGeometry& geometry = args.pool.geometry;
  PageSelectParams params = ParamsOf(args);
  const int64_t parts = std::max<int64_t>(1, DivideUp(args.max_candidates, kCandidatesOfPart));
  const dim3 grid(geometry.num_kv_heads, static_cast<uint32_t>(parts),
                  static_cast<uint32_t>(args.queries.rows));
  const auto weigh = geometry.head_dim == 256   ? WeighKernel<256>(params.per_page)
                     : geometry.head_dim == 128 ? WeighKernel<128>(params.per_page)
                                                : WeighKernel<64>(params.per_page);
  // Each slice writes the same places of pages.
  RETURN_IF_ERROR(ForSlices(params.group, kProductHeads, [&](const GroupSlice& slice) {
    params.slice = slice;
    return CudaStatus(
        LaunchDependent({.grid = grid, .block = dim3(kThreads), .stream = stream.get()}, weigh,
                        params),
        "page_select");
  }));
  const PageJob job{.weighed = params,
                    .budgets = args.budgets.device_data(),
                    .num_kv_heads = static_cast<int32_t>(geometry.num_kv_heads),
                    .max_chosen = args.max_chosen,
                    .chosen = args.chosen.device_data(),
                    .num_chosen = args.num_chosen.device_data(),
                    .shared_ranks = std::min(args.max_pages, kMaxSharedRanks)};
  const auto num_rows = static_cast<int32_t>(args.queries.rows * geometry.num_kv_heads);
  return CudaStatus(
      LaunchSelection(stream.get(), num_rows, params.group, args.max_pages,
                      args.max_candidates > kMaxAloneCandidates, job.shared_ranks, job),
      "page_select");
}

}  // namespace retroinfer::cuda
