// Copies dense blocks of sequences into the arena, on a stream beside the engine's.
//
// Of the arena's KV heads, those that memory has are written, and the header by who has the first.
//
// Until a copy is done, its sequence keeps the blocks, and what they hold of the tokens.
//
// Threads: the engine's thread.
// Owns:    the stream. Device, stream, memory and arena outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/extent.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/kv/kv_memory.h"
#include "gpu_worker/kv/sequence_kv.h"

namespace retroinfer {

class BlockCopier {
 public:
  // A block of a sequence's window, and where its image goes.
  struct Block {
    int64_t token_begin = 0;
    uint32_t num_tokens = 0;
    Extent extent;
  };

  // `arena` is what extents lie in, as the host sees it.
  static absl::StatusOr<std::unique_ptr<BlockCopier>> Create(Device& device, Stream& compute,
                                                             KvMemory& memory,
                                                             std::span<std::byte> arena);
  // Waits for the copies that are under way.
  ~BlockCopier();

  // Begins to copy what the compute stream has written by now. `copy_id` names the copies until
  // End().
  //
  // Returns: ALREADY_EXISTS for a name in use, INTERNAL for a block that is not in the window or
  //          that its extent cannot take, or the device's error. Nothing is under way then.
  absl::Status Begin(uint64_t copy_id, const SequenceKv& sequence, std::span<const Block> blocks);
  bool Has(uint64_t copy_id) const { return copies_.contains(copy_id); }
  // Whether the copies are done. REQUIRES: Has(copy_id).
  absl::StatusOr<bool> IsDone(uint64_t copy_id) const;
  // Forgets the name. REQUIRES: the copies are done, or have failed.
  void End(uint64_t copy_id) { copies_.erase(copy_id); }
  // Whether any copy of the sequence's blocks has not ended.
  bool IsCopying(uint64_t sequence_id) const;

 private:
  struct Copy {
    uint64_t sequence_id = 0;
    std::unique_ptr<Event> done;
  };

  BlockCopier(Device& device, Stream& compute, KvMemory& memory, std::span<std::byte> arena)
      : device_(device), compute_(compute), memory_(memory), arena_(arena) {}

  absl::Status Check(const SequenceKv& sequence, const Block& block) const;
  absl::Status CopyBlock(const SequenceKv& sequence, const Block& block);

  Device& device_;
  Stream& compute_;
  KvMemory& memory_;
  const std::span<std::byte> arena_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> computed_;
  absl::flat_hash_map<uint64_t, Copy> copies_;  // by copy id
};

}  // namespace retroinfer
