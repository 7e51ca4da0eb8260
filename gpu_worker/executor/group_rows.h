// What kernels are told of the rows of a prefill lane's group: token ids, positions, and which rows
// are prompts' last ones. Host memory that copies are made from is written again only behind them.
//
// Threads: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/executor/prefill_runs.h"

namespace retroinfer {

class GroupRows {
 public:
  // For up to `max_rows` rows of up to `max_members` prompts. `device` and `stream` outlive it.
  static absl::StatusOr<GroupRows> Create(Device& device, Stream& stream, int64_t max_rows,
                                          int32_t max_members);
  static size_t Bytes(int64_t max_rows, int32_t max_members);

  // Enqueues the copies of a group's token ids and positions; `prompts` by member of the runs.
  // Waits for the last group's copies, which are long done unless that group was aborted.
  absl::Status Upload(std::span<const PrefillRun> runs,
                      std::span<const std::span<const int32_t>> prompts);
  DeviceSpan<const int32_t> ids(int64_t first, int64_t rows) const { return Part(first, rows); }
  DeviceSpan<const int32_t> positions(int64_t first, int64_t rows) const {
    return Part(max_rows_ + first, rows);
  }

  // Enqueues the copy of up to max_members numbers of rows; returns where they are on the device.
  absl::StatusOr<DeviceSpan<const int32_t>> UploadLast(std::span<const int32_t> rows);

 private:
  GroupRows(Device& device, Stream& stream, int64_t max_rows)
      : device_(&device), stream_(&stream), max_rows_(max_rows) {}
  DeviceSpan<const int32_t> Part(int64_t first, int64_t rows) const {
    return rows_.as<const int32_t>().subspan(static_cast<size_t>(first), static_cast<size_t>(rows));
  }

  Device* device_;
  Stream* stream_;
  int64_t max_rows_;
  HostBuffer host_rows_;             // token ids, then positions: int32 [2, max_rows]
  DeviceBuffer rows_;                // the same
  HostBuffer host_last_;             // int32 [max_members]: rows of last tokens
  DeviceBuffer last_;                // the same
  std::unique_ptr<Event> uploaded_;  // behind the last copy from the host buffers
};

}  // namespace retroinfer
