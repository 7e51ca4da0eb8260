#include "gpu_worker/ops/model/cpu/arrange_codes.h"

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/parallel_rows.h"
#include "gpu_worker/ops/model/arrange_codes_check.h"

namespace retroinfer::cpu {
namespace {

void ArrangeRow(const ArrangeCodesArgs& args, int64_t row) {
  const auto* const in = reinterpret_cast<const uint32_t*>(args.in.device_data());
  const int64_t row_words = kCodesInRows.WordCols(args.rows, args.cols);
  auto* const out = reinterpret_cast<uint32_t*>(args.out.device_data()) + row * row_words;
  const int32_t* const columns = args.columns.device_data();
  for (int64_t first = 0; first < args.cols; first += kInt4WordCodes) {
    uint32_t word = 0;
    for (int64_t i = 0; i < kInt4WordCodes && first + i < args.cols; ++i) {
      const int64_t col = args.columns.empty() ? first + i : columns[first + i];
      const CodeOrder::Place place = args.order.PlaceOf(row, col, args.rows, args.cols);
      word |= (in[place.word] >> place.shift & 0xf) << 4 * i;
    }
    out[first / kInt4WordCodes] = word;
  }
}

}  // namespace

absl::Status ArrangeCodes(CpuStream& stream, const ArrangeCodesArgs& args) {
  RETURN_IF_ERROR(CheckArrangeCodes(args));
  return stream.Launch([args](ThreadPool& pool) {
    ParallelRows(pool, args.rows, args.cols, [&args](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) ArrangeRow(args, row);
    });
  });
}

}  // namespace retroinfer::cpu
