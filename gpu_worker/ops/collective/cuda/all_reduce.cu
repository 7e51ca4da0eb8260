// Up to a size (TakesOneShot) one shot: each block shows its slice and adds what all ranks show of
// it. A rank reads (ranks - 1) times the matrix over links, but meets the others once: bound by
// latency. Above, two shots: of a slice each rank is given its part by all, adds, and gives the sum
// to all, so that links carry about twice the matrix however many ranks there are: bound by their
// bandwidth. Parts and sums are written to where they are wanted, which waits for nothing; blocks
// are two an SM, so that links have work while some of them meet.
#include "common/status/status_macros.h"
#include "gpu_worker/ops/collective/all_reduce_check.h"
#include "gpu_worker/ops/collective/cuda/all_reduce.h"
#include "gpu_worker/ops/collective/cuda/peer_exchange.cuh"
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/cuda/launch.h"

namespace retroinfer::cuda {
namespace {

// A matrix as chunks of 16 bytes, counted row by row.
struct ChunkedMatrix {
  std::byte* data;
  int64_t row_bytes;   // from one to the next
  int64_t row_chunks;  // of a row; of a matrix without gaps all of it

  __device__ uint4* At(int64_t chunk) const {
    auto* const first = reinterpret_cast<uint4*>(data);
    if (chunk < row_chunks) return first + chunk;  // a division takes longer than the chunk
    return reinterpret_cast<uint4*>(data + chunk / row_chunks * row_bytes) + chunk % row_chunks;
  }
};

struct AllReduceLaunch {
  PeerView view;
  ChunkedMatrix in;
  ChunkedMatrix out;
  int64_t num_chunks;
  int64_t block_chunks;  // of a block's slice, one shot
  int part_shift;        // log2 of the chunks of a part, two shots
  bool accumulate;
};

// A chunk as numbers.
template <bool kIsBf16>
struct Sums {
  static constexpr int kCount = kIsBf16 ? 8 : 4;
  float values[kCount];

  __device__ explicit Sums(const uint4& chunk) { Unpack(chunk, values); }
  __device__ void Add(const uint4& chunk) {
    float more[kCount];
    Unpack(chunk, more);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] += more[i];
  }
  __device__ uint4 Packed() const {
    uint4 chunk;
    if constexpr (kIsBf16) {
      Store8(reinterpret_cast<__nv_bfloat16*>(&chunk), 0, values);
    } else {
      chunk = {__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
               __float_as_uint(values[3])};
    }
    return chunk;
  }
  __device__ static void Unpack(const uint4& chunk, float* values) {
    if constexpr (kIsBf16) {
      Load8(reinterpret_cast<const __nv_bfloat16*>(&chunk), 0, values);
    } else {
      values[0] = __uint_as_float(chunk.x);
      values[1] = __uint_as_float(chunk.y);
      values[2] = __uint_as_float(chunk.z);
      values[3] = __uint_as_float(chunk.w);
    }
  }
};

// The sum of a chunk that ranks show, `shown(rank)` each, and of `out`'s where that is added to.
template <bool kIsBf16, typename Shown>
__device__ uint4 SumOf(const AllReduceLaunch& launch, const uint4* out, const Shown& shown) {
  Sums<kIsBf16> sums(__ldcv(shown(0)));
  for (int rank = 1; rank < launch.view.num_ranks; ++rank) sums.Add(__ldcv(shown(rank)));
  if (launch.accumulate) sums.Add(*out);
  return sums.Packed();
}

template <bool kIsBf16>
__global__ void __launch_bounds__(kExchangeThreads) OneShotKernel(const AllReduceLaunch launch) {
  AllowNextKernel();
  AwaitLastKernel();
  PeerBlock block(launch.view);
  const uint32_t turn = block.coming_turn();
  const int64_t begin = blockIdx.x * launch.block_chunks;
  const int64_t count = min(launch.block_chunks, launch.num_chunks - begin);
  for (int64_t i = threadIdx.x; i < count; i += kExchangeThreads) {
    block.First(launch.view.rank, turn)[i] = *launch.in.At(begin + i);
  }
  if (!block.Meet()) return;
  for (int64_t i = threadIdx.x; i < count; i += kExchangeThreads) {
    uint4* const out = launch.out.At(begin + i);
    *out = SumOf<kIsBf16>(launch, out, [&](int rank) { return block.First(rank, turn) + i; });
  }
  block.Finish();
}

// The sum of chunk `i` of this rank's part: `at` of the matrix.
template <bool kIsBf16>
__device__ uint4 SumOfPart(const AllReduceLaunch& launch, const PeerBlock& block, int64_t at,
                           int64_t i) {
  return SumOf<kIsBf16>(launch, launch.out.At(at), [&](int from) {
    return from == launch.view.rank
               ? launch.in.At(at)
               : block.Parts(launch.view.rank) + (from << launch.part_shift) + i;
  });
}

// Who has met the others behind the sums knows that all have read the parts that they were given,
// and who has met them behind the next parts that all have read the sums: so each is written again
// in time. `out` may be `in`: of it a rank changes its own part behind the first meeting, others
// behind the second.
template <bool kIsBf16>
__global__ void __launch_bounds__(kExchangeThreads, 2) TwoShotKernel(const AllReduceLaunch launch) {
  AllowNextKernel();
  AwaitLastKernel();
  PeerBlock block(launch.view);
  const int rank = launch.view.rank;
  const int others = launch.view.num_ranks - 1;
  const int shift = launch.part_shift;
  const int64_t part = int64_t{1} << shift;
  // Of chunk `i` of all others' parts: whose it is.
  const auto owner = [&](int64_t i) {
    const int index = static_cast<int>(i >> shift);
    return index + (index >= rank ? 1 : 0);
  };
  const int64_t slice = launch.view.num_ranks * part;
  for (int64_t begin = blockIdx.x * slice; begin < launch.num_chunks; begin += gridDim.x * slice) {
    const int64_t count = launch.num_chunks - begin;
    const auto place = [&](int64_t i) { return owner(i) * part + (i & (part - 1)); };
    MoveChunks(
        others * part,
        [&](int64_t i) { return place(i) < count ? *launch.in.At(begin + place(i)) : uint4(); },
        [&](int64_t i, const uint4& chunk) {
          if (place(i) < count) block.Parts(owner(i))[rank * part + (i & (part - 1))] = chunk;
        });
    if (!block.Meet()) return;
    const int64_t mine = begin + rank * part;
    MoveChunks(
        max(min(part, launch.num_chunks - mine), int64_t{0}),
        [&](int64_t i) { return SumOfPart<kIsBf16>(launch, block, mine + i, i); },
        [&](int64_t i, const uint4& sum) {
          *launch.out.At(mine + i) = sum;
          for (int to = (rank + 1) % launch.view.num_ranks; to != rank;
               to = (to + 1) % launch.view.num_ranks) {
            block.Sums(to)[rank * part + i] = sum;
          }
        });
    if (!block.Meet()) return;
    MoveChunks(
        others * part,
        [&](int64_t i) { return place(i) < count ? __ldcv(block.Sums(rank) + place(i)) : uint4(); },
        [&](int64_t i, const uint4& sum) {
          if (place(i) < count) *launch.out.At(begin + place(i)) = sum;
        });
  }
  block.Finish();
}

constexpr int kAloneThreads = 256;

// One rank: out = in, or out += in.
template <bool kIsBf16>
__global__ void __launch_bounds__(kAloneThreads) AloneKernel(const AllReduceLaunch launch) {
  const int64_t at = int64_t{blockIdx.x} * kAloneThreads + threadIdx.x;
  if (at >= launch.num_chunks) return;
  uint4* const out = launch.out.At(at);
  Sums<kIsBf16> sums(*launch.in.At(at));
  if (launch.accumulate) sums.Add(*out);
  *out = sums.Packed();
}

template <bool kIsBf16>
cudaError_t LaunchOneShot(AllReduceLaunch launch, cudaStream_t stream) {
  const SharePlan plan = PlanOneShot(launch.num_chunks);
  launch.block_chunks = plan.size;
  return LaunchDependent({.grid = dim3(static_cast<unsigned>(plan.blocks)),
                          .block = dim3(kExchangeThreads),
                          .stream = stream},
                         &OneShotKernel<kIsBf16>, launch);
}

template <bool kIsBf16>
cudaError_t LaunchTwoShot(AllReduceLaunch launch, cudaStream_t stream) {
  const TwoShotPlan plan = PlanTwoShot(launch.num_chunks, launch.view.num_ranks);
  launch.part_shift = plan.part_shift;
  return LaunchDependent({.grid = dim3(static_cast<unsigned>(plan.blocks)),
                          .block = dim3(kExchangeThreads),
                          .stream = stream},
                         &TwoShotKernel<kIsBf16>, launch);
}

template <bool kIsBf16>
cudaError_t Launch(const AllReduceLaunch& launch, bool is_alone, cudaStream_t stream) {
  if (is_alone) {
    const auto grid = static_cast<unsigned>(DivideUp(launch.num_chunks, kAloneThreads));
    AloneKernel<kIsBf16><<<grid, kAloneThreads, 0, stream>>>(launch);
    return cudaGetLastError();
  }
  return TakesOneShot(launch.num_chunks, launch.view.num_ranks)
             ? LaunchOneShot<kIsBf16>(launch, stream)
             : LaunchTwoShot<kIsBf16>(launch, stream);
}

absl::StatusOr<ChunkedMatrix> Chunked(std::string_view name, const MatrixView& view) {
  const auto bytes = static_cast<int64_t>(DTypeBytes(view.dtype));
  const bool aligned = reinterpret_cast<uintptr_t>(view.data) % kExchangeChunkBytes == 0 &&
                       view.row_stride * bytes % kExchangeChunkBytes == 0 &&
                       view.cols * bytes % kExchangeChunkBytes == 0;
  RETURN_IF_ERROR(CheckArg(aligned, "all_reduce", AbslView(name), " has rows of ", view.cols,
                           " columns, ", view.row_stride,
                           " apart, that are not aligned to 16 bytes"));
  const int64_t whole = view.row_stride == view.cols ? view.rows : 1;  // rows without a gap
  return ChunkedMatrix{view.data, view.row_stride * bytes,
                       view.cols * bytes / kExchangeChunkBytes * whole};
}

}  // namespace

absl::Status AllReduce(CudaStream& stream, const PeerExchange* exchange,
                       const AllReduceArgs& args) {
  RETURN_IF_ERROR(CheckAllReduce(args));
  if (args.out.rows == 0 || args.out.cols == 0) return absl::OkStatus();
  AllReduceLaunch launch = {};
  ASSIGN_OR_RETURN(launch.in, Chunked("in", args.in));
  ASSIGN_OR_RETURN(launch.out, Chunked("out", args.out));
  launch.num_chunks = args.out.rows * args.out.cols *
                      static_cast<int64_t>(DTypeBytes(args.out.dtype)) / kExchangeChunkBytes;
  launch.accumulate = args.accumulate;
  if (exchange != nullptr) launch.view = exchange->view();
  const bool is_alone = exchange == nullptr;
  return CudaStatus(args.out.dtype == DType::kBf16 ? Launch<true>(launch, is_alone, stream.get())
                                                   : Launch<false>(launch, is_alone, stream.get()),
                    "launching all_reduce");
}

}  // namespace retroinfer::cuda
