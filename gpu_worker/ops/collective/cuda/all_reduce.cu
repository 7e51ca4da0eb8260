// Up to 512 KiB one shot: each block shows its slice and adds what all ranks show of it. A rank
// reads (ranks - 1) times the matrix over links, but meets the others once: bound by latency.
// Above, two shots: of a slice each rank adds a part, shows the sum, and reads the others' sums, so
// that links carry about twice the matrix however many ranks there are: bound by their bandwidth.
#include <algorithm>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/collective/all_reduce_check.h"
#include "gpu_worker/ops/collective/cuda/all_reduce.h"
#include "gpu_worker/ops/collective/cuda/peer_exchange.cuh"
#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/cuda/launch.h"

namespace retroinfer::cuda {
namespace {

constexpr int64_t kOneShotBytes = 512 << 10;

// A matrix as chunks of 16 bytes, counted row by row.
struct ChunkedMatrix {
  std::byte* data;
  int64_t row_bytes;   // from one to the next
  int64_t row_chunks;  // of a row

  __device__ uint4* At(int64_t chunk) const {
    return reinterpret_cast<uint4*>(data + chunk / row_chunks * row_bytes) + chunk % row_chunks;
  }
};

struct AllReduceLaunch {
  PeerView view;
  ChunkedMatrix in;
  ChunkedMatrix out;
  int64_t num_chunks;
  int64_t block_chunks;  // of a block's slice, one shot
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

// Set 0 of `second` has what ranks show, set 1 the sums of their parts. Who has met the others
// behind the sums knows that all have read what was shown, and who has met them behind what is
// shown next that all have read the sums: so each is written again in time.
template <bool kIsBf16>
__global__ void __launch_bounds__(kExchangeThreads) TwoShotKernel(const AllReduceLaunch launch) {
  PeerBlock block(launch.view);
  const int rank = launch.view.rank;
  for (int64_t begin = blockIdx.x * kSecondChunks; begin < launch.num_chunks;
       begin += gridDim.x * kSecondChunks) {
    const int64_t count = min(kSecondChunks, launch.num_chunks - begin);
    const int64_t part = (count + launch.view.num_ranks - 1) / launch.view.num_ranks;
    for (int64_t i = threadIdx.x; i < count; i += kExchangeThreads) {
      block.Second(rank, 0)[i] = *launch.in.At(begin + i);
    }
    if (!block.Meet()) return;
    const int64_t end = min(count, (rank + 1) * part);
    for (int64_t i = rank * part + threadIdx.x; i < end; i += kExchangeThreads) {
      uint4* const out = launch.out.At(begin + i);
      const uint4 sum =
          SumOf<kIsBf16>(launch, out, [&](int from) { return block.Second(from, 0) + i; });
      *out = sum;
      block.Second(rank, 1)[i] = sum;
    }
    if (!block.Meet()) return;
    for (int64_t i = threadIdx.x; i < count; i += kExchangeThreads) {
      const int from = static_cast<int>(i / part);
      if (from != rank) *launch.out.At(begin + i) = __ldcv(block.Second(from, 1) + i);
    }
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
void Launch(AllReduceLaunch launch, bool is_alone, cudaStream_t stream) {
  if (is_alone) {
    const auto grid = static_cast<unsigned>(DivideUp(launch.num_chunks, kAloneThreads));
    AloneKernel<kIsBf16><<<grid, kAloneThreads, 0, stream>>>(launch);
  } else if (launch.num_chunks * kChunkBytes <= kOneShotBytes) {
    // Blocks for all ranks, as few as have something to do.
    launch.block_chunks =
        std::min(kFirstChunks, std::max(DivideUp(launch.num_chunks, kExchangeBlocks), int64_t{64}));
    const auto grid = static_cast<unsigned>(DivideUp(launch.num_chunks, launch.block_chunks));
    OneShotKernel<kIsBf16><<<grid, kExchangeThreads, 0, stream>>>(launch);
  } else {
    const int64_t slices = DivideUp(launch.num_chunks, kSecondChunks);
    const auto grid = static_cast<unsigned>(std::min<int64_t>(kExchangeBlocks, slices));
    TwoShotKernel<kIsBf16><<<grid, kExchangeThreads, 0, stream>>>(launch);
  }
}
static_assert(kOneShotBytes <= kExchangeBlocks * kFirstBytes);

absl::StatusOr<ChunkedMatrix> Chunked(std::string_view name, const MatrixView& view) {
  const auto bytes = static_cast<int64_t>(DTypeBytes(view.dtype));
  const bool aligned = reinterpret_cast<uintptr_t>(view.data) % kChunkBytes == 0 &&
                       view.row_stride * bytes % kChunkBytes == 0 &&
                       view.cols * bytes % kChunkBytes == 0;
  RETURN_IF_ERROR(CheckArg(aligned, "all_reduce", AbslView(name), " has rows of ", view.cols,
                           " columns, ", view.row_stride,
                           " apart, that are not aligned to 16 bytes"));
  return ChunkedMatrix{view.data, view.row_stride * bytes, view.cols * bytes / kChunkBytes};
}

}  // namespace

absl::Status AllReduce(CudaStream& stream, const PeerExchange* exchange,
                       const AllReduceArgs& args) {
  RETURN_IF_ERROR(CheckAllReduce(args));
  if (args.out.rows == 0 || args.out.cols == 0) return absl::OkStatus();
  AllReduceLaunch launch = {};
  ASSIGN_OR_RETURN(launch.in, Chunked("in", args.in));
  ASSIGN_OR_RETURN(launch.out, Chunked("out", args.out));
  launch.num_chunks = args.out.rows * launch.out.row_chunks;
  launch.accumulate = args.accumulate;
  if (exchange != nullptr) launch.view = exchange->view();
  if (args.out.dtype == DType::kBf16) {
    Launch<true>(launch, exchange == nullptr, stream.get());
  } else {
    Launch<false>(launch, exchange == nullptr, stream.get());
  }
  return LaunchStatus("launching all_reduce");
}

}  // namespace retroinfer::cuda
