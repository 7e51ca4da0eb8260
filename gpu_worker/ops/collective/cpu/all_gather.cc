#include "gpu_worker/ops/collective/cpu/all_gather.h"

#include <algorithm>
#include <cstring>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/collective/all_gather_check.h"
#include "gpu_worker/ops/collective/cpu/flat_matrix.h"

namespace retroinfer::cpu {
namespace {

constexpr auto kBytes = static_cast<int64_t>(sizeof(float));

// Elements [begin, end) of a share, where it has them.
int64_t CountOf(const MatrixView& share, int64_t begin, int64_t each) {
  return std::clamp<int64_t>(share.rows * share.cols - begin, 0, each);
}

// Each turn takes as many elements of every rank's share, the last ones what is left of them.
absl::Status GatherAll(RankMemory& ranks, const AllGatherArgs& args) {
  const TensorParallel& parallel = ranks.parallel();
  const auto columns_of = [&](int rank) {
    const Share share = ShareOf({rank, parallel.num_ranks}, args.out.cols, args.unit);
    return args.out.Columns(share.first, share.count);
  };
  int64_t most = 0;
  for (int rank = 0; rank < parallel.num_ranks; ++rank) {
    most = std::max(most, args.out.rows * columns_of(rank).cols);
  }
  const int64_t each = static_cast<int64_t>(ranks.turn_bytes()) / kBytes;
  for (int64_t begin = 0; begin < most; begin += each) {
    std::byte* const mine = ranks.Mine().data();
    ForRuns(args.in, begin, CountOf(args.in, begin, each),
            [&](const std::byte* from, int64_t at, int64_t run) {
              std::memcpy(mine + (at - begin) * kBytes, from, static_cast<size_t>(run * kBytes));
            });
    RETURN_IF_ERROR(ranks.Meet());
    for (int rank = 0; rank < parallel.num_ranks; ++rank) {
      const MatrixView out = columns_of(rank);
      ForRuns(out, begin, CountOf(out, begin, each), [&](std::byte* to, int64_t at, int64_t run) {
        std::memcpy(to, ranks.Of(rank).data() + (at - begin) * kBytes,
                    static_cast<size_t>(run * kBytes));
      });
    }
  }
  return absl::OkStatus();
}

void CopyAlone(const AllGatherArgs& args) {
  if (args.in.data == args.out.data) return;
  for (int64_t row = 0; row < args.out.rows; ++row) {
    std::memcpy(args.out.Rows(row, 1).data, args.in.Rows(row, 1).data,
                static_cast<size_t>(args.out.cols * kBytes));
  }
}

}  // namespace

absl::Status AllGather(CpuStream& stream, RankMemory* ranks, const AllGatherArgs& args) {
  const TensorParallel parallel = ranks == nullptr ? TensorParallel() : ranks->parallel();
  RETURN_IF_ERROR(CheckAllGather(args, parallel));
  if (ranks == nullptr) return stream.Launch([args](ThreadPool&) { CopyAlone(args); });
  RETURN_IF_ERROR(stream.Launch([args, ranks](ThreadPool&) {
    // That ranks have ended is seen below, or by who calls next.
    GatherAll(*ranks, args).IgnoreError();
  }));
  return ranks->ended() ? ranks->EndedStatus() : absl::OkStatus();
}

}  // namespace retroinfer::cpu
