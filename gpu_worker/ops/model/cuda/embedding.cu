// Bound by the bytes of the rows, read once and written once.
#include "gpu_worker/ops/cuda/element.cuh"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/model/cuda/embedding.h"
#include "gpu_worker/ops/model/embedding_check.h"

namespace retroinfer::cuda {
namespace {

constexpr int kThreads = 256;

struct EmbeddingLaunch {
  const int32_t* token_ids;
  const std::byte* table;
  int64_t table_stride;
  DType table_dtype;
  float scale;
  __nv_bfloat16* out;
  int64_t out_stride;
  int64_t cols;
};

// One block a row.
__global__ void __launch_bounds__(kThreads) EmbeddingKernel(const EmbeddingLaunch launch) {
  const int64_t first = launch.token_ids[blockIdx.x] * launch.table_stride;
  __nv_bfloat16* const out = launch.out + blockIdx.x * launch.out_stride;
  for (int64_t i = threadIdx.x; i < launch.cols; i += kThreads) {
    out[i] = __float2bfloat16_rn(launch.scale *
                                 LoadElement(launch.table, launch.table_dtype, first + i));
  }
}

}  // namespace

absl::Status Embedding(CudaStream& stream, const EmbeddingArgs& args) {
  RETURN_IF_ERROR(CheckEmbedding(args, DType::kBf16));
  if (args.out.rows == 0 || args.out.cols == 0) return absl::OkStatus();
  EmbeddingKernel<<<static_cast<unsigned>(args.out.rows), kThreads, 0, stream.get()>>>(
      {args.token_ids.device_data(), args.table.data, args.table.row_stride, args.table.dtype,
       args.scale, reinterpret_cast<__nv_bfloat16*>(args.out.data), args.out.row_stride,
       args.out.cols});
  return LaunchStatus("launching embedding");
}

}  // namespace retroinfer::cuda
