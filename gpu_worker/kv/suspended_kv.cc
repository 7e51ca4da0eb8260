// Copies run on a stream of their own, so that steps of other sequences go on beside them. What
// keeps copies and steps apart:
// * Copies out wait for the compute stream, which wrote the blocks. No other sequence gets the
//   blocks before the host has seen the copies done.
// * Copies back wait for the compute stream, too: it may still use the blocks for their last owner.
//   The sequence takes part in no step before the host has seen the copies done.
// * All copies are on one stream: a host block that was freed is written after it was read.
#include "gpu_worker/kv/suspended_kv.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"

namespace retroinfer {

absl::StatusOr<std::unique_ptr<SuspendedKv>> SuspendedKv::Create(Device& device, Stream& compute,
                                                                 KvMemory& memory,
                                                                 int32_t num_blocks,
                                                                 const WindowLayers* windows) {
  auto kv = absl::WrapUnique(new SuspendedKv(device, compute, memory, windows, num_blocks));
  ASSIGN_OR_RETURN(kv->host_,
                   device.AllocateHost(HostBytesOf(memory.sizes().geometry, num_blocks)));
  ASSIGN_OR_RETURN(kv->copies_, device.CreateStream(StreamKind::kCompute));
  ASSIGN_OR_RETURN(kv->computed_, device.CreateEvent());
  return kv;
}

SuspendedKv::~SuspendedKv() {
  if (copies_ != nullptr) copies_->Synchronize().IgnoreError();
}

int32_t SuspendedKv::DenseBlocksOf(const SequenceKv& sequence) {
  const int64_t window = std::max<int64_t>(0, sequence.num_tokens - sequence.window_begin);
  return static_cast<int32_t>(1 + (window + kDenseBlockTokens - 1) / kDenseBlockTokens);
}

absl::Status SuspendedKv::WaitForCompute() {
  RETURN_IF_ERROR(compute_.Record(*computed_));
  return copies_->Wait(*computed_);
}

absl::StatusOr<SuspendedKv::Copy> SuspendedKv::CopyOut(const SequenceKv& sequence) {
  const int32_t num_blocks = BlocksOf(sequence);
  const auto num_dense = static_cast<size_t>(num_blocks - ring_host_blocks_);
  RI_CHECK(num_dense <= sequence.dense_blocks.size());
  Copy copy;
  ASSIGN_OR_RETURN(copy.done, device_.CreateEvent());
  RETURN_IF_ERROR(WaitForCompute());
  RI_CHECK(host_blocks_.Allocate(num_blocks, copy.host_blocks));
  absl::Status status;
  for (size_t i = 0; i < num_dense && status.ok(); ++i) {
    status =
        device_.Download(*copies_, OnDevice(sequence.dense_blocks[i]), Host(copy.host_blocks[i]));
  }
  if (status.ok()) {
    status = ForRing(sequence, copy.host_blocks,
                     [this](DeviceSpan<std::byte> ring, std::span<std::byte> host) {
                       return device_.Download(*copies_, ring, host);
                     });
  }
  if (status.ok()) status = copies_->Record(*copy.done);
  if (!status.ok()) {
    host_blocks_.Free(copy.host_blocks);
    return status;
  }
  return copy;
}

absl::Status SuspendedKv::ForRing(
    const SequenceKv& sequence, std::span<const int32_t> host_blocks,
    absl::FunctionRef<absl::Status(DeviceSpan<std::byte>, std::span<std::byte>)> copy) const {
  if (windows_ == nullptr) return absl::OkStatus();
  DeviceSpan<std::byte> rest = windows_->Ring(sequence.table_row);
  for (const int32_t host_block : host_blocks.last(static_cast<size_t>(ring_host_blocks_))) {
    const size_t bytes = std::min(block_bytes_, rest.size());
    RETURN_IF_ERROR(copy(rest.first(bytes), Host(host_block).first(bytes)));
    rest = rest.subspan(bytes, rest.size() - bytes);
  }
  return absl::OkStatus();
}

absl::Status SuspendedKv::CopyBack(SequenceKv& sequence, Copy& copy,
                                   absl::FunctionRef<absl::Status(Stream&)> enqueue_rest) {
  const absl::Status status = EnqueueBack(sequence, copy, enqueue_rest);
  // What was enqueued before it failed must be over when the sequence gives its blocks up.
  if (!status.ok()) copies_->Synchronize().IgnoreError();
  return status;
}

absl::Status SuspendedKv::EnqueueBack(SequenceKv& sequence, Copy& copy,
                                      absl::FunctionRef<absl::Status(Stream&)> enqueue_rest) {
  const size_t num_dense = copy.host_blocks.size() - static_cast<size_t>(ring_host_blocks_);
  RI_CHECK(num_dense <= sequence.dense_blocks.size());
  RETURN_IF_ERROR(WaitForCompute());
  RETURN_IF_ERROR(memory_.tables().WriteDense(*copies_, sequence.table_row, sequence.dense_blocks));
  for (size_t i = 0; i < num_dense; ++i) {
    RETURN_IF_ERROR(
        device_.Upload(*copies_, Host(copy.host_blocks[i]), OnDevice(sequence.dense_blocks[i])));
  }
  RETURN_IF_ERROR(ForRing(sequence, copy.host_blocks,
                          [this](DeviceSpan<std::byte> ring, std::span<std::byte> host) {
                            return device_.Upload(*copies_, host, ring);
                          }));
  RETURN_IF_ERROR(enqueue_rest(*copies_));
  return copies_->Record(*copy.done);
}

}  // namespace retroinfer
