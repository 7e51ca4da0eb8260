// Elements are counted row by row. As many as a turn has room for are copied to the rank's buffer,
// and each rank adds what all buffers have: each reads what all have written, which is little
// beside what layers read.
#include "gpu_worker/ops/collective/cpu/all_reduce.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/collective/all_reduce_check.h"
#include "gpu_worker/ops/collective/cpu/flat_matrix.h"
#include "gpu_worker/ops/cpu/convert.h"

namespace retroinfer::cpu {
namespace {

constexpr int64_t kBlock = 512;      // elements that are added at a time
constexpr int64_t kPerTask = 16384;  // elements worth a thread

// What `source(rank)` is for an element that begins a run: the address of what the rank adds.
template <typename Source>
void AddRun(const AllReduceArgs& args, int num_ranks, std::byte* out, int64_t count,
            const Source& source) {
  const DType dtype = args.out.dtype;
  const auto bytes = static_cast<int64_t>(DTypeBytes(dtype));
  std::array<float, kBlock> sums;
  std::array<float, kBlock> more;
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t size = std::min(kBlock, count - at);
    const auto add = [&](const std::byte* numbers) {
      ConvertToF32(dtype, numbers, more.data(), size);
      for (size_t i = 0; i < static_cast<size_t>(size); ++i) sums[i] += more[i];
    };
    ConvertToF32(dtype, source(0) + at * bytes, sums.data(), size);
    for (int rank = 1; rank < num_ranks; ++rank) add(source(rank) + at * bytes);
    if (args.accumulate) add(out + at * bytes);
    ConvertFromF32(sums.data(), dtype, out + at * bytes, size);
  }
}

void AddAlone(ThreadPool& pool, const AllReduceArgs& args) {
  if (!args.accumulate && args.in.data == args.out.data) return;
  pool.ParallelFor(args.out.rows, [&](int64_t row) {
    AddRun(args, 1, args.out.Rows(row, 1).data, args.out.cols,
           [&](int) { return static_cast<const std::byte*>(args.in.Rows(row, 1).data); });
  });
}

absl::Status AddAll(ThreadPool& pool, RankMemory& ranks, const AllReduceArgs& args) {
  const auto bytes = static_cast<int64_t>(DTypeBytes(args.out.dtype));
  const int64_t total = args.out.rows * args.out.cols;
  const int64_t each = static_cast<int64_t>(ranks.turn_bytes()) / bytes;
  for (int64_t begin = 0; begin < total; begin += each) {
    const int64_t count = std::min(each, total - begin);
    std::byte* const mine = ranks.Mine().data();
    ForRuns(args.in, begin, count, [&](const std::byte* from, int64_t at, int64_t run) {
      std::memcpy(mine + (at - begin) * bytes, from, static_cast<size_t>(run * bytes));
    });
    RETURN_IF_ERROR(ranks.Meet());
    pool.ParallelFor((count + kPerTask - 1) / kPerTask, [&](int64_t task) {
      const int64_t first = begin + task * kPerTask;
      const int64_t size = std::min(kPerTask, begin + count - first);
      ForRuns(args.out, first, size, [&](std::byte* out, int64_t at, int64_t run) {
        AddRun(args, ranks.parallel().num_ranks, out, run,
               [&](int rank) { return ranks.Of(rank).data() + (at - begin) * bytes; });
      });
    });
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AllReduce(CpuStream& stream, RankMemory* ranks, const AllReduceArgs& args) {
  RETURN_IF_ERROR(CheckAllReduce(args));
  if (ranks == nullptr) return stream.Launch([args](ThreadPool& pool) { AddAlone(pool, args); });
  RETURN_IF_ERROR(stream.Launch([args, ranks](ThreadPool& pool) {
    // That ranks have ended is seen below, or by who calls next.
    AddAll(pool, *ranks, args).IgnoreError();
  }));
  return ranks->ended() ? ranks->EndedStatus() : absl::OkStatus();
}

}  // namespace retroinfer::cpu
