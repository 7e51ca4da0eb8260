// Bound by latency: of the product before it, of a way over the links, and of a reduction over a
// block for each norm. A block takes a row, as in rms_norm, whose order of sums it keeps.
//
// Few rows are given: each rank writes its own to where the others wait for them, with the turn
// beside each number, so that a row takes one way over the links and no meeting. Of more rows, and
// in the host's memory, each rank shows its own and reads the others', as a sum in one shot does.
#include "common/status/status_macros.h"
#include "gpu_worker/ops/collective/cuda/all_reduce.h"
#include "gpu_worker/ops/collective/cuda/norm_of_sum.h"
#include "gpu_worker/ops/collective/cuda/peer_exchange.cuh"
#include "gpu_worker/ops/collective/norm_of_sum_check.h"
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/cuda/rms_norm.h"
#include "gpu_worker/ops/model/cuda/rms_norm_parts.cuh"

namespace retroinfer::cuda {
namespace {

static_assert(kNormThreads == kExchangeThreads, "a block does what one of rms_norm does");
constexpr int64_t kWidth = 8;  // elements of a chunk
constexpr int kMostChunks = static_cast<int>(kFirstChunks / kExchangeThreads);  // of a thread
static_assert(kMostChunks == 2);

struct NormOfSumLaunch {
  PeerView view;
  const __nv_bfloat16* in;
  int64_t in_stride;
  __nv_bfloat16* sum;
  int64_t sum_stride;
  bool accumulate;  // to `sum`
  NormLaunch norms[NormOfSumArgs::kMostNorms];
  int64_t cols;
};

// What a thread has of a row: chunks threadIdx.x, threadIdx.x + kExchangeThreads and so on of the
// row, those beyond its end as zeros.
template <int kChunks>
class RowPart {
 public:
  __device__ explicit RowPart(int64_t cols) : cols_(cols) {}

  // Calls body(index of a chunk of the thread, chunk of the row) for those of the row.
  template <typename Body>
  __device__ void Each(const Body& body) const {
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      const int64_t chunk = threadIdx.x + int64_t{j} * kExchangeThreads;
      if (chunk * kWidth < cols_) body(j, chunk);
    }
  }
  __device__ void Load(const __nv_bfloat16* row, uint4* chunks) const {
    Each([&](int j, int64_t chunk) { chunks[j] = *(reinterpret_cast<const uint4*>(row) + chunk); });
  }
  __device__ void Store(const uint4* chunks, __nv_bfloat16* row) const {
    Each([&](int j, int64_t chunk) { *(reinterpret_cast<uint4*>(row) + chunk) = chunks[j]; });
  }

 private:
  const int64_t cols_;
};

__device__ void Unpack(const uint4& chunk, float* values) {
  Load8(reinterpret_cast<const __nv_bfloat16*>(&chunk), 0, values);
}
__device__ void Add(const uint4& chunk, float* values) {
  float more[kWidth];
  Unpack(chunk, more);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] = __fadd_rn(values[i], more[i]);
}
__device__ uint4 Packed(const float* values) {
  uint4 chunk;
  Store8(reinterpret_cast<__nv_bfloat16*>(&chunk), 0, values);
  return chunk;
}

// Replaces this rank's `chunks` by their sums in the order of ranks, and `before`'s if those are
// added to, rounded once. Returns false if a rank has ended, in the one way that asks.
template <int kChunks, bool kGives>
__device__ bool SumRow(const NormOfSumLaunch& launch, PeerBlock& block, const RowPart<kChunks>& row,
                       const uint4* before, uint4* chunks) {
  const int rank = launch.view.rank;
  const int num_ranks = launch.view.num_ranks;
  const uint32_t turn = block.coming_turn();
  row.Each([&](int j, int64_t chunk) {
    if constexpr (kGives) {
      for (int to = (rank + 1) % num_ranks; to != rank; to = (to + 1) % num_ranks) {
        block.GiveRow(to, chunk, chunks[j]);
      }
    } else {
      block.First(rank, turn)[chunk] = chunks[j];
    }
  });
  if constexpr (!kGives) {
    if (!block.Meet()) return false;
  }
  row.Each([&](int j, int64_t chunk) {
    float sums[kWidth];
    for (int from = 0; from < num_ranks; ++from) {
      uint4 part = chunks[j];
      if (from != rank) {
        part = kGives ? block.TakeRow(from, chunk) : __ldcv(block.First(from, turn) + chunk);
      }
      from == 0 ? Unpack(part, sums) : Add(part, sums);
    }
    if (launch.accumulate) Add(before[j], sums);
    chunks[j] = Packed(sums);
  });
  if constexpr (kGives) block.EndTurn();
  return true;
}

// `weights`: of each chunk of the thread, with their offset.
template <int kChunks>
__device__ void Normalize(const NormLaunch& norm, const RowPart<kChunks>& row, int64_t cols,
                          const float (*weights)[kWidth], const uint4* before, float* block_sums,
                          uint4* chunks) {
  float squares = 0;
  row.Each([&](int j, int64_t /*chunk*/) {
    float values[kWidth];
    Unpack(chunks[j], values);
    squares = WithSquares<kWidth>(squares, values);
  });
  const float factor = NormFactor(BlockSum(squares, block_sums), cols, norm.epsilon, norm.scale);
  row.Each([&](int j, int64_t /*chunk*/) {
    float values[kWidth];
    Unpack(chunks[j], values);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = Normalized(values[i], factor, weights[j][i]);
    if (norm.accumulate) Add(before[j], values);
    chunks[j] = Packed(values);
  });
}

// blockIdx.x: row. Weights are asked for before the kernel that computes `in` has ended, and what
// is added to before other ranks are waited for. A thread writes only where it alone has read.
template <int kChunks, int kNorms, bool kGives>
__global__ void __launch_bounds__(kExchangeThreads) NormOfSumKernel(const NormOfSumLaunch launch) {
  AllowNextKernel();
  const RowPart<kChunks> row(launch.cols);
  float weights[kNorms][kChunks][kWidth];
#pragma unroll
  for (int norm = 0; norm < kNorms; ++norm) {
    const NormLaunch& of = launch.norms[norm];
    row.Each([&](int j, int64_t chunk) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        weights[norm][j][i] =
            LoadElement(of.weight, of.weight_dtype, chunk * kWidth + i) + of.weight_offset;
      }
    });
  }
  AwaitLastKernel();
  PeerBlock block(launch.view);
  uint4 chunks[kChunks] = {};
  uint4 added[kNorms + 1][kChunks] = {};  // what the sum and each norm are added to
  __nv_bfloat16* const sum = launch.sum + blockIdx.x * launch.sum_stride;
  row.Load(launch.in + blockIdx.x * launch.in_stride, chunks);
  if (launch.accumulate) row.Load(sum, added[0]);
#pragma unroll
  for (int norm = 0; norm < kNorms; ++norm) {
    const NormLaunch& of = launch.norms[norm];
    if (of.accumulate) row.Load(of.out + blockIdx.x * of.out_stride, added[norm + 1]);
  }
  if (!SumRow<kChunks, kGives>(launch, block, row, added[0], chunks)) return;
  row.Store(chunks, sum);
  __shared__ float block_sums[kNorms][kNormWarps];
#pragma unroll
  for (int norm = 0; norm < kNorms; ++norm) {
    const NormLaunch& of = launch.norms[norm];
    Normalize<kChunks>(of, row, launch.cols, weights[norm], added[norm + 1], block_sums[norm],
                       chunks);
    row.Store(chunks, of.out + blockIdx.x * of.out_stride);
  }
  block.Finish();
}

template <int kChunks, int kNorms>
cudaError_t Launch(const NormOfSumLaunch& launch, int64_t rows, cudaStream_t stream) {
  const bool gives = launch.view.has_rows && rows <= kRowBlocks;
  return LaunchDependent(
      {.grid = dim3(static_cast<unsigned>(rows)),
       .block = dim3(kExchangeThreads),
       .stream = stream},
      gives ? &NormOfSumKernel<kChunks, kNorms, true> : &NormOfSumKernel<kChunks, kNorms, false>,
      launch);
}

__nv_bfloat16* Numbers(const MatrixView& view) {
  return reinterpret_cast<__nv_bfloat16*>(view.data);
}

// Whether all is where a thread moves 16 bytes at a time, and what is added to is not what the
// kernel writes before.
bool FitsKernel(const NormOfSumArgs& args) {
  const MatrixView& out = args.sum.out;
  bool fits = out.rows <= kFirstBlocks && out.cols <= kFirstChunks * kWidth &&
              HasAlignedRows(args.sum.in) && HasAlignedRows(out);
  for (const RmsNormArgs& norm : args.norms) {
    fits = fits && HasAlignedRows(norm.out) &&
           (!norm.accumulate || (norm.out.data != out.data && norm.out.data != args.sum.in.data));
  }
  return fits;
}

}  // namespace

absl::Status NormOfSum(CudaStream& stream, const PeerExchange* exchange,
                       const NormOfSumArgs& args) {
  RETURN_IF_ERROR(CheckNormOfSum(args, DType::kBf16));
  const MatrixView& sum = args.sum.out;
  if (exchange == nullptr || !FitsKernel(args) || sum.rows == 0 || sum.cols == 0) {
    RETURN_IF_ERROR(AllReduce(stream, exchange, args.sum));
    for (const RmsNormArgs& norm : args.norms) RETURN_IF_ERROR(RmsNorm(stream, norm));
    return absl::OkStatus();
  }
  NormOfSumLaunch launch = {exchange->view(),       Numbers(args.sum.in),
                            args.sum.in.row_stride, Numbers(sum),
                            sum.row_stride,         args.sum.accumulate,
                            /*norms=*/{},           sum.cols};
  for (size_t i = 0; i < args.norms.size(); ++i) launch.norms[i] = NormLaunchOf(args.norms[i]);
  const bool is_short = sum.cols <= kExchangeThreads * kWidth;
  const auto launcher = args.norms.size() == 1 ? (is_short ? &Launch<1, 1> : &Launch<2, 1>)
                                               : (is_short ? &Launch<1, 2> : &Launch<2, 2>);
  return CudaStatus(launcher(launch, sum.rows, stream.get()), "launching norm_of_sum");
}

}  // namespace retroinfer::cuda
