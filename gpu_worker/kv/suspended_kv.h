// The KV of suspended sequences: page-locked host blocks for what their dense blocks hold, all of
// them allocated at the start, and a stream for copies beside the engine's. Indexed tokens need no
// host block: pages and index of every segment are in the arena.
//
// A resumed sequence has the same bytes in other dense blocks.
//
// Threads: the engine's thread.
// Owns:    the host memory and the stream. Device, stream and memory outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/kv/id_allocator.h"
#include "gpu_worker/kv/kv_memory.h"
#include "gpu_worker/kv/sequence_kv.h"
#include "gpu_worker/kv/window_layers.h"

namespace retroinfer {

class SuspendedKv {
 public:
  // The host blocks of one sequence, and the event after its last copy.
  struct Copy {
    std::vector<int32_t> host_blocks;  // of its dense blocks, in their order, then of its ring
    std::unique_ptr<Event> done;
  };

  // Allocates `num_blocks` host blocks. `compute` is the stream that steps run on; `windows` is
  // null where all layers are indexed, and outlives the object.
  static absl::StatusOr<std::unique_ptr<SuspendedKv>> Create(Device& device, Stream& compute,
                                                             KvMemory& memory, int32_t num_blocks,
                                                             const WindowLayers* windows = nullptr);
  // Waits for the copies that are under way.
  ~SuspendedKv();

  // Host memory of `num_blocks` host blocks.
  static size_t HostBytesOf(const KvGeometry& geometry, int32_t num_blocks) {
    return static_cast<size_t>(num_blocks) * DensePoolView::BlockBytes(geometry);
  }

  // Host blocks that a sequence's ring of window layers takes, of `ring_bytes`.
  static int32_t RingBlocksOf(const KvGeometry& geometry, size_t ring_bytes) {
    const size_t block = DensePoolView::BlockBytes(geometry);
    return static_cast<int32_t>((ring_bytes + block - 1) / block);
  }

  // Dense blocks of the sequence that hold tokens.
  static int32_t DenseBlocksOf(const SequenceKv& sequence);

  // Host blocks that the sequence needs: one for each of its dense blocks that hold tokens, and
  // those of its ring.
  int32_t BlocksOf(const SequenceKv& sequence) const {
    return DenseBlocksOf(sequence) + ring_host_blocks_;
  }

  int32_t num_free() const { return host_blocks_.num_free(); }
  size_t block_bytes() const { return block_bytes_; }
  size_t bytes_in_use() const {
    return HostBytesOf(memory_.sizes().geometry, host_blocks_.total() - host_blocks_.num_free());
  }

  // Enqueues copies of what the dense blocks of a preempted sequence hold. The sequence keeps its
  // blocks until IsDone(); then KvMemory::Free() may have them.
  // REQUIRES: BlocksOf(sequence) <= num_free(); nothing in the background writes the blocks, and no
  //           step is under way.
  // Returns:  the device's error, and the sequence is as it was.
  absl::StatusOr<Copy> CopyOut(const SequenceKv& sequence);
  // Enqueues the sequence's rows of the block tables, the copies back, and then what `enqueue_rest`
  // puts on the same stream (AttentionPolicy::OnResume). The sequence takes part in no step before
  // IsDone(). If CopyBack fails, the sequence has to end.
  // REQUIRES: KvMemory::Reserve() has given the sequence blocks again.
  absl::Status CopyBack(SequenceKv& sequence, Copy& copy,
                        absl::FunctionRef<absl::Status(Stream&)> enqueue_rest);
  // Whether the device has done what the last of these two calls enqueued.
  absl::StatusOr<bool> IsDone(const Copy& copy) const { return device_.IsDone(*copy.done); }
  // Frees the copy's host blocks. REQUIRES: IsDone().
  void Free(Copy& copy) { host_blocks_.Free(copy.host_blocks); }

 private:
  SuspendedKv(Device& device, Stream& compute, KvMemory& memory, const WindowLayers* windows,
              int32_t num_blocks)
      : device_(device),
        compute_(compute),
        memory_(memory),
        windows_(windows),
        ring_host_blocks_(
            windows == nullptr ? 0 : RingBlocksOf(memory.sizes().geometry, windows->ring_bytes())),
        block_bytes_(DensePoolView::BlockBytes(memory.sizes().geometry)),
        host_blocks_(num_blocks) {}

  // The sequence's ring in pieces of a host block: calls `copy` with each piece and its host block,
  // the last ones of `host_blocks`, cut to the size of the piece.
  absl::Status ForRing(
      const SequenceKv& sequence, std::span<const int32_t> host_blocks,
      absl::FunctionRef<absl::Status(DeviceSpan<std::byte>, std::span<std::byte>)> copy) const;
  absl::Status EnqueueBack(SequenceKv& sequence, Copy& copy,
                           absl::FunctionRef<absl::Status(Stream&)> enqueue_rest);
  // Makes copies wait for what is on its way on the engine's stream.
  absl::Status WaitForCompute();
  std::span<std::byte> Host(int32_t host_block) const {
    return host_.bytes().subspan(static_cast<size_t>(host_block) * block_bytes_, block_bytes_);
  }
  DeviceSpan<std::byte> OnDevice(DenseBlockId block) const {
    return memory_.dense_pool().bytes.subspan(static_cast<size_t>(block) * block_bytes_,
                                              block_bytes_);
  }

  Device& device_;
  Stream& compute_;
  KvMemory& memory_;
  const WindowLayers* const windows_;
  const int32_t ring_host_blocks_;
  const size_t block_bytes_;
  HostBuffer host_;
  std::unique_ptr<Stream> copies_;
  std::unique_ptr<Event> computed_;
  IdAllocator host_blocks_;
};

}  // namespace retroinfer
