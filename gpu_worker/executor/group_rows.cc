#include "gpu_worker/executor/group_rows.h"

#include <algorithm>

#include "common/log/check.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

size_t RowBytes(int64_t max_rows) { return 2 * static_cast<size_t>(max_rows) * sizeof(int32_t); }
size_t LastBytes(int32_t max_members) { return static_cast<size_t>(max_members) * sizeof(int32_t); }

}  // namespace

size_t GroupRows::Bytes(int64_t max_rows, int32_t max_members) {
  return RowBytes(max_rows) + LastBytes(max_members);
}

absl::StatusOr<GroupRows> GroupRows::Create(Device& device, Stream& stream, int64_t max_rows,
                                            int32_t max_members) {
  GroupRows rows(device, stream, max_rows);
  const size_t row_bytes = RowBytes(max_rows), last_bytes = LastBytes(max_members);
  ASSIGN_OR_RETURN(rows.host_rows_, device.AllocateHost(row_bytes));
  ASSIGN_OR_RETURN(rows.rows_, device.Allocate(row_bytes, MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(rows.host_last_, device.AllocateHost(last_bytes));
  ASSIGN_OR_RETURN(rows.last_, device.Allocate(last_bytes, MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(rows.uploaded_, device.CreateEvent());
  return rows;
}

absl::Status GroupRows::Upload(std::span<const PrefillRun> runs,
                               std::span<const std::span<const int32_t>> prompts) {
  RETURN_IF_ERROR(device_->Synchronize(*uploaded_));
  const auto half = static_cast<size_t>(max_rows_);
  const std::span<int32_t> ids = host_rows_.as<int32_t>().first(half);
  const std::span<int32_t> positions = host_rows_.as<int32_t>().subspan(half, half);
  size_t end = 0;
  for (const PrefillRun& run : runs) {
    const std::span<const int32_t> prompt = prompts[run.members.front()];
    for (int64_t row = 0; row < run.num_rows; ++row) {
      const auto at = static_cast<size_t>(run.first_row + row);
      const int64_t position = run.first_position + row;
      ids[at] = prompt[static_cast<size_t>(position)];
      positions[at] = static_cast<int32_t>(position);
      end = std::max(end, at + 1);
    }
  }
  const DeviceSpan<std::byte> device = rows_.bytes();
  const size_t bytes = end * sizeof(int32_t);
  RETURN_IF_ERROR(device_->Upload(*stream_, std::as_bytes(ids.first(end)), device.first(bytes)));
  RETURN_IF_ERROR(device_->Upload(*stream_, std::as_bytes(positions.first(end)),
                                  device.subspan(half * sizeof(int32_t), bytes)));
  return stream_->Record(*uploaded_);
}

absl::StatusOr<DeviceSpan<const int32_t>> GroupRows::UploadLast(std::span<const int32_t> rows) {
  RETURN_IF_ERROR(device_->Synchronize(*uploaded_));
  const std::span<int32_t> host = host_last_.as<int32_t>().first(rows.size());
  std::ranges::copy(rows, host.begin());
  RETURN_IF_ERROR(
      device_->Upload(*stream_, std::as_bytes(host), last_.bytes().first(host.size_bytes())));
  RETURN_IF_ERROR(stream_->Record(*uploaded_));
  return last_.as<const int32_t>().first(rows.size());
}

}  // namespace retroinfer
