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
        ConvertToF32(args.table.dtype, args.table.Rows(token, 1).data,
                     reinterpret_cast<float*>(args.out.Rows(i, 1).data), args.table.cols);
      }
    });
  });
}

}  // namespace retroinfer::cpu
