// Bound by the links: a rank reads the others' columns once. Columns of logits need not come in
// multiples of 16 bytes, so they move one by one.
#include <algorithm>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/collective/all_gather_check.h"
#include "gpu_worker/ops/collective/cuda/all_gather.h"
#include "gpu_worker/ops/collective/cuda/peer_exchange.cuh"
#include "gpu_worker/ops/cuda/dependent_launch.cuh"
#include "gpu_worker/ops/cuda/launch.h"

namespace retroinfer::cuda {
namespace {

struct AllGatherLaunch {
  PeerView view;
  const float* in;
  int64_t in_stride;
  float* out;
  int64_t out_stride;
  int64_t rows;
  int64_t most_cols;                          // of any rank
  int64_t slice;                              // elements that a block shows at a time
  std::array<Share, kMostRanks> shares = {};  // columns of each
};

// Elements of a share are counted row by row; a block takes slices of as many of every share.
__global__ void __launch_bounds__(kExchangeThreads) AllGatherKernel(const AllGatherLaunch launch) {
  AllowNextKernel();
  AwaitLastKernel();
  PeerBlock block(launch.view);
  const int rank = launch.view.rank;
  const int64_t most = launch.rows * launch.most_cols;
  for (int64_t begin = blockIdx.x * launch.slice; begin < most; begin += gridDim.x * launch.slice) {
    const uint32_t turn = block.coming_turn();
    const int64_t cols = launch.shares[rank].count;
    const int64_t mine = min(launch.slice, launch.rows * cols - begin);
    auto* const shown = reinterpret_cast<float*>(block.First(rank, turn));
    for (int64_t i = threadIdx.x; i < mine; i += kExchangeThreads) {
      const int64_t at = begin + i;
      shown[i] = launch.in[at / cols * launch.in_stride + at % cols];
    }
    if (!block.Meet()) return;
    for (int from = 0; from < launch.view.num_ranks; ++from) {
      const int64_t from_cols = launch.shares[from].count;
      const int64_t count = min(launch.slice, launch.rows * from_cols - begin);
      const auto* const theirs = reinterpret_cast<const float*>(block.First(from, turn));
      float* const out = launch.out + launch.shares[from].first;
      for (int64_t i = threadIdx.x; i < count; i += kExchangeThreads) {
        const int64_t at = begin + i;
        out[at / from_cols * launch.out_stride + at % from_cols] = __ldcv(theirs + i);
      }
    }
  }
  block.Finish();
}

}  // namespace

absl::Status AllGather(CudaStream& stream, const PeerExchange* exchange,
                       const AllGatherArgs& args) {
  const TensorParallel parallel =
      exchange == nullptr ? TensorParallel() : exchange->ranks().parallel();
  RETURN_IF_ERROR(CheckAllGather(args, parallel));
  if (args.out.rows == 0 || args.out.cols == 0) return absl::OkStatus();
  if (exchange == nullptr) {
    if (args.in.data == args.out.data) return absl::OkStatus();
    const auto bytes = [](int64_t elements) {
      return static_cast<size_t>(elements) * sizeof(float);
    };
    return CudaStatus(cudaMemcpy2DAsync(args.out.data, bytes(args.out.row_stride), args.in.data,
                                        bytes(args.in.row_stride), bytes(args.out.cols),
                                        static_cast<size_t>(args.out.rows),
                                        cudaMemcpyDeviceToDevice, stream.get()),
                      "copying for all_gather");
  }
  AllGatherLaunch launch = {.view = exchange->view(),
                            .in = reinterpret_cast<const float*>(args.in.data),
                            .in_stride = args.in.row_stride,
                            .out = reinterpret_cast<float*>(args.out.data),
                            .out_stride = args.out.row_stride,
                            .rows = args.out.rows,
                            .most_cols = 0,
                            .slice = 0};
  for (int rank = 0; rank < parallel.num_ranks; ++rank) {
    const Share share = ShareOf({rank, parallel.num_ranks}, args.out.cols, args.unit);
    launch.shares[static_cast<size_t>(rank)] = share;
    launch.most_cols = std::max(launch.most_cols, share.count);
  }
  const SharePlan plan = PlanGather(launch.rows * launch.most_cols);
  launch.slice = plan.size;
  return CudaStatus(LaunchDependent({.grid = dim3(static_cast<unsigned>(plan.blocks)),
                                     .block = dim3(kExchangeThreads),
                                     .stream = stream.get()},
                                    &AllGatherKernel, launch),
                    "launching all_gather");
}

}  // namespace retroinfer::cuda
