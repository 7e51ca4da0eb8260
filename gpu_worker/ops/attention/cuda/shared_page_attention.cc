#include "gpu_worker/ops/attention/cuda/shared_page_attention.h"

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/attention/cuda/shared_page_attention_kernels.h"
#include "gpu_worker/ops/attention/shared_page_attention_check.h"
#include "gpu_worker/ops/cuda/cuda_kv_format.h"

namespace retroinfer::cuda {

absl::Status SharedPageAttention(CudaStream& stream, const SharedPageAttentionArgs& args) {
  constexpr char kOp[] = "shared_page_attention";
  RETURN_IF_ERROR(CheckSharedPageAttention(args, DType::kBf16));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.geometry.format));
  RETURN_IF_ERROR(CheckArg(
      reinterpret_cast<uintptr_t>(args.queries.data) % 16 == 0 && args.queries.row_stride % 8 == 0,
      kOp, "rows of queries must begin at multiples of 16 bytes"));
  const KvGeometry& geometry = args.geometry;
  const auto batch = static_cast<int32_t>(args.queries.rows);
  const auto head_dim = static_cast<int32_t>(geometry.head_dim);
  const auto query_heads = static_cast<int32_t>(args.queries.cols / head_dim);
  RETURN_IF_ERROR(CheckSize(
      kOp, "scratch", args.scratch,
      static_cast<int64_t>(SharedPageAttentionScratchBytes(batch, query_heads, head_dim))));
  RETURN_IF_ERROR(CheckArg(reinterpret_cast<uintptr_t>(args.scratch.device_data()) % 16 == 0, kOp,
                           "scratch must be aligned to 16 bytes"));
  if (args.runs.empty()) return absl::OkStatus();
  auto* const part_max_sums = reinterpret_cast<float2*>(args.scratch.device_data());
  const SharedPageLaunch launch = {
      .queries = args.queries.data,
      .query_stride = args.queries.row_stride,
      .runs = args.runs.device_data(),
      .num_runs = static_cast<int32_t>(args.runs.size()),
      .pages = args.pages.device_data(),
      .num_pages = args.num_pages.device_data(),
      .max_pages = args.max_pages,
      .kv_heads = static_cast<int32_t>(geometry.num_kv_heads),
      .group = query_heads / static_cast<int32_t>(geometry.num_kv_heads),
      .scale = args.scale,
      .max = args.sums.max.device_data(),
      .sum = args.sums.sum.device_data(),
      .acc = args.sums.acc.device_data(),
      .part_max_sums = part_max_sums,
      .part_values =
          reinterpret_cast<float*>(part_max_sums + int64_t{batch} * query_heads * kMaxSharedParts)};
  const DType element = geometry.format.token.element;
  return CudaStatus(element == DType::kF32
                        ? LaunchSharedPagesPlain(launch, geometry.head_dim, stream.get())
                        : LaunchSharedPages(launch, element, geometry.head_dim, stream.get()),
                    "launching shared_page_attention");
}

}  // namespace retroinfer::cuda
