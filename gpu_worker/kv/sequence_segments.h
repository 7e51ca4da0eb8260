// The life of the segments of every sequence: from the plan over construction in the background to
// the moment at which they are attended through their index, and to the release of their pages.
// A policy that indexes its sequences asks this at each turn; what it attends is its own affair.
//
// A prompt's segments are built while it is prefilled. A long prompt is read in stretches that end
// where a segment does: the segments of a stretch are complete, and found by others, when it ends,
// and the next stretch reads them from the arena. Segments of generated tokens are built in
// the background and go live at the position that the plan says, so results do not depend on
// timing.
//
// Threads: the engine's thread; construction runs on the builder's background stream.
// Owns:    the builder, and what it remembers of each sequence from Begin to Release.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/kv/kv_memory.h"
#include "gpu_worker/kv/partial_segments.h"
#include "gpu_worker/kv/segment_tails.h"
#include "gpu_worker/kv/sequence_kv.h"
#include "gpu_worker/wave_buffer/block_cache.h"
#include "gpu_worker/wave_index/segment_builder.h"
#include "gpu_worker/wave_index/segment_plan.h"
#include "gpu_worker/wave_index/wave_index_settings.h"

namespace retroinfer {

// Told of every segment that was built and is complete in the arena: its sequence, its number
// there, and its first token's position.
using SegmentBuilt = std::function<void(const SequenceKv&, size_t, int64_t)>;

// How long the stretches are: at least so many tokens, and at least this share of the tokens
// before, which are read again for each layer of it. A prompt that is cut off loses the stretch
// that it was in.
struct Stretches {
  int64_t least_tokens = 32768;  // 0: prompts are read as one
  double share_of_prefix = 0.5;

  // How far the stretch may go that begins at `begin`. A rest of less than one of the large
  // segments is read with what is before it.
  int64_t FurthestEnd(int64_t begin, int64_t prompt_tokens) const;
};

class SequenceSegments {
 public:
  struct Parts {
    Device* device = nullptr;
    IndexOps* ops = nullptr;
    Stream* stream = nullptr;  // compute
    KvMemory* memory = nullptr;
    BlockCache* cache = nullptr;
    PartialSegments* partial = nullptr;   // null: all cached segments are whole
    std::unique_ptr<SegmentTails> tails;  // null: all layers are indexed
    std::unique_ptr<SegmentBuilder> builder;
    SegmentBuilt on_built;
    Stretches stretches;
  };

  // Plans with settings.dense_below.
  static absl::StatusOr<std::unique_ptr<SequenceSegments>> Create(const WaveIndexSettings& settings,
                                                                  Parts parts);
  ~SequenceSegments();

  // What a sequence needs for its segments, and the dense blocks for the tokens outside of them.
  KvNeed Need(int64_t prompt_tokens, int64_t total_tokens) const;
  KvBlocks NeedWhile(const KvGrowth& growth) const;

  // Where the stretch ends that begins with the first token that is not read: at the end of a
  // segment, or of the prompt.
  int64_t StretchEnd(const SequenceKv& sequence) const;
  // Before the first layer of a stretch: places the window behind the prompt's segments and opens
  // those of the stretch that are not cached.
  // Returns: INTERNAL if the sequence has another number of extents than segments.
  absl::Status Begin(SequenceKv& sequence);
  // Loads the index of cached segments and enqueues the construction of the others. `kv` as
  // AttentionPolicy::TakeLayer has it. REQUIRES: Begin was called; layers come in order.
  absl::Status TakeLayer(const SequenceKv& sequence, uint32_t layer, const LayerKv& kv);
  // As AttentionPolicy::TakeWindowLayer. REQUIRES: there are window layers, which come in order.
  absl::Status TakeWindowLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv);
  // Whether the background has read what TakeLayer(layer) was given.
  absl::StatusOr<bool> LayerTaken(const SequenceKv& sequence, uint32_t layer) const;
  // Whether no segment of the prompt has to be built.
  bool NothingToBuild(const SequenceKv& sequence) const;
  // Whether all of the stretch's segments are complete and no layer is being read.
  absl::StatusOr<bool> PromptIsBuilt(const SequenceKv& sequence);
  // Whether segment `index` of the sequence is complete in the arena, if the sequence builds it.
  absl::StatusOr<bool> IsBuilt(const SequenceKv& sequence, size_t index);
  // The stretch is done with, which was not the last one: the next one reads its segments.
  // REQUIRES: PromptIsBuilt().
  void EndPart(SequenceKv& sequence);
  // The prompt's segments are live. REQUIRES: PromptIsBuilt().
  void FinishPrompt(SequenceKv& sequence);

  // The sequence may grow to sequence.total_tokens, which has become more: plans the segments that
  // go live by then. Without segments of its own the sequence is left as it is.
  //
  // REQUIRES: the sequence is not suspended; its extents are those of the whole plan, the new ones
  //           behind the others.
  void Grow(const SequenceKv& sequence);

  // Whether a segment goes live in the next step.
  bool GoesLive(const SequenceKv& sequence) const;
  // Whether each segment that goes live in the next step is built.
  absl::StatusOr<bool> ReadyForStep(const SequenceKv& sequence);
  // How many tokens from the next one on attend through the same index: as far as the next segment
  // that goes live behind it.
  int64_t TokensOfOneIndex(const SequenceKv& sequence) const;
  // Whether any segment goes live while a sequence grows from its prompt to `total_tokens`.
  bool AnyGoesLive(int64_t prompt_tokens, int64_t total_tokens) const;
  // What a step begins with: segments whose position has come go live and leave the window (waits
  // for one that is late); those that are due are given to the background. Returns whether the
  // sequence's dense blocks changed places.
  absl::StatusOr<bool> BeginStep(SequenceKv& sequence);

  // As AttentionPolicy::CanSuspend, OnSuspend and OnResume: pages leave the block cache unless
  // others use them; the index of every segment is read back from the arena.
  absl::StatusOr<bool> CanSuspend(const SequenceKv& sequence);
  void OnSuspend(const SequenceKv& sequence);
  absl::Status OnResume(const SequenceKv& sequence, Stream& stream);

  // As AttentionPolicy::Release.
  absl::StatusOr<bool> Release(const SequenceKv& sequence);

  // Segments that a step had to wait for, or that kept a sequence out of steps.
  uint64_t num_late() const { return num_late_; }
  const SegmentBuilder& builder() const { return *parts_.builder; }
  const WaveIndexSettings& settings() const { return settings_; }
  const Stretches& stretches() const { return parts_.stretches; }
  // See Stream::SetUrgent.
  void SetUrgent(bool urgent) { parts_.builder->background().SetUrgent(urgent); }

 private:
  struct State {
    std::vector<PlannedSegment> plan;
    std::vector<SegmentBuilder::Ticket> tickets;  // of plan[0..tickets.size()); none if cached
    std::vector<BlockCache::FillTicket> fills;    // the same range
    std::vector<bool> is_built;                   // the same range; cached ones are
    bool is_late = false;                         // a step waits for the next one that goes live
    size_t num_live = 0;                          // leading segments of the plan
    std::unique_ptr<Event> layer_taken[2];        // of even and odd layers
    std::unique_ptr<Event> released;              // background work at the time of Release
    size_t first_of_part = 0;                     // segment that this stretch builds first
    bool is_sealed = false;                       // the segments of the stretch
    bool is_unshared = false;                     // has ended: not counted in extent_users_
    bool is_suspended = false;                    // not counted in extent_users_ either
    BlockCache::EndedFill fill_end = 0;           // of segments that were never built
    std::vector<BlockCache::ReleaseTicket> page_releases;  // of segments nobody uses any more
  };

  SequenceSegments(const WaveIndexSettings& settings, Parts parts, std::unique_ptr<Event> computed)
      : settings_(settings), parts_(std::move(parts)), computed_(std::move(computed)) {}

  uint32_t num_layers() const { return parts_.memory->sizes().geometry.num_layers; }
  absl::Status Create(SequenceKv& sequence);
  absl::Status OpenNext(const SequenceKv& sequence, State& state);
  absl::Status LoadIndexes(Stream& stream, const SequenceKv& sequence, const State& state,
                           size_t num_segments, bool shares, uint32_t layer);
  absl::StatusOr<bool> PollBuilt(const SequenceKv& sequence, State& state);
  absl::Status BuildDue(const SequenceKv& sequence, State& state);
  absl::StatusOr<bool> GoLive(SequenceKv& sequence, State& state);
  void ReleasePages(const SequenceKv& sequence, State& state);
  absl::Status BackgroundWaitsForCompute();

  const WaveIndexSettings settings_;
  Parts parts_;
  std::unique_ptr<Event> computed_;  // a point of the compute stream for the background to wait for
  absl::flat_hash_map<uint64_t, std::unique_ptr<State>> states_;  // by sequence id
  absl::flat_hash_map<uint64_t, int32_t> extent_users_;           // states, by extent id
  uint64_t num_late_ = 0;
};

}  // namespace retroinfer
