#include "gpu_worker/ops/attention/cuda/prefill_attention.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numbers>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_join.h"
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

// REQUIRES: checked arguments, of whole units alone, and scratch for them.
ChoiceLaunch ToChoiceLaunch(const PrefillAttentionArgs& units) {
  const PrefillLaunch launch = ToLaunch(units);
  const int64_t num_units = units.queries.rows / kQueryUnit;
  const int64_t num_blocks = ChoiceBlocksOf(units.first_token + units.queries.rows);
  const ChoiceLayout layout(num_units, units.queries.cols / units.kv.head_dim, num_blocks);
  std::byte* const scratch = units.scratch.device_data();
  return {.queries = launch.queries,
          .query_stride = launch.query_stride,
          .keys = launch.keys,
          .capacity = launch.capacity,
          .num_kv_heads = launch.num_kv_heads,
          .group = launch.group,
          .head_dim = launch.head_dim,
          .first_unit = static_cast<int32_t>((units.first_token - kSinkTokens) / kQueryUnit),
          .num_units = static_cast<int32_t>(num_units),
          .num_blocks = static_cast<int32_t>(num_blocks),
          .scale_log2 = launch.scale_log2 / static_cast<float>(kChoiceGroup),
          .threshold = units.choice.threshold,
          .weights = reinterpret_cast<float*>(scratch),
          .words = reinterpret_cast<uint32_t*>(scratch + layout.words),
          .words_of_pair = static_cast<int32_t>(layout.words_of_pair),
          .counts = reinterpret_cast<int32_t*>(scratch + layout.counts),
          .order = reinterpret_cast<int32_t*>(scratch + layout.order)};
}

absl::Status CheckLimits(const PrefillAttentionArgs& args) {
  RETURN_IF_ERROR(CheckArg(args.queries.rows <= kMaxRows, kOp, args.queries.rows, " rows; at most ",
                           kMaxRows, " in a call"));
  RETURN_IF_ERROR(CheckArg(args.first_token + args.queries.rows <= kMaxTokens, kOp, "tokens up to ",
                           args.first_token + args.queries.rows, "; at most ", kMaxTokens));
  return CheckArg(args.queries.cols / args.kv.head_dim <= kMaxHeads, kOp,
                  args.queries.cols / args.kv.head_dim, " query heads; at most ", kMaxHeads);
}

// Attends to chosen blocks, as many units at a time as the scratch has room for.
absl::Status AttendUnits(const PrefillAttentionContext& context, CudaStream& stream,
                         const PrefillAttentionArgs& args) {
  const int64_t end = args.first_token + args.queries.rows;
  const size_t unit_bytes =
      ChoiceBytesOfUnit(args.queries.cols / args.kv.head_dim, ChoiceBlocksOf(end));
  const auto rows = static_cast<int64_t>(args.scratch.size() / unit_bytes) * kQueryUnit;
  const PrefillKernel kernel = context.Choose(args);
  for (int64_t first = args.first_token; first < end; first += rows) {
    const PrefillAttentionArgs units = args.OfTokens(first, std::min(first + rows, end));
    RETURN_IF_ERROR(context.ChooseBlocks(kernel, stream, units));
    RETURN_IF_ERROR(context.RunChosen(kernel, stream, units));
  }
  return absl::OkStatus();
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
    case PrefillKernel::kHopper: {
      ASSIGN_OR_RETURN(const HopperPrefillMaps maps, MapsOf(args));
      return CudaStatus(LaunchHopperPrefill(ToLaunch(args), maps, stream.get()), kOp);
    }
  }
  return absl::InternalError("prefill_attention: no such kernel");
}

absl::Status PrefillAttentionContext::ChooseBlocks(PrefillKernel kernel, CudaStream& stream,
                                                   const PrefillAttentionArgs& units) const {
  const ChoiceLaunch launch = ToChoiceLaunch(units);
  // Products of Hopper weigh for the other kernel, too, where that has the larger heads.
  if (kernel != PrefillKernel::kPlain && encode_tiled_ != nullptr &&
      launch.group <= kMostHopperChoiceGroup) {
    ASSIGN_OR_RETURN(const HopperChoiceMaps maps, ChoiceMapsOf(units));
    RETURN_IF_ERROR(CudaStatus(LaunchHopperBlockWeights(launch, maps, stream.get()), kOp));
  } else {
    const bool f32_kv = units.kv.dtype == DType::kF32;
    RETURN_IF_ERROR(CudaStatus(LaunchPlainBlockWeights(launch, f32_kv, stream.get()), kOp));
  }
  return CudaStatus(LaunchChooseBlocks(launch, stream.get()), kOp);
}

absl::Status PrefillAttentionContext::RunChosen(PrefillKernel kernel, CudaStream& stream,
                                                const PrefillAttentionArgs& units) const {
  PrefillLaunch launch = ToLaunch(units);
  const ChoiceLaunch choice = ToChoiceLaunch(units);
  launch.chosen = {.words = choice.words, .words_of_pair = choice.words_of_pair};
  launch.order = choice.order;
  switch (kernel) {
    case PrefillKernel::kPlain:
      return CudaStatus(LaunchPlainPrefill(launch, units.kv.dtype == DType::kF32, stream.get()),
                        kOp);
    case PrefillKernel::kWarp:
      return CudaStatus(LaunchWarpPrefill(launch, stream.get()), kOp);
    case PrefillKernel::kHopper: {
      ASSIGN_OR_RETURN(const HopperPrefillMaps maps, MapsOf(units));
      return CudaStatus(LaunchHopperChosenPrefill(launch, maps, stream.get()), kOp);
    }
  }
  return absl::InternalError("prefill_attention: no such kernel");
}

absl::Status PrefillAttentionContext::Encode(std::byte* data, std::span<const uint64_t> sizes,
                                             std::span<const uint64_t> strides,
                                             std::span<const uint32_t> box,
                                             CUtensorMap& map) const {
  const std::vector<cuuint64_t> size_words(sizes.begin(), sizes.end());
  const std::vector<cuuint64_t> stride_words(strides.begin(), strides.end());
  const std::vector<cuuint32_t> steps(sizes.size(), 1);
  const CUresult result =
      encode_tiled_(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(sizes.size()),
                    data, size_words.data(), stride_words.data(), box.data(), steps.data(),
                    CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return CheckArg(false, kOp, "no tensor map of [", absl::StrJoin(sizes, ", "),
                  "], innermost first, with strides of ", absl::StrJoin(strides, ", "),
                  " bytes: CUDA error ", static_cast<int>(result));
}

absl::StatusOr<HopperPrefillMaps> PrefillAttentionContext::MapsOf(
    const PrefillAttentionArgs& args) const {
  const LayerKv& kv = args.kv;
  const auto encode = [&](std::byte* data, uint64_t cols, uint64_t rows, uint64_t planes,
                          uint64_t row_bytes, uint64_t plane_bytes, CUtensorMap& map) {
    return Encode(data, std::array{cols, rows, planes}, std::array{row_bytes, plane_bytes},
                  std::array{kBoxColumns, kBoxRows, uint32_t{1}}, map);
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
  return maps;
}

absl::StatusOr<HopperChoiceMaps> PrefillAttentionContext::ChoiceMapsOf(
    const PrefillAttentionArgs& units) const {
  const LayerKv& kv = units.kv;
  constexpr auto kGroup = static_cast<uint64_t>(kChoiceGroup);
  const ChoiceLaunch launch = ToChoiceLaunch(units);
  const uint64_t row_bytes = 2 * static_cast<uint64_t>(units.queries.row_stride);
  const uint64_t head_bytes = 2 * kv.head_dim;
  const uint64_t heads = static_cast<uint64_t>(units.queries.cols) / kv.head_dim;
  HopperChoiceMaps maps;
  RETURN_IF_ERROR(Encode(
      units.queries.data,
      std::array{uint64_t{kv.head_dim}, heads, kGroup,
                 static_cast<uint64_t>(units.queries.rows) / kGroup},
      std::array{head_bytes, row_bytes, kGroup * row_bytes},
      std::array{kBoxColumns, static_cast<uint32_t>(launch.group), uint32_t{1},
                 static_cast<uint32_t>(HopperChoiceUnits(launch.group) * kChoiceGroupsOfUnit)},
      maps.queries));
  const uint64_t end = static_cast<uint64_t>(units.first_token + units.queries.rows);
  RETURN_IF_ERROR(
      Encode(kv.keys, std::array{kGroup * kv.head_dim, end / kGroup, uint64_t{kv.num_kv_heads}},
             std::array{kGroup * head_bytes, static_cast<uint64_t>(kv.capacity) * head_bytes},
             std::array{kBoxColumns, kHopperChoiceKeys, uint32_t{1}}, maps.keys));
  return maps;
}

absl::Status PrefillAttention(PrefillAttentionContext& context, CudaStream& stream,
                              const PrefillAttentionArgs& args) {
  RETURN_IF_ERROR(CheckPrefillAttention(args, DType::kBf16));
  RETURN_IF_ERROR(CheckPromptType(kKvElementTypes, kOp, args.kv.dtype));
  RETURN_IF_ERROR(CheckLimits(args));
  if (args.queries.rows == 0 || args.queries.cols == 0) return absl::OkStatus();
  const auto attend = [&](int64_t begin, int64_t end) {
    if (begin >= end) return absl::OkStatus();
    const PrefillAttentionArgs part = args.OfTokens(begin, end);
    return context.Run(context.Choose(part), stream, part);
  };
  const int64_t end = args.first_token + args.queries.rows;
  const ChoosingTokens choosing = ChoosingOf(args.choice, args.first_token, end);
  if (choosing.begin >= choosing.end) return attend(args.first_token, end);
  const size_t scratch_bytes =
      ChoiceBytesOfUnit(args.queries.cols / args.kv.head_dim, ChoiceBlocksOf(end));
  RETURN_IF_ERROR(CheckArg(args.scratch.size() >= scratch_bytes, kOp, "scratch of ",
                           args.scratch.size(), " bytes, needs ", scratch_bytes));
  RETURN_IF_ERROR(attend(args.first_token, choosing.begin));
  RETURN_IF_ERROR(AttendUnits(context, stream, args.OfTokens(choosing.begin, choosing.end)));
  return attend(choosing.end, end);
}

}  // namespace retroinfer::cuda
