// Computes one prompt at a time, layer-major: for one layer all chunks of the prompt, then the next
// layer (design: "Prefill"). Work comes in slices of one (layer, chunk), between which the engine
// runs decode steps of other sequences.
//
// Tokens of cached segments are not computed: for each layer, first the sink (4 tokens, which are
// in no segment), then the cached tokens' KV is read from the arena, then the rest is computed.
// What the rest attends to is bit by bit what a prefill of everything would have computed.
//
// Only one layer's KV is here at a time, in two buffers: while layer l + 1 computes, the policy
// still reads layer l's. The policy takes each finished layer over (index construction, copies to
// the arena).
//
// Threads: the engine's thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/attention/attention_policy.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/model/transformer.h"

namespace retroinfer {

class PrefillLane {
 public:
  enum class Outcome {
    kWorked,  // a slice is done, more to come
    // Both KV buffers are still being read in the background, or the device is kSlicesAhead behind:
    // try again later.
    kBlocked,
    kDone,  // the prompt is computed and its last layer handed over; logits are filled
  };

  // Slices that the device may have yet to compute when the next one is enqueued: enough to keep it
  // busy, few enough that an abort, a decode step or another lane's slice comes soon.
  static constexpr size_t kSlicesAhead = 4;

  // What a lane computes with; all of it outlives the lane.
  struct Parts {
    Device* device = nullptr;
    Ops* ops = nullptr;
    Stream* stream = nullptr;  // compute
    Transformer* model = nullptr;
    DeviceSpan<const std::byte> arena;
  };

  // A lane for prompts of up to `max_tokens`. `max_rows` is the largest chunk.
  static absl::StatusOr<std::unique_ptr<PrefillLane>> Create(const Parts& parts,
                                                             const KvGeometry& geometry,
                                                             int64_t max_tokens, int64_t max_rows);

  int64_t max_tokens() const { return max_tokens_; }
  bool busy() const { return sequence_ != nullptr; }
  const SequenceKv* sequence() const { return sequence_; }

  // REQUIRES: not busy; 1 <= prompt.size() <= max_tokens; both outlive the prefill. `prompt` stays
  // unchanged.
  void Begin(std::span<const int32_t> prompt, SequenceKv& sequence, AttentionPolicy& policy);
  // Computes up to `rows` tokens of the current layer. On kDone `logits` ([1, vocab] f32) belong to
  // the prompt's last token; the lane stays busy until End().
  absl::StatusOr<Outcome> RunSlice(int64_t rows, const MatrixView& logits);
  // Makes the lane free. REQUIRES: the policy has let go of the sequence's layers.
  void End() { sequence_ = nullptr; }

  // Prompt tokens whose share of all layers is done; cached ones count from the beginning.
  int64_t processed_tokens() const;

 private:
  PrefillLane(const Parts& parts, const KvGeometry& geometry, int64_t max_tokens, int64_t max_rows)
      : parts_(parts), geometry_(geometry), max_tokens_(max_tokens), max_rows_(max_rows) {}

  absl::StatusOr<Outcome> Advance(int64_t rows, const MatrixView& logits);
  absl::Status RunChunk(int64_t rows);
  // Fills the rows of cached tokens of the current layer and goes on behind them.
  absl::Status ReadCachedTokens();
  LayerKv KvOfLayer(uint32_t layer) const;

  const Parts parts_;
  const KvGeometry geometry_;
  const int64_t max_tokens_;
  const int64_t max_rows_;
  DeviceBuffer token_ids_;          // [max_rows]
  DeviceBuffer hidden_;             // [max_tokens, hidden]
  std::array<DeviceBuffer, 2> kv_;  // [2][kv_heads][max_tokens][head_dim]
  std::array<std::unique_ptr<Event>, kSlicesAhead> slice_computed_;  // of the last slices, in turn
  size_t num_slices_ = 0;

  std::span<const int32_t> prompt_;
  SequenceKv* sequence_ = nullptr;
  AttentionPolicy* policy_ = nullptr;
  uint32_t layer_ = 0;
  int64_t next_token_ = 0;
};

}  // namespace retroinfer
