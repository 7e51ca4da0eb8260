// Reads the KV of cached tokens from the arena into a layer of a group's prompts: segments, whose
// pages are in the order of their clusters, and blocks, which are dense blocks as they were saved.
//
// Threads: the engine's thread.
// Owns:    the list of blocks, on the host and on the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/kv/cached_run.h"
#include "gpu_worker/kv/window_layers.h"
#include "gpu_worker/ops/backend/ops.h"

namespace retroinfer {

class CachedKvReader {
 public:
  // All parts outlive the reader.
  struct Parts {
    Device* device = nullptr;
    Ops* ops = nullptr;
    Stream* stream = nullptr;     // compute
    DeviceSpan<std::byte> arena;  // only read
    KvHeadRange heads;            // of the arena's, that the layer's KV has
  };

  // For groups of up to `max_members` prompts of up to `max_tokens` tokens.
  static absl::StatusOr<CachedKvReader> Create(const Parts& parts, const KvGeometry& geometry,
                                               int64_t max_tokens, int32_t max_members);
  static MemoryNeed MemoryOf(int64_t max_tokens, int32_t max_members);

  // A group begins, whose prompts have these cached runs: by member, unchanged until the next
  // Begin(). Enqueues the copy of the list of their blocks.
  absl::Status Begin(std::vector<std::span<const CachedRun>> members);

  // Enqueues the reading of one layer of cached runs [first, last) of a member into `out`, from
  // `row` on. REQUIRES: one run, or several neighbouring runs that are all blocks.
  absl::Status Read(size_t member, size_t first, size_t last, uint32_t layer, const LayerKv& out,
                    int64_t row);
  // The same of all of a member's cached runs from `first` on.
  absl::Status ReadFrom(size_t member, size_t first, uint32_t layer, const LayerKv& out,
                        int64_t row);
  // Enqueues the reading of one window layer of the tail of a member's cached run: into the rows of
  // `out` that are the tail's positions. Returns: INTERNAL if the run is a block, which has no
  // tail.
  absl::Status ReadTail(size_t member, size_t index, WindowLayers& windows, uint32_t layer,
                        const LayerKv& out);

 private:
  CachedKvReader(const Parts& parts, const KvGeometry& geometry)
      : parts_(parts), geometry_(geometry) {}

  Parts parts_;
  KvGeometry geometry_;
  // First pages of the members' cached blocks, one member after the other: int32.
  HostBuffer host_blocks_;
  DeviceBuffer blocks_;
  std::unique_ptr<Event> uploaded_;  // behind the last copy from the host buffer

  std::vector<std::span<const CachedRun>> members_;
  std::vector<size_t> first_block_;  // by member
};

}  // namespace retroinfer
