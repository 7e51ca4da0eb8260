// Bound by memory: half a byte in and out for each code, in pieces that are mostly not whole lines.
#include <algorithm>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/arrange_codes_check.h"
#include "gpu_worker/ops/model/cuda/arrange_codes.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 256;

struct ArrangeCodesLaunch {
  const uint32_t* in;
  CodeOrder order;
  int64_t rows;
  int64_t cols;
  const int32_t* columns;  // null: in order
  uint32_t* out;
  int64_t row_words;
};

// blockIdx.x: rows, one for each thread, so that a warp shares the words of transposed orders;
// blockIdx.y: words of a row.
__global__ void __launch_bounds__(kThreads) ArrangeCodesKernel(const ArrangeCodesLaunch launch) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= launch.rows) return;
  for (int64_t at = blockIdx.y; at < launch.row_words; at += gridDim.y) {
    uint32_t word = 0;
    for (int i = 0; i < kInt4WordCodes; ++i) {
      const int64_t col = at * kInt4WordCodes + i;
      if (col >= launch.cols) break;
      const CodeOrder::Place place = launch.order.PlaceOf(
          row, launch.columns == nullptr ? col : launch.columns[col], launch.rows, launch.cols);
      word |= (launch.in[place.word] >> place.shift & 0xf) << 4 * i;
    }
    launch.out[row * launch.row_words + at] = word;
  }
}

}  // namespace

absl::Status ArrangeCodes(CudaStream& stream, const ArrangeCodesArgs& args) {
  RETURN_IF_ERROR(CheckArrangeCodes(args));
  if (args.rows == 0 || args.cols == 0) return absl::OkStatus();
  const ArrangeCodesLaunch launch = {
      .in = reinterpret_cast<const uint32_t*>(args.in.device_data()),
      .order = args.order,
      .rows = args.rows,
      .cols = args.cols,
      .columns = args.columns.empty() ? nullptr : args.columns.device_data(),
      .out = reinterpret_cast<uint32_t*>(args.out.device_data()),
      .row_words = kCodesInRows.WordCols(args.rows, args.cols)};
  const dim3 grid(static_cast<unsigned>(DivideUp(args.rows, kThreads)),
                  static_cast<unsigned>(std::min<int64_t>(launch.row_words, 65'535)));
  ArrangeCodesKernel<<<grid, kThreads, 0, stream.get()>>>(launch);
  return LaunchStatus("launching arrange_codes");
}

}  // namespace retroinfer::cuda
