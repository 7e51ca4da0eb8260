#include "bench/cuda/drawn_choices.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <span>
#include <vector>

#include "bench/support/must.h"
#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"
#include "gpu_worker/device/cuda/cuda_stream.h"

namespace retroinfer::bench {

DrawnChoices::DrawnChoices(CudaDevice& device, AttentionOps& ops, double density)
    : device_(device),
      ops_(ops),
      density_(density),
      context_(Must(cuda::PrefillAttentionContext::Create(device))) {}

absl::Status DrawnChoices::PrefillAttention(Stream& stream, const PrefillAttentionArgs& args) {
  const int64_t end = args.first_token + args.queries.rows;
  const ChoosingTokens choosing = ChoosingOf(args.choice, args.first_token, end);
  if (choosing.begin >= choosing.end) return ops_.PrefillAttention(stream, args);
  if (args.first_token < choosing.begin) {
    RETURN_IF_ERROR(ops_.PrefillAttention(stream, args.OfTokens(args.first_token, choosing.begin)));
  }
  RETURN_IF_ERROR(AttendUnits(CudaStream::Of(stream), args.OfTokens(choosing.begin, choosing.end)));
  if (choosing.end == end) return absl::OkStatus();
  return ops_.PrefillAttention(stream, args.OfTokens(choosing.end, end));
}

// As many units at a time as the scratch has room for, as the operation itself does.
absl::Status DrawnChoices::AttendUnits(CudaStream& stream, const PrefillAttentionArgs& args) {
  const int64_t end = args.first_token + args.queries.rows;
  const size_t unit_bytes =
      cuda::ChoiceBytesOfUnit(args.queries.cols / args.kv.head_dim, cuda::ChoiceBlocksOf(end));
  const auto rows = static_cast<int64_t>(args.scratch.size() / unit_bytes) * kQueryUnit;
  for (int64_t first = args.first_token; first < end; first += rows) {
    RETURN_IF_ERROR(AttendSlice(stream, args.OfTokens(first, std::min(first + rows, end))));
  }
  return absl::OkStatus();
}

absl::Status DrawnChoices::AttendSlice(CudaStream& stream, const PrefillAttentionArgs& units) {
  const int64_t heads = units.queries.cols / units.kv.head_dim;
  const int64_t num_units = units.queries.rows / kQueryUnit;
  const cuda::ChoiceLayout layout(num_units, heads,
                                  cuda::ChoiceBlocksOf(units.first_token + units.queries.rows));
  const cuda::PrefillKernel kernel = context_->Choose(units);
  RETURN_IF_ERROR(context_->ChooseBlocks(kernel, stream, units));
  const DeviceBuffer& drawn = Draw(stream, units.first_token, num_units, heads);
  std::byte* const scratch = units.scratch.device_data();
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(scratch + layout.words, drawn.bytes().device_data(),
                                       drawn.size_bytes(), cudaMemcpyDeviceToDevice, stream.get()));
  const cuda::ChoiceLaunch launch = {.num_kv_heads = static_cast<int32_t>(units.kv.num_kv_heads),
                                     .group = static_cast<int32_t>(heads / units.kv.num_kv_heads),
                                     .num_units = static_cast<int32_t>(num_units),
                                     .counts = reinterpret_cast<int32_t*>(scratch + layout.counts),
                                     .order = reinterpret_cast<int32_t*>(scratch + layout.order)};
  RETURN_IF_CUDA_ERROR(cuda::LaunchOrderTiles(launch, stream.get()));
  return context_->RunChosen(kernel, stream, units);
}

const DeviceBuffer& DrawnChoices::Draw(CudaStream& stream, int64_t first_token, int64_t num_units,
                                       int64_t num_heads) {
  DeviceBuffer& buffer = drawn_[{first_token, num_units}];
  if (buffer.size_bytes() > 0) return buffer;
  const DrawnBlocks blocks(first_token, num_units, num_heads, density_);
  totals_.Add(blocks.totals());
  std::vector<uint32_t> host = blocks.words();
  host.insert(host.end(), blocks.counts().begin(), blocks.counts().end());
  const auto bytes = std::as_bytes(std::span(host));
  buffer = Must(device_.Allocate(bytes.size(), MemoryPurpose::kActivations));
  Must(device_.Upload(stream, bytes, buffer.bytes()));
  Must(stream.Synchronize());
  return buffer;
}

}  // namespace retroinfer::bench
