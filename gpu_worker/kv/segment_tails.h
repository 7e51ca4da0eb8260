// Writes the tails of segments (common/kv/segment_layout.h): what window layers hold at a segment's
// end, for prompts that begin with it.
//
// A tail is written while its tokens are at hand: by the part of a prompt that the segment ends in,
// or behind the step that generates its last token, which may be long before the segment is built.
// A segment that is planned only after its last token has left the window gets none, and no name.
//
// Threads: the engine's thread.
// Owns:    an event for each sequence whose prompt has tails, from its first part to Forget().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/kv/sequence_kv.h"
#include "gpu_worker/kv/window_layers.h"
#include "gpu_worker/wave_index/segment_plan.h"

namespace retroinfer {

class SegmentTails {
 public:
  // All parts outlive the object.
  struct Parts {
    Device* device = nullptr;
    Stream* stream = nullptr;  // compute
    WindowLayers* windows = nullptr;
    std::span<std::byte> host_arena;
    DeviceSpan<std::byte> device_arena;
  };

  explicit SegmentTails(const Parts& parts) : parts_(parts) {}

  // A window layer of a part of a prompt is computed: writes the layer's share of the tails of
  // segments of `plan` that end in the part. Behind the last window layer SequenceKv::tails says
  // which are there. `kv` as AttentionPolicy::TakeWindowLayer has it.
  //
  // REQUIRES: `plan` is the sequence's; layers come in order.
  // Returns:  INTERNAL if the sequence has another number of extents than segments, or one that is
  //           too small for a segment with its tail.
  absl::Status TakeLayer(SequenceKv& sequence, std::span<const PlannedSegment> plan, uint32_t layer,
                         const LayerKv& kv);
  // Between two steps: enqueues copies of the tails of segments whose last token has been generated
  // since the last call.
  absl::Status SaveDue(SequenceKv& sequence, std::span<const PlannedSegment> plan);
  // Whether the segment may be committed: its tail is in the arena, or will never be.
  absl::StatusOr<bool> IsDone(const SequenceKv& sequence, size_t segment) const;
  // The sequence has ended.
  void Forget(const SequenceKv& sequence) { written_.erase(sequence.sequence_id); }

 private:
  // Bytes of the extent's tail in the arena: first, and how many.
  struct Place {
    size_t begin;
    size_t bytes;
  };
  // Returns: INTERNAL if the extent is too small.
  absl::StatusOr<Place> PlaceOf(const Extent& extent) const;

  const Parts parts_;
  // Behind the last window layer of each sequence's last part.
  absl::flat_hash_map<uint64_t, std::unique_ptr<Event>> written_;
};

}  // namespace retroinfer
