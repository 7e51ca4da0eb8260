// Computes the prompts of a group together, layer-major: for one layer all rows of all of them,
// then the next layer (docs/architecture.md, "Prefill"). The rows lie one after the other, so that
// a pass (some rows through one layer) is one product for each matrix, whichever prompts they
// belong to; each prompt attends to its own keys.
//
// Cached tokens are not computed: for each layer, first the sink (4 tokens, which are in no segment
// and no block), then the cached tokens' KV is read from the arena, then the rest is computed.
// Where that KV is exact, what the rest attends to is bit by bit what a prefill of everything would
// have computed.
//
// Prompts that begin with the same cached tokens are read as one (prefill_runs.h): their KV lies
// in one place, where each prompt's own rows take the places of those of the one before. What the
// background still reads of them is copied to a place of its own as it is computed. The result is
// that of reading each alone, bit by bit.
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
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/attention/attention_policy.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/executor/cached_kv_reader.h"
#include "gpu_worker/executor/prefill_runs.h"
#include "gpu_worker/model/transformer.h"

namespace retroinfer {

class PrefillLane {
 public:
  enum class Outcome {
    kWorked,   // rows are enqueued, more to come
    kBlocked,  // both KV buffers are still being read in the background: try again later
    kDone,     // the prompts are computed and their last layer handed over; logits are filled
  };

  // What a lane computes with; all of it outlives the lane.
  struct Parts {
    Device* device = nullptr;
    Ops* ops = nullptr;
    Stream* stream = nullptr;  // compute
    Transformer* model = nullptr;
    DeviceSpan<std::byte> arena;  // only read
  };

  // A prompt of a group, or the part of it that its policy reads next. It stays unchanged, and all
  // three stay, until the member has left.
  struct Member {
    std::span<const int32_t> prompt;
    SequenceKv* sequence = nullptr;
    AttentionPolicy* policy = nullptr;
    bool keeps_all_rows = false;  // computes the last layer for all of them: FillLogits()
  };

  // Bytes of KV that were read from the arena for cached tokens, and what reading each prompt alone
  // would have read beyond that; the same for rows of a layer that were computed.
  struct Counters {
    uint64_t staged_bytes = 0;
    uint64_t shared_bytes = 0;
    uint64_t computed_rows = 0;
    uint64_t shared_rows = 0;
  };

  // A lane for groups of up to `max_tokens` tokens of prompts and `max_members` prompts.
  // `max_rows` is the largest pass.
  static absl::StatusOr<std::unique_ptr<PrefillLane>> Create(const Parts& parts,
                                                             const KvGeometry& geometry,
                                                             int64_t max_tokens, int64_t max_rows,
                                                             int32_t max_members = 1);
  static MemoryNeed MemoryOf(const ModelConfig& model, DType activation_dtype,
                             const KvGeometry& geometry, int64_t max_tokens,
                             int32_t max_members = 1);

  int64_t max_tokens() const { return max_tokens_; }
  bool busy() const;
  // Whether the sequence is a member that has not left.
  bool Has(const SequenceKv& sequence) const;

  // REQUIRES: not busy; 1 to max_members prompts, none empty.
  // Returns:  INTERNAL if they take more than max_tokens() together: a family (prefill_runs.h) of
  //           several takes its longest prompt, and what each computes alone whose policy does not
  //           take it in order; another prompt takes its tokens. Nor may there be more rows.
  absl::Status Begin(std::span<const Member> members);
  // The same for one prompt.
  absl::Status Begin(std::span<const int32_t> prompt, SequenceKv& sequence,
                     AttentionPolicy& policy);

  // Where the next rows are: layers(), once all is computed or nobody is left to compute for.
  uint32_t layer() const { return layer_; }
  int64_t next_row() const { return next_row_; }
  int64_t num_rows() const { return num_rows_; }
  // The group's rows, as long as it is busy.
  const std::vector<PrefillRun>& runs() const { return runs_.runs; }
  const Counters& counters() const { return counters_; }
  // Layers from this on must wait: a member's policy still reads the buffer that they need.
  absl::StatusOr<uint32_t> LayersOpen() const;

  // Enqueues the next `rows` rows of layer(). On kDone row i of `logits` ([members, vocab] f32)
  // belongs to the last token of the i-th of Live() that FinishesPrompt(); nobody has left the lane
  // yet.
  //
  // REQUIRES: layer() is open; 1 <= rows <= max_rows, and no more than the layer has left.
  absl::StatusOr<Outcome> RunPass(int64_t rows, const MatrixView& logits);
  // Members whose policy did not take a layer, since this was asked last: nobody computes for them
  // any more, as if they had been dropped.
  using Failure = std::pair<const SequenceKv*, absl::Status>;
  std::vector<Failure> TakeFailures();
  // Behind kDone, until the member leaves: logits of its rows from `first_row` on, as many as
  // `logits` has. REQUIRES: it keeps all rows, of which there are as many.
  absl::Status FillLogits(const SequenceKv& sequence, int64_t first_row,
                          const MatrixView& logits) const;
  // For callers without a plan: as many of `rows` rows as a pass can have.
  absl::StatusOr<Outcome> RunSlice(int64_t rows, const MatrixView& logits);

  // Whether the member's rows are the last ones of its prompt.
  bool FinishesPrompt(const SequenceKv& sequence) const;
  // Members that have neither left nor been dropped, in order.
  std::vector<SequenceKv*> Live() const;
  // Nobody wants the member's result any more: its policy is handed no further layer. It has not
  // left, because the background may still read what it was handed.
  void Drop(const SequenceKv& sequence);
  // The member leaves; the lane is free when the last one has left.
  // REQUIRES: its policy has let go of the sequence's layers.
  void Leave(const SequenceKv& sequence);

  // Prompt tokens whose share of all layers is done; cached ones count from the beginning.
  int64_t processed_tokens(const SequenceKv& sequence) const;

 private:
  struct Place {
    Member member;
    bool is_dropped = false;
    int64_t num_rows = 0;  // of its runs
    int64_t last_row = 0;  // in the group
    int64_t cached_tokens = 0;
    PromptPart part;
    // Of a family of several: where the background finds the sink and the computed tokens.
    bool has_kept = false;
    int64_t first_kept_token = 0;  // of the lane's KV
    int64_t num_kept = 0;          // tokens there

    bool is_here() const { return member.sequence != nullptr && !is_dropped; }
    bool is_last_part() const { return part.end == static_cast<int64_t>(member.prompt.size()); }
  };
  // Where the KV of a family's prompts lies, in the order of their positions.
  struct Family {
    int64_t first_token = 0;  // of the lane's KV
    int64_t num_tokens = 0;
    int64_t row_of_position = 0;  // to be added to a position
  };

  PrefillLane(const Parts& parts, const KvGeometry& geometry, int64_t max_tokens, int64_t max_rows)
      : parts_(parts), geometry_(geometry), max_tokens_(max_tokens), max_rows_(max_rows) {}

  absl::Status UploadRows();
  absl::Status PrepareLayer();
  absl::Status PlaceKv();
  absl::Status ReadCachedTokens(const PrefillRun& run);
  absl::Status ReadForKept(const CachedRead& read);
  absl::Status TakeLayer(const PrefillRun& run);
  void CollectPieces(int64_t first_row, int64_t num_rows);
  void AddPiece(const PrefillRun& run, int64_t first, int64_t last);
  void CountRows(const PrefillRun& run, int64_t rows);
  absl::Status FillLastLogits(const MatrixView& logits);
  LayerKv KvAt(int64_t first_token, int64_t num_tokens) const;
  LayerKv KvOf(const Family& family) const { return KvAt(family.first_token, family.num_tokens); }
  // What the policy of a member is given.
  LayerKv TakenKvOf(size_t member) const;
  MatrixView Hidden() const;

  const Parts parts_;
  const KvGeometry geometry_;
  const int64_t max_tokens_;
  const int64_t max_rows_;
  HostBuffer host_rows_;      // token ids, then positions: int32 [2, max_tokens]
  DeviceBuffer rows_;         // the same
  HostBuffer host_last_;      // int32 [max_members]: rows of last tokens
  DeviceBuffer last_;         // the same
  DeviceBuffer last_hidden_;  // [max_members, hidden]
  DeviceBuffer hidden_;       // [max_tokens, hidden]
  // Of even and odd layers: for each member [2][kv_heads][its tokens][head_dim], one after the
  // other.
  std::array<DeviceBuffer, 2> kv_;
  std::unique_ptr<Event> uploaded_;  // behind the last copy from the host buffers
  std::optional<CachedKvReader> reader_;

  std::vector<Place> places_;  // by member
  PrefillRuns runs_;
  std::vector<Family> families_;
  std::vector<Failure> failures_;
  Counters counters_;
  int64_t num_rows_ = 0;
  uint32_t layer_ = 0;
  int64_t next_row_ = 0;
  std::vector<PrefillPiece> pieces_;  // of the pass that is being enqueued
};

}  // namespace retroinfer
