#include "gpu_worker/ops/attention/cuda/prefill_attention.h"

#include <algorithm>
#include <cstdint>
#include <numbers>
#include <utility>

#include "absl/memory/memory.h"
#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/attention/cuda/prefill_attention_kernels.h"
#include "gpu_worker/ops/attention/prefill_attention_check.h"
#include "gpu_worker/ops/cuda/cuda_kv_format.h"

namespace retroinfer::cuda {
namespace {

constexpr std::string_view kOp = "prefill_attention";
constexpr int kHopper = 90;
constexpr uint32_t kBoxRows = 128;
constexpr uint32_t kBoxColumns = 64;

bool IsAligned(const std::byte* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
bool HasAlignedRows(const MatrixView& view) {
  return IsAligned(view.data) && view.row_stride % 8 == 0;
}

// Kernels count tokens in 32 bits, and put heads or tiles into grid dimensions of 16 bits.
constexpr int64_t kMaxTokens = int64_t{1} << 30;
constexpr int64_t kMaxRows = int64_t{1} << 22;
constexpr int64_t kMaxHeads = 1024;

// REQUIRES: a checked window.
PrefillWindow ToWindow(const AttentionWindow& window) {
  if (window.sees_all()) return {};
  return {.exists = true,
          .step = static_cast<int32_t>(std::min(window.step, kMaxTokens)),
          .before = static_cast<int32_t>(std::min(window.tokens - window.step, kMaxTokens)),
          .always_seen = static_cast<int32_t>(window.always_seen)};
}

// REQUIRES: checked arguments.
PrefillLaunch ToLaunch(const PrefillAttentionArgs& args) {
  const LayerKv& kv = args.kv;
  const int64_t heads = args.queries.cols / kv.head_dim;
  return {.queries = args.queries.data,
          .query_stride = args.queries.row_stride,
          .out = args.out.data,
          .out_stride = args.out.row_stride,
          .keys = kv.keys,
          .values = kv.values,
          .capacity = kv.capacity,
          .num_kv_heads = static_cast<int32_t>(kv.num_kv_heads),
          .group = static_cast<int32_t>(heads / kv.num_kv_heads),
          .head_dim = static_cast<int32_t>(kv.head_dim),
          .num_queries = static_cast<int32_t>(args.queries.rows),
          .first_token = static_cast<int32_t>(args.first_token),
          .scale_log2 = args.scale * std::numbers::log2e_v<float>,
          .window = ToWindow(args.window),
          .sinks = args.sinks.empty() ? nullptr : args.sinks.device_data()};
}

absl::Status CheckLimits(const PrefillAttentionArgs& args) {
  RETURN_IF_ERROR(CheckArg(args.queries.rows <= kMaxRows, kOp, args.queries.rows, " rows; at most ",
                           kMaxRows, " in a call"));
  RETURN_IF_ERROR(CheckArg(args.first_token + args.queries.rows <= kMaxTokens, kOp, "tokens up to ",
                           args.first_token + args.queries.rows, "; at most ", kMaxTokens));
  return CheckArg(args.queries.cols / args.kv.head_dim <= kMaxHeads, kOp,
                  args.queries.cols / args.kv.head_dim, " query heads; at most ", kMaxHeads);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrefillAttentionContext>> PrefillAttentionContext::Create(
    CudaDevice& device) {
  auto context = absl::WrapUnique(new PrefillAttentionContext());
  if (!HasHopperPrefill() || device.compute_capability() != kHopper) return context;
  // Asked for by version, so that the program starts without a driver.
  constexpr unsigned kSince = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  RETURN_IF_CUDA_ERROR(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince,
                                                        cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess) {
    return absl::FailedPreconditionError(
        "the NVIDIA driver lacks cuTensorMapEncodeTiled (CUDA 12.0); update the driver");
  }
  context->encode_tiled_ = reinterpret_cast<EncodeTiled>(function);
  return context;
}

PrefillKernel PrefillAttentionContext::Choose(const PrefillAttentionArgs& args) const {
  const LayerKv& kv = args.kv;
  const bool tensor_cores = kv.dtype == DType::kBf16 && IsHeadDim(kv.head_dim) &&
                            IsAligned(kv.keys) && IsAligned(kv.values) &&
                            HasAlignedRows(args.queries) && HasAlignedRows(args.out);
  if (!tensor_cores) return PrefillKernel::kPlain;
  // A tile of 256 columns is more than that kernel has shared memory and registers for.
  return encode_tiled_ == nullptr || kv.head_dim > 128 ? PrefillKernel::kWarp
                                                       : PrefillKernel::kHopper;
}

absl::Status PrefillAttentionContext::Run(PrefillKernel kernel, CudaStream& stream,
                                          const PrefillAttentionArgs& args) const {
  switch (kernel) {
    case PrefillKernel::kPlain:
      return CudaStatus(
          LaunchPlainPrefill(ToLaunch(args), args.kv.dtype == DType::kF32, stream.get()), kOp);
    case PrefillKernel::kWarp:
      return CudaStatus(LaunchWarpPrefill(ToLaunch(args), stream.get()), kOp);
    case PrefillKernel::kHopper:
      return RunHopper(stream, args);
  }
  return absl::InternalError("prefill_attention: no such kernel");
}

absl::Status PrefillAttentionContext::RunHopper(CudaStream& stream,
                                                const PrefillAttentionArgs& args) const {
  const LayerKv& kv = args.kv;
  const auto encode = [&](std::byte* data, uint64_t cols, uint64_t rows, uint64_t planes,
                          uint64_t row_bytes, uint64_t plane_bytes, CUtensorMap& map) {
    const cuuint64_t sizes[] = {cols, rows, planes};
    const cuuint64_t strides[] = {row_bytes, plane_bytes};
    const cuuint32_t box[] = {kBoxColumns, kBoxRows, 1};
    const cuuint32_t steps[] = {1, 1, 1};
    const CUresult result =
        encode_tiled_(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, data, sizes, strides, box, steps,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return CheckArg(result == CUDA_SUCCESS, kOp, "no tensor map of [", planes, ", ", rows, ", ",
                    cols, "] with rows of ", row_bytes, " bytes: CUDA error ",
                    static_cast<int>(result));
  };
  HopperPrefillMaps maps;
  const auto num_queries = static_cast<uint64_t>(args.queries.rows);
  const uint64_t query_bytes = 2 * static_cast<uint64_t>(args.queries.row_stride);
  RETURN_IF_ERROR(encode(args.queries.data, static_cast<uint64_t>(args.queries.cols), num_queries,
                         1, query_bytes, num_queries * query_bytes, maps.queries));
  // Ends with the last token that there is: what lies behind may be anything.
  const uint64_t end = static_cast<uint64_t>(args.first_token) + num_queries;
  const uint64_t row_bytes = 2 * kv.head_dim;
  const uint64_t plane_bytes = static_cast<uint64_t>(kv.capacity) * row_bytes;
  for (auto [data, map] : {std::pair{kv.keys, &maps.keys}, {kv.values, &maps.values}}) {
    RETURN_IF_ERROR(encode(data, kv.head_dim, end, kv.num_kv_heads, row_bytes, plane_bytes, *map));
  }
  return CudaStatus(LaunchHopperPrefill(ToLaunch(args), maps, stream.get()), kOp);
}

absl::Status PrefillAttention(PrefillAttentionContext& context, CudaStream& stream,
                              const PrefillAttentionArgs& args) {
  RETURN_IF_ERROR(CheckPrefillAttention(args, DType::kBf16));
  RETURN_IF_ERROR(CheckPromptType(kKvElementTypes, kOp, args.kv.dtype));
  RETURN_IF_ERROR(CheckLimits(args));
  if (args.choice.chooses()) {
    return absl::UnimplementedError(
        "prefill_attention: sparse prefill is not available on this backend; use prefill exact");
  }
  if (args.queries.rows == 0 || args.queries.cols == 0) return absl::OkStatus();
  return context.Run(context.Choose(args), stream, args);
}

}  // namespace retroinfer::cuda
