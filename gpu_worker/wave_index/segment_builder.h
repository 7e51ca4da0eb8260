// Builds segments in the background: clusters the keys of one layer after the other and writes
// pages and index into the segment's extent and the meta pool.
//
// Threads: one (the engine's); the work itself runs on the background stream, in order.
// Owns:    scratch memory for one (segment, layer) at a time, and a page counter for each open
//          segment.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/extent.h"
#include "common/kv/segment_layout.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/ops/backend/backend_needs.h"
#include "gpu_worker/ops/backend/ops.h"
#include "gpu_worker/wave_index/wave_index_settings.h"

namespace retroinfer {

// The arena, as the host and as the device see it.
struct ArenaView {
  std::span<std::byte> host;
  DeviceSpan<std::byte> device;  // the same bytes
};

// Where a segment comes from and goes to.
struct SegmentTarget {
  int64_t token_begin = 0;  // position in the sequence of its first token
  uint32_t num_tokens = 0;
  Extent extent;                              // at least SegmentLayout::max_pages
  DeviceSpan<const MetaBlockId> meta_blocks;  // [num_tokens / 1024]; must stay until it is done
  SlotFill fill;                              // slots that get the pages, too; as long
};

// A segment whose parts of the builder's heads are complete in the arena. Their KV lies in pages
// [first_kv_page, used_pages) of the extent.
struct BuiltSegment {
  uint32_t first_kv_page = 0;
  uint32_t used_pages = 0;
};

class SegmentBuilder {
 public:
  struct Limits {
    uint32_t max_segment_tokens = kPrefillSegmentTokens;
    int32_t max_open_segments = 0;
    KvHeadRange heads;  // of the arena's, that the pool has
  };

  // `background` must outlive the builder. Returns INVALID_ARGUMENT for heads that the pool does
  // not have, and for an arena that entries of the index cannot count (CheckPlaces).
  static absl::StatusOr<std::unique_ptr<SegmentBuilder>> Create(
      Device& device, Ops& ops, Stream& background, const MetaPoolView& meta_pool,
      const ArenaView& arena, const WaveIndexSettings& settings, const Limits& limits);
  static MemoryNeed MemoryOf(const KvGeometry& geometry, const Limits& limits,
                             const BackendNeeds& backend);
  // Waits for the work that has been enqueued.
  ~SegmentBuilder();

  // A segment under construction. Must be closed or abandoned.
  using Ticket = int32_t;

  // Returns RESOURCE_EXHAUSTED if max_open_segments are open.
  absl::StatusOr<Ticket> Open(const SegmentTarget& target);
  // Enqueues one layer. Layers must come in order; the segment's first token is row
  // target.token_begin - tokens_left_out of `kv`, which must stay untouched until the background
  // stream has passed.
  absl::Status BuildLayer(Ticket ticket, uint32_t layer, const LayerKv& kv,
                          int64_t tokens_left_out = 0);
  // Enqueues all layers of a segment of 1024 tokens that lies in 16 dense blocks. The ids are
  // copied before this returns: the sequence's own table may change while the background waits. The
  // blocks' contents must stay untouched until the background stream has passed.
  absl::Status BuildFromDense(Ticket ticket, const DensePoolView& pool,
                              std::span<const DenseBlockId> block_ids);
  // Enqueues what tells that all layers are there; to be called once, after the last one.
  absl::Status Seal(Ticket ticket);
  // Looks whether a sealed segment is complete in the arena. If it is, returns it and closes the
  // ticket, which is free again and must not be asked for any more; otherwise nothing.
  absl::StatusOr<std::optional<BuiltSegment>> PollDone(Ticket ticket);
  // Closes an open segment that nobody wants any more. Its extent, meta blocks and slots may still
  // be written until the background stream has passed.
  absl::Status Abandon(Ticket ticket);

  Stream& background() { return background_; }
  int32_t num_open() const;
  uint64_t num_built() const { return num_built_; }
  uint64_t bytes_written() const { return bytes_written_; }  // to the arena

 private:
  struct OpenSegment {
    bool is_open = false;
    bool is_sealed = false;
    SegmentTarget target;
    std::unique_ptr<Event> done;
  };

  SegmentBuilder(Device& device, Ops& ops, Stream& background, const MetaPoolView& meta_pool,
                 const ArenaView& arena, const WaveIndexSettings& settings, const Limits& limits)
      : device_(device),
        ops_(ops),
        background_(background),
        meta_pool_(meta_pool),
        arena_(arena),
        settings_(settings),
        limits_(limits) {}

  struct Allocation {
    DeviceBuffer SegmentBuilder::*buffer;
    size_t bytes;
  };
  // `cluster_scratch`: bytes that ClusterKeys needs for the largest segment.
  static std::vector<Allocation> Allocations(const KvGeometry& geometry, const Limits& limits,
                                             size_t cluster_scratch);
  absl::Status Allocate();
  absl::Status BuildRows(const OpenSegment& segment, Ticket ticket, uint32_t layer,
                         const LayerKv& kv, int64_t first_row);
  // What the parts of all heads share: the header, where a segment begins, and the gap behind the
  // index.
  void WriteHeader(const OpenSegment& segment, uint32_t used_pages);
  bool is_divided() const { return !limits_.heads.is_all(); }
  SegmentLayout LayoutOf(uint32_t num_tokens) const {
    return {limits_.heads.ArenaOf(meta_pool_.geometry), num_tokens};
  }
  KvRegion RegionOf(uint32_t num_tokens) const {
    return LayoutOf(num_tokens).RegionOf(limits_.heads.Of(meta_pool_.geometry));
  }
  OpenSegment& Get(Ticket ticket);
  uint32_t* PageCounter(Ticket ticket) const;

  Device& device_;
  Ops& ops_;
  Stream& background_;
  const MetaPoolView meta_pool_;
  const ArenaView arena_;
  const WaveIndexSettings settings_;
  const Limits limits_;

  // Scratch of ClusterKeys and WriteSegment, for the largest segment.
  DeviceBuffer assignment_;
  DeviceBuffer sizes_;
  DeviceBuffer centroids_;
  DeviceBuffer value_sums_;
  DeviceBuffer radii_;
  DeviceBuffer cluster_scratch_;
  DeviceBuffer write_scratch_;
  DeviceBuffer decode_kv_;  // keys, then values, of one layer of a segment of 1024 tokens

  HostBuffer host_block_ids_;   // [tickets][16]: where segments of generated tokens lie
  DeviceBuffer block_ids_;      // the same
  DeviceBuffer page_counters_;  // uint32, one for each ticket
  // First pages of KV of segments of 1024, 2048, ... tokens: what counters begin with. Constant, as
  // the stream may read it at any time.
  std::vector<uint32_t> first_pages_;
  HostBuffer host_used_pages_;  // uint32, downloaded from page_counters_
  std::vector<OpenSegment> segments_;
  uint64_t num_built_ = 0;
  uint64_t bytes_written_ = 0;
};

}  // namespace retroinfer
