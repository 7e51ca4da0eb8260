// Two kernels. A block of the first one has a tile of a run's queries of one KV head, 128 of them
// (64 where a head has 256 numbers), and a part of the run's list: tiles of 64 tokens come from
// wherever their pages lie, one ahead, in eight bits as they are stored, and become bf16 in shared
// memory, exactly. Which parts a list has depends on its length alone, so that a row's result
// depends neither on the other runs of a step nor on the device. The second kernel merges the parts
// with what was there. Bound by the tensor cores.
#include <cuda_bf16.h>

#include <algorithm>
#include <numbers>
#include <type_traits>

#include "common/kv/kv_geometry.h"
#include "gpu_worker/ops/attention/cuda/query_tile.cuh"
#include "gpu_worker/ops/attention/cuda/shared_page_attention_kernels.h"
#include "gpu_worker/ops/cuda/eight_bit_vector.cuh"
#include "gpu_worker/ops/cuda/warp_mma.cuh"

namespace retroinfer::cuda {
namespace {

constexpr int kMinStepsOfPart = 8;  // tiles of tokens
constexpr int kRefSlots = 3;        // of the tile that is multiplied, the one that comes, the next

// Keys and values of an element, int8_t or __nv_bfloat16, as pages have them.
template <typename Element, int kHeadDim>
struct Pages {
  static constexpr bool kWidens = std::is_same_v<Element, int8_t>;
  static constexpr int kVectorBytes = kHeadDim * static_cast<int>(sizeof(Element));
  static constexpr int kPiecesOfVector = kVectorBytes / 16;
  static constexpr int kTokens = static_cast<int>(kPageBytes) / (2 * kVectorBytes);
  static constexpr int kOfTile = kTileKeys / kTokens;
  static constexpr int kTileBytes = 2 * kTileKeys * kVectorBytes;  // as they are stored
  static_assert(kTokens <= kTileKeys && kOfTile <= kQueryThreads);
};

template <typename Element, int kHeadDim>
struct alignas(128) Shared {
  using P = Pages<Element, kHeadDim>;
  __nv_bfloat16 queries[kTileQueries<kHeadDim>][kHeadDim];
  std::byte stages[2][P::kTileBytes];  // keys, then values
  __nv_bfloat16 widened[P::kWidens ? 2 * kTileKeys : 1][kHeadDim];
  PageRef refs[kRefSlots][P::kOfTile];
};

// The tiles of a list that a part has: [begin, end).
struct Steps {
  int begin;
  int end;
};
struct Parts {
  int count;
  int steps_of_part;

  __device__ Parts(int num_pages, int pages_of_tile) {
    const int steps = (num_pages + pages_of_tile - 1) / pages_of_tile;
    count = min(kMaxSharedParts, (steps + kMinStepsOfPart - 1) / kMinStepsOfPart);
    steps_of_part = count == 0 ? 0 : (steps + count - 1) / count;
  }
  __device__ Steps Of(int part, int num_pages, int pages_of_tile) const {
    const int steps = (num_pages + pages_of_tile - 1) / pages_of_tile;
    return {min(steps, part * steps_of_part), min(steps, (part + 1) * steps_of_part)};
  }
};

// What a block works on.
struct Unit {
  RowRun run;
  int head;
  int first_query;  // of the run's, which are its rows' groups one after the other
  const PageRef* pages;
  int num_pages;
};

template <int kHeadDim>
__device__ int TilesOfRun(int group) {
  return (kMaxRowsOfRun * group + kTileQueries<kHeadDim> - 1) / kTileQueries<kHeadDim>;
}

template <typename Element, int kHeadDim>
class Worker {
 public:
  using P = Pages<Element, kHeadDim>;

  __device__ Worker(const SharedPageLaunch& launch, const Unit& unit,
                    Shared<Element, kHeadDim>& shared)
      : launch_(launch), unit_(unit), shared_(shared) {}

  __device__ void CopyQueries() const {
    constexpr int kVectors = kHeadDim / 8;
    const auto* queries = reinterpret_cast<const __nv_bfloat16*>(launch_.queries);
    const uint32_t tile = SharedAddress(shared_.queries);
    for (int i = threadIdx.x; i < kTileQueries<kHeadDim> * kVectors; i += kQueryThreads) {
      const int place = i / kVectors, column = i % kVectors * 8;
      const int query = unit_.first_query + place, row = query / launch_.group;
      const bool exists = row < unit_.run.num_rows;
      const int64_t at = (unit_.run.first_row + row) * launch_.query_stride +
                         (int64_t{unit_.head} * launch_.group + query % launch_.group) * kHeadDim;
      CopyAsync16(tile + TileOffset<kHeadDim>(place, column), queries + (exists ? at + column : 0),
                  exists ? 16 : 0);
    }
  }

  // Writes where the pages of a tile are.
  __device__ void Find(int step) const {
    const auto i = static_cast<int>(threadIdx.x);
    if (i >= P::kOfTile) return;
    const int page = step * P::kOfTile + i;
    shared_.refs[step % kRefSlots][i] =
        page < unit_.num_pages ? unit_.pages[page] : PageRef{nullptr, 0, 0};
  }

  // Begins to copy a tile whose pages are found. Tokens that are not there become zero.
  __device__ void Copy(int step) const {
    const PageRef* refs = shared_.refs[step % kRefSlots];
    const uint32_t stage = SharedAddress(shared_.stages[step % 2]);
    constexpr int kOfKeys = kTileKeys * P::kPiecesOfVector;
#pragma unroll 4
    for (int i = threadIdx.x; i < 2 * kOfKeys; i += kQueryThreads) {
      const bool is_value = i >= kOfKeys;
      const int token = i % kOfKeys / P::kPiecesOfVector, piece = i % P::kPiecesOfVector;
      const PageRef ref = refs[token / P::kTokens];
      const int place = token % P::kTokens;
      const bool exists = place < ref.num_tokens;
      const std::byte* source =
          ref.page + (is_value ? kPageBytes / 2 : 0) + place * P::kVectorBytes + piece * 16;
      const uint32_t offset = P::kWidens
                                  ? static_cast<uint32_t>(token * P::kVectorBytes + piece * 16)
                                  : TileOffset<kHeadDim>(token, piece * 8);
      CopyAsync16(stage + (is_value ? P::kTileBytes / 2 : 0) + offset,
                  exists ? source : launch_.queries, exists ? 16 : 0);
    }
  }

  // Makes bf16 numbers of a tile that has come.
  __device__ void Widen(int step) const {
    const std::byte* stage = shared_.stages[step % 2];
    auto* const tile = reinterpret_cast<std::byte*>(shared_.widened);
    constexpr int kPieces = P::kPiecesOfVector;
#pragma unroll 4
    for (int i = threadIdx.x; i < 2 * kTileKeys * kPieces; i += kQueryThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      const uint4 bytes = *reinterpret_cast<const uint4*>(stage + i * 16);
      const uint2 low = make_uint2(bytes.x, bytes.y), high = make_uint2(bytes.z, bytes.w);
      const int own = piece == 0 ? CodeOfFirst(low) : 0;
      const int code = __shfl_sync(~0u, own, static_cast<int>(threadIdx.x % 32) - piece);
      *reinterpret_cast<Bf16x8*>(tile + TileOffset<kHeadDim>(row, piece * 16)) =
          DecodeEight(low, piece, code);
      *reinterpret_cast<Bf16x8*>(tile + TileOffset<kHeadDim>(row, piece * 16 + 8)) =
          DecodeEight(high, 1, code);
    }
  }

  // Scores of tokens that are not there become -inf.
  __device__ void Mask(int step, typename QueryTile<kHeadDim, true>::Scores& scores) const {
    const PageRef* refs = shared_.refs[step % kRefSlots];
    const auto lane = static_cast<int>(threadIdx.x % 32);
    const auto exists = [&](int token) {
      return token % P::kTokens < refs[token / P::kTokens].num_tokens;
    };
    const uint32_t low = __ballot_sync(~0u, exists(lane));
    const uint32_t high = __ballot_sync(~0u, exists(lane + 32));
    if ((low & high) == ~0u) return;
#pragma unroll
    for (int n = 0; n < kTileKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = 8 * n + 2 * (lane % 4) + i;
        if (((n < 4 ? low : high) >> (token % 32) & 1) != 0) continue;
#pragma unroll
        for (int tile = 0; tile < kRowTiles<kHeadDim>; ++tile) {
          scores[tile][n][i] = scores[tile][n][2 + i] = -INFINITY;
        }
      }
    }
  }

 private:
  const SharedPageLaunch& launch_;
  const Unit& unit_;
  Shared<Element, kHeadDim>& shared_;
};

// Writes what a warp's queries have of the part.
template <int kHeadDim>
__device__ void Store(const SharedPageLaunch& launch, const Unit& unit, int part, int first_row,
                      const QueryTile<kHeadDim, true>& tile) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int t = 0; t < kRowTiles<kHeadDim>; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = tile.sum(t, half);
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int query = unit.first_query + first_row + 16 * t + 8 * half + lane / 4;
      const int row = query / launch.group;
      if (row >= unit.run.num_rows) continue;
      const int64_t of_batch = int64_t{unit.run.first_row + row} * launch.query_heads() +
                               unit.head * launch.group + query % launch.group;
      const int64_t place = of_batch * kMaxSharedParts + part;
      if (lane % 4 == 0) {
        launch.part_max_sums[place] = make_float2(tile.largest(t, half) * launch.scale, sum);
      }
      auto* const values =
          reinterpret_cast<float2*>(launch.part_values + place * kHeadDim + 2 * (lane % 4));
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        const float* acc = tile.acc(t, half, n);
        values[4 * n] = make_float2(acc[0], acc[1]);
      }
    }
  }
}

// blockIdx.x: KV head; .y: part; .z: tile of queries of a run.
template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kQueryThreads, 2)
    SharedPageKernel(const __grid_constant__ SharedPageLaunch launch) {
  using P = Pages<Element, kHeadDim>;
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<Shared<Element, kHeadDim>*>(memory);
  const int tiles = TilesOfRun<kHeadDim>(launch.group);
  const RowRun run = launch.runs[blockIdx.z / tiles];
  const auto head = static_cast<int>(blockIdx.x), part = static_cast<int>(blockIdx.y);
  const int64_t list = int64_t{run.first_row} * launch.kv_heads + head;
  const Unit unit = {.run = run,
                     .head = head,
                     .first_query = static_cast<int>(blockIdx.z) % tiles * kTileQueries<kHeadDim>,
                     .pages = launch.pages + list * launch.max_pages,
                     .num_pages = launch.num_pages[list]};
  if (unit.first_query >= run.num_rows * launch.group) return;
  const Parts parts(unit.num_pages, P::kOfTile);
  if (part >= parts.count) return;
  const Steps steps = parts.Of(part, unit.num_pages, P::kOfTile);
  const Worker<Element, kHeadDim> worker(launch, unit, shared);
  worker.CopyQueries();
  worker.Find(steps.begin);
  if (steps.begin + 1 < steps.end) worker.Find(steps.begin + 1);
  __syncthreads();
  if (steps.begin < steps.end) worker.Copy(steps.begin);
  CommitCopies();
  const int first_row = static_cast<int>(threadIdx.x) / 32 * 16 * kRowTiles<kHeadDim>;
  using Tile = QueryTile<kHeadDim, true>;
  Tile tile(SharedAddress(shared.queries), first_row, launch.scale * std::numbers::log2e_v<float>);
  for (int step = steps.begin; step < steps.end; ++step) {
    WaitCopies<0>();
    __syncthreads();  // the tile is there, and nobody reads what the last one was in
    if (step + 1 < steps.end) worker.Copy(step + 1);
    CommitCopies();
    if (step + 2 < steps.end) worker.Find(step + 2);
    uint32_t keys = SharedAddress(shared.stages[step % 2]);
    if constexpr (P::kWidens) {
      worker.Widen(step);
      __syncthreads();
      keys = SharedAddress(shared.widened);
    }
    typename Tile::Scores scores = {};
    tile.MultiplyKeys(keys, scores);
    worker.Mask(step, scores);
    tile.Add(keys + kTileKeys * kHeadDim * sizeof(__nv_bfloat16), scores);
  }
  Store(launch, unit, part, first_row, tile);
}

// blockIdx.x: query head; .y: row of a run. A thread has a number of the head.
template <int kHeadDim>
__global__ void __launch_bounds__(kHeadDim)
    MergeSharedKernel(const __grid_constant__ SharedPageLaunch launch, int pages_of_tile) {
  const RowRun run = launch.runs[blockIdx.y / kMaxRowsOfRun];
  const auto row = static_cast<int>(blockIdx.y % kMaxRowsOfRun);
  if (row >= run.num_rows) return;
  const auto head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int64_t list = int64_t{run.first_row} * launch.kv_heads + head / launch.group;
  const int count = Parts(launch.num_pages[list], pages_of_tile).count;
  if (count == 0) return;
  const int64_t query = int64_t{run.first_row + row} * launch.query_heads() + head;
  const float2* of_parts = launch.part_max_sums + query * kMaxSharedParts;
  const float* values = launch.part_values + query * kMaxSharedParts * kHeadDim + thread;
  const float own_sum = launch.sum[query];
  const float own_max = own_sum > 0 ? launch.max[query] : -INFINITY;
  float max = own_max;
  for (int i = 0; i < count; ++i) max = fmaxf(max, of_parts[i].x);
  __syncthreads();  // all have read what one writes
  if (max == -INFINITY) return;
  const auto weight_of = [max](float of_part) {
    return Exp2((of_part - max) * std::numbers::log2e_v<float>);
  };
  const float own = weight_of(own_max);
  float sum = own * own_sum;
  float acc = own_sum > 0 ? own * launch.acc[query * kHeadDim + thread] : 0;
  for (int i = 0; i < count; ++i) {
    const float weight = weight_of(of_parts[i].x);
    sum += weight * of_parts[i].y;
    acc += weight * values[i * kHeadDim];
  }
  launch.acc[query * kHeadDim + thread] = acc;
  if (thread == 0) {
    launch.max[query] = max;
    launch.sum[query] = sum;
  }
}

template <typename Element, int kHeadDim>
cudaError_t Launch(const SharedPageLaunch& launch, cudaStream_t stream) {
  constexpr auto kBytes = static_cast<int>(sizeof(Shared<Element, kHeadDim>));
  auto* const kernel = &SharedPageKernel<Element, kHeadDim>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  constexpr int kQueries = kTileQueries<kHeadDim>;
  const int tiles = (kMaxRowsOfRun * launch.group + kQueries - 1) / kQueries;
  const dim3 grid(static_cast<unsigned>(launch.kv_heads), kMaxSharedParts,
                  static_cast<unsigned>(launch.num_runs * tiles));
  kernel<<<grid, kQueryThreads, kBytes, stream>>>(launch);
  const dim3 merges(static_cast<unsigned>(launch.query_heads()),
                    static_cast<unsigned>(launch.num_runs * kMaxRowsOfRun));
  MergeSharedKernel<kHeadDim>
      <<<merges, kHeadDim, 0, stream>>>(launch, Pages<Element, kHeadDim>::kOfTile);
  return cudaGetLastError();
}

template <typename Element>
cudaError_t LaunchFor(const SharedPageLaunch& launch, uint32_t head_dim, cudaStream_t stream) {
  switch (head_dim) {
    case 64:
      return Launch<Element, 64>(launch, stream);
    case 128:
      return Launch<Element, 128>(launch, stream);
    case 256:
      return Launch<Element, 256>(launch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchSharedPages(const SharedPageLaunch& launch, DType element, uint32_t head_dim,
                              cudaStream_t stream) {
  return element == DType::kInt8 ? LaunchFor<int8_t>(launch, head_dim, stream)
                                 : LaunchFor<__nv_bfloat16>(launch, head_dim, stream);
}

}  // namespace retroinfer::cuda
