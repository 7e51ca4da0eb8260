// Policy `wave`: tripartite attention. Steady zone and retrieved clusters exactly, the next
// clusters by estimate; the KV of indexed tokens lives in the arena (RetroInfer, sections 4 and 5).
//
// A prompt's segments are built while it is prefilled. Segments of generated tokens are built in
// the background and go live at the position that the plan says, so results do not depend on
// timing.
//
// Threads: the engine's thread; construction runs on the builder's background stream.
// Owns:    the step's device arrays, and what it remembers of each sequence from TakeLayer or
// BeginStep to
//          Release.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gpu_worker/attention/attention_policy.h"
#include "gpu_worker/attention/dense_zone_batch.h"
#include "gpu_worker/attention/kv_memory.h"
#include "gpu_worker/attention/wave_decode.h"
#include "gpu_worker/wave_buffer/block_cache.h"
#include "gpu_worker/wave_index/segment_builder.h"
#include "gpu_worker/wave_index/segment_plan.h"
#include "gpu_worker/wave_index/wave_index_settings.h"

namespace retroinfer {

// Told of every segment that was built and is complete in the arena: its sequence, its number
// there, and its first token's position.
using SegmentBuilt = std::function<void(const SequenceKv&, size_t, int64_t)>;

class WavePolicy final : public AttentionPolicy {
 public:
  struct Parts {
    Device* device = nullptr;
    Ops* ops = nullptr;
    Stream* stream = nullptr;  // compute
    KvMemory* memory = nullptr;
    BlockCache* cache = nullptr;
    std::unique_ptr<SegmentBuilder> builder;
    std::unique_ptr<WaveDecode> decode;
    SegmentBuilt on_built;
  };

  static absl::StatusOr<std::unique_ptr<WavePolicy>> Create(const WaveIndexSettings& settings,
                                                            int32_t max_batch, Parts parts);
  ~WavePolicy() override;

  KvNeed Need(int64_t prompt_tokens, int64_t total_tokens) const override;
  absl::Status TakeLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) override;
  absl::StatusOr<bool> LayerTaken(const SequenceKv& sequence, uint32_t layer) override;
  bool TakesInOrder(const SequenceKv& sequence) const override;
  absl::StatusOr<bool> FinishPrefill(SequenceKv& sequence) override;
  absl::StatusOr<bool> ReadyForStep(const SequenceKv& sequence) override;
  bool GoesLive(const SequenceKv& sequence) const override;
  absl::Status BeginStep(std::span<SequenceKv* const> batch) override;
  uint64_t StepShape() const override { return parts_.decode->StepShape(); }
  absl::Status UploadStep() override;
  absl::Status DecodeLayer(uint32_t layer, const MatrixView& queries, const MatrixView& keys,
                           const MatrixView& values, const MatrixView& out) override;
  absl::Status DownloadStep() override { return parts_.decode->DownloadStep(); }
  absl::Status EndStep() override;
  absl::StatusOr<bool> Release(SequenceKv& sequence) override;
  BytesRead LastStepBytes(size_t row) const override;

  const WaveIndexSettings& settings() const { return settings_; }
  const SegmentBuilder& builder() const { return *parts_.builder; }
  // Hurries index construction, see Stream::SetUrgent().
  void SetUrgent(bool urgent) { parts_.builder->background().SetUrgent(urgent); }
  // Segments that a step had to wait for because the background was late.
  uint64_t num_late_segments() const { return num_late_segments_; }

 private:
  // Segments of a sequence go through three states in order of position: planned, open (being
  // built, or found built in the arena), live.
  struct State {
    std::vector<PlannedSegment> plan;
    std::vector<SegmentBuilder::Ticket> tickets;  // of plan[0..tickets.size()); none if cached
    std::vector<BlockCache::FillTicket> fills;    // the same range
    bool is_late = false;                         // a step waits for the next one that goes live
    std::vector<bool> is_built;                   // the same range; cached ones are
    size_t num_live = 0;                          // leading segments of the plan
    std::unique_ptr<Event> layer_taken[2];        // of even and odd layers
    std::unique_ptr<Event> released;              // background work at the time of Release
    bool is_sealed = false;                       // the prompt's segments
    bool is_unshared = false;                     // no more counted among the users of its extents
    BlockCache::EndedFill fill_end = 0;           // of segments that were never built
    std::vector<BlockCache::ReleaseTicket> page_releases;  // of segments nobody uses any more
  };

  WavePolicy(const WaveIndexSettings& settings, Parts parts, DenseZoneBatch dense,
             std::unique_ptr<Event> computed)
      : settings_(settings),
        parts_(std::move(parts)),
        dense_(std::move(dense)),
        computed_(std::move(computed)) {}

  absl::StatusOr<State*> Start(SequenceKv& sequence);
  absl::Status OpenNext(const SequenceKv& sequence, State& state);
  absl::Status LoadCachedIndexes(const SequenceKv& sequence, const State& state, uint32_t layer);
  absl::StatusOr<bool> PollBuilt(const SequenceKv& sequence, State& state);
  absl::Status BuildDueSegments(const SequenceKv& sequence, State& state);
  absl::Status GoLive(SequenceKv& sequence, State& state);
  void ReleasePages(const SequenceKv& sequence, State& state);
  void DropWindowTokens(SequenceKv& sequence, uint32_t num_tokens);
  absl::Status BackgroundWaitsForCompute();

  const WaveIndexSettings settings_;
  Parts parts_;
  DenseZoneBatch dense_;
  std::unique_ptr<Event> computed_;  // a point of the compute stream for the background to wait for
  absl::flat_hash_map<uint64_t, std::unique_ptr<State>> states_;  // by sequence id
  absl::flat_hash_map<uint64_t, int32_t> extent_users_;           // states, by extent id
  std::vector<SequenceKv*> batch_;
  std::vector<WaveDecode::Sequence> decode_batch_;
  uint64_t num_late_segments_ = 0;
};

}  // namespace retroinfer
