#include "gpu_worker/ops/model/cpu/embedding.h"

#include "common/status/status_macros.h"
#include "gpu_worker/ops/cpu/convert.h"
#include "gpu_worker/ops/cpu/parallel_rows.h"
#include "gpu_worker/ops/model/embedding_check.h"

namespace retroinfer::cpu {

absl::Status Embedding(CpuStream& stream, const EmbeddingArgs& args) {
  const auto rows = static_cast<int64_t>(args.token_ids.size());
  RETURN_IF_ERROR(CheckEmbedding(args, DType::kF32));
  return stream.Launch([args, rows](ThreadPool& pool) {
    ParallelRows(pool, rows, args.table.cols, [&args](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int32_t token = args.token_ids.device_data()[i];
        RI_DCHECK(token >= 0 && token < args.table.rows);
        auto* const out = reinterpret_cast<float*>(args.out.Rows(i, 1).data);
        ConvertToF32(args.table.dtype, args.table.Rows(token, 1).data, out, args.table.cols);
        if (args.scale == 1) continue;
        for (int64_t col = 0; col < args.table.cols; ++col) out[col] *= args.scale;
      }
    });
  });
}

}  // namespace retroinfer::cpu
