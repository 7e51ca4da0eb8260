#include "gpu_worker/ops/attention/cuda/decode_attention.h"

#include <algorithm>
#include <numbers>
#include <utility>

#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/ops/attention/cuda/decode_attention_kernel.h"
#include "gpu_worker/ops/attention/decode_attention_check.h"
#include "gpu_worker/ops/cuda/cuda_kv_format.h"

namespace retroinfer::cuda {
namespace {

bool IsAligned(const MatrixView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 4 == 0 && view.row_stride % 2 == 0;
}

// `estimate_ready`: what the merge has to wait for, or null.
absl::Status LaunchSlice(const DecodeLaunch& launch, const KvGeometry& geometry,
                         const Event* estimate_ready, CudaStream& stream) {
  RETURN_IF_ERROR(CudaStatus(
      LaunchDecodeParts(launch, geometry.format.token.element, geometry.head_dim, stream.get()),
      "launching decode_attention"));
  const bool early = estimate_ready == nullptr;
  if (!early) RETURN_IF_ERROR(stream.Wait(*estimate_ready));
  return CudaStatus(LaunchDecodeMerge(launch, geometry.head_dim, early, stream.get()),
                    "launching the merge of decode_attention");
}

}  // namespace

absl::Status DecodeAttention(CudaStream& stream, const DecodeAttentionArgs& args) {
  RETURN_IF_ERROR(CheckDecodeAttention(args, DType::kBf16, &DecodeAttentionScratchBytes));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.pool.geometry.format));
  RETURN_IF_ERROR(CheckArg(IsAligned(args.queries) && IsAligned(args.out), "decode_attention",
                           "rows of queries and out must begin at multiples of 4 bytes"));
  RETURN_IF_ERROR(CheckArg(reinterpret_cast<uintptr_t>(args.scratch.device_data()) % 16 == 0 &&
                               reinterpret_cast<uintptr_t>(args.pool.bytes.device_data()) % 16 == 0,
                           "decode_attention", "pool and scratch must be aligned to 16 bytes"));
  const KvGeometry& geometry = args.pool.geometry;
  const auto batch = static_cast<int32_t>(args.queries.rows);
  const auto kv_heads = static_cast<int32_t>(geometry.num_kv_heads);
  DecodeLaunch launch = {
      .queries = args.queries.data,
      .out = args.out.data,
      .query_stride = args.queries.row_stride,
      .out_stride = args.out.row_stride,
      .pool = args.pool.bytes.device_data(),
      .zones = args.zones.device_data(),
      .pages = args.pages.device_data(),
      .num_pages = args.num_pages.empty() ? nullptr : args.num_pages.device_data(),
      .max_pages = args.max_pages,
      .runs = args.runs.device_data(),
      .num_runs = static_cast<int32_t>(args.runs.size()),
      .estimate_max = args.estimate.max.empty() ? nullptr : args.estimate.max.device_data(),
      .estimate_sum = args.estimate.sum.device_data(),
      .estimate_acc = args.estimate.acc.device_data(),
      .unseen_max = args.unseen_share.empty() ? nullptr : args.unseen.max.device_data(),
      .unseen_sum = args.unseen.sum.device_data(),
      .unseen_share = args.unseen_share.device_data(),
      .scratch = args.scratch.device_data(),
      .sinks = args.sinks.empty() ? nullptr : args.sinks.device_data(),
      .window = args.window,
      .scale_log2 = args.scale * std::numbers::log2e_v<float>,
      .num_layers = geometry.num_layers,
      .layer = args.layer,
      .kv_heads = kv_heads,
      .slice = {},
      .first_sequence = 0,
      .num_sequences = 0,
      .first_head = 0,
      .num_heads = 0,
  };
  const auto group =
      static_cast<int32_t>(args.queries.cols / (int64_t{kv_heads} * geometry.head_dim));
  const int32_t heads = std::min(kv_heads, kMaxDecodeHeads);
  const int32_t sequences = std::min(kMaxDecodeSequences, kMaxDecodeUnits / heads);
  const Event* estimate_ready = args.estimate_ready;
  for (int32_t first = 0; first < batch; first += sequences) {
    launch.first_sequence = first;
    launch.num_sequences = std::min(sequences, batch - first);
    for (int32_t head = 0; head < kv_heads; head += heads) {
      launch.first_head = head;
      launch.num_heads = std::min(heads, kv_heads - head);
      RETURN_IF_ERROR(ForSlices(group, kDecodeGroup, [&](const GroupSlice& slice) {
        launch.slice = slice;
        return LaunchSlice(launch, geometry, std::exchange(estimate_ready, nullptr), stream);
      }));
    }
  }
  return absl::OkStatus();
}

}  // namespace retroinfer::cuda
