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
// Prompts that begin with the same cached tokens (a prefix group) are read as one (prefill_runs.h):
// they have one buffer of KV, in which a prompt's own rows overwrite the rows of the prompt before.
// KV that the background still reads is copied to the member's own KV as it is computed. The result
// is bit by bit that of reading each prompt alone.
//
// A prompt that is read whole (SequenceKv::reads_all) computes its sink alone. Its index is loaded,
// and only cached tokens behind its segments, which go into the window, are read: no row attends.
// A group of such prompts whose sinks are kept (sink_cache.h) computes nothing: its passes copy.
//
// A prompt of PrefillKind::kSparse attends to chosen blocks of keys (ops/attention/block_choice.h)
// in all layers but the last: there only keys and values, or rows that are told, come of it. All
// rows of a unit go in one pass (WholeUnits), and the prompt is read for itself. So its result is
// the same in any passes and groups, too.
//
// The lane has the KV of two layers at a time: while layer l + 1 computes, the policy still reads
// layer l's. The policy takes each finished layer over (index construction, copies to
// the arena). Window layers (kv/layer_map.h) are computed as the others, but for cached tokens only
// what the tail of their segment holds is read, and it is WindowLayers that takes them over.
//
// Threads: the engine's thread.
#pragma once

#include <algorithm>
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
#include "gpu_worker/executor/group_rows.h"
#include "gpu_worker/executor/prefill_runs.h"
#include "gpu_worker/executor/sink_cache.h"
#include "gpu_worker/kv/layer_map.h"
#include "gpu_worker/kv/window_layers.h"
#include "gpu_worker/model/transformer.h"

namespace retroinfer {

class PrefillLane {
 public:
  enum class Outcome {
    kWorked,   // rows are enqueued, more to come
    kBlocked,  // both KV buffers are still being read in the background: try again later
    kDone,     // the prompts are computed and their last layer handed over; logits are filled
  };

  // What a lane computes with; all parts outlive the lane.
  struct Parts {
    Device* device = nullptr;
    Ops* ops = nullptr;
    Stream* stream = nullptr;  // compute
    Transformer* model = nullptr;
    DeviceSpan<std::byte> arena;      // only read
    WindowLayers* windows = nullptr;  // null: all layers of the model are indexed
    KvHeadRange heads;                // of the arena's, that the lane's KV has
    BlockChoice sparse = kSparsePrefill;
  };

  // A prompt of a group, or the part of the prompt that its policy reads next. Prompt, sequence and
  // policy outlive the membership (Leave), and the prompt does not change.
  struct Member {
    std::span<const int32_t> prompt;
    SequenceKv* sequence = nullptr;
    AttentionPolicy* policy = nullptr;
    bool keeps_all_rows = false;  // computes the last layer for all rows: FillLogits()
  };

  // Bytes of KV that were read from the arena for cached tokens, and bytes that were not read again
  // because prompts shared them; the same for rows of a layer that were computed.
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
  bool busy() const {
    return std::ranges::any_of(members_,
                               [](auto& state) { return state.member.sequence != nullptr; });
  }
  // Whether the sequence is a member that has not left.
  bool Has(const SequenceKv& sequence) const {
    return std::ranges::any_of(members_,
                               [&](auto& state) { return state.member.sequence == &sequence; });
  }

  // REQUIRES: not busy; 1 to max_members prompts, none empty.
  // Returns:  INTERNAL if the members take more than max_tokens() tokens, or have more rows.
  //           A prompt that is alone in its prefix group takes its tokens. Several prompts take
  //           the longest one's, and for each member whose policy does not take the prompt in order
  //           the tokens that the member computes alone.
  absl::Status Begin(std::span<const Member> members);
  // The same for one prompt.
  absl::Status Begin(std::span<const int32_t> prompt, SequenceKv& sequence,
                     AttentionPolicy& policy) {
    const Member member{.prompt = prompt, .sequence = &sequence, .policy = &policy};
    return Begin(std::span(&member, 1));
  }

  // Layer and first row of the next pass. layer() is the number of layers once all is computed or
  // no member is left to compute for.
  uint32_t layer() const { return layer_; }
  int64_t next_row() const { return next_row_; }
  int64_t num_rows() const { return num_rows_; }
  // The group's rows, as long as it is busy.
  const std::vector<PrefillRun>& runs() const { return runs_.runs; }
  const Counters& counters() const { return counters_; }
  // Layers from the result on must wait: a member's policy still reads the buffer that they need.
  absl::StatusOr<uint32_t> LayersOpen() const;

  // The largest number of rows up to `rows`, or the least above, that a pass from next_row() on can
  // have: no unit of a sparse prompt goes on behind them.
  int64_t WholeUnits(int64_t rows) const { return runs_.WholeUnits(next_row_, rows); }

  // Enqueues the next `rows` rows of layer(). On kDone row i of `logits` ([members, vocab] f32)
  // belongs to the last token of the i-th of Live() that FinishesPrompt(); nobody has left the lane
  // yet.
  //
  // REQUIRES: layer() is open; 1 <= rows <= max_rows, and no more than the layer has left; they are
  //           WholeUnits().
  absl::StatusOr<Outcome> RunPass(int64_t rows, const MatrixView& logits);
  // Members whose policy has refused a layer since the last call. They are treated like dropped
  // members: nothing more is computed for them.
  using Failure = std::pair<const SequenceKv*, absl::Status>;
  std::vector<Failure> TakeFailures() { return std::exchange(failures_, {}); }
  // After kDone, until the member leaves: fills logits.rows rows of logits, from the member's row
  // `first_row` on. REQUIRES: the member keeps all rows, and has these rows.
  absl::Status FillLogits(const SequenceKv& sequence, int64_t first_row,
                          const MatrixView& logits) const;
  // For callers without a plan: runs at most `rows` rows, as many as one pass can have.
  absl::StatusOr<Outcome> RunSlice(int64_t rows, const MatrixView& logits);

  // Whether the member's rows are the last ones of its prompt.
  bool FinishesPrompt(const SequenceKv& sequence) const {
    return std::ranges::any_of(members_, [&](auto& state) {
      return state.member.sequence == &sequence && state.is_last_part();
    });
  }
  // Members that have neither left nor been dropped, in the order of Begin().
  std::vector<SequenceKv*> Live() const;
  // Nobody wants the member's result any more: its policy is handed no further layer. The member
  // has not left, because the background may still read layers that were handed over.
  void Drop(const SequenceKv& sequence);
  // The member leaves; the lane is free when the last one has left.
  // REQUIRES: its policy has let go of the sequence's layers.
  void Leave(const SequenceKv& sequence) {
    Drop(sequence);
    for (MemberState& state : members_) {
      if (state.member.sequence == &sequence) state.member.sequence = nullptr;
    }
  }

  // Prompt tokens whose share of all layers is done; cached tokens count from the beginning.
  int64_t processed_tokens(const SequenceKv& sequence) const;

 private:
  struct MemberState {
    Member member;  // without a sequence: the member has left
    bool is_dropped = false;
    int64_t num_rows = 0;  // in all runs of the member
    int64_t last_row = 0;  // row of the member's last token, in the group
    int64_t cached_tokens = 0;
    bool is_head = false;  // given tokens follow
    PromptPart part;
    // Member of a prefix group of several, whose policy does not take the prompt in order: tokens
    // [own_kv_begin, own_kv_begin + own_kv_tokens) of the lane's KV hold the sink and the computed
    // tokens, for the background to read.
    bool has_own_kv = false;
    int64_t own_kv_begin = 0;
    int64_t own_kv_tokens = 0;

    bool is_live() const { return member.sequence != nullptr && !is_dropped; }
    bool is_last_part() const { return part.end == static_cast<int64_t>(member.prompt.size()); }
    // Whether a token is drawn, or measured, behind its last row.
    bool gives_logits() const { return is_last_part() && !is_head; }
  };
  // Tokens [first_token, first_token + num_tokens) of the lane's KV are the prefix group's buffer.
  struct PrefixGroup {
    int64_t first_token = 0;
    int64_t num_tokens = 0;
    int64_t row_of_position = 0;  // row in the buffer less position in the prompt
  };

  PrefillLane(const Parts& parts, const KvGeometry& geometry, int64_t max_tokens, int64_t max_rows)
      : parts_(parts),
        geometry_(geometry),
        map_(parts.model->config().num_layers, parts.model->config().layer_windows),
        max_tokens_(max_tokens),
        max_rows_(max_rows) {}

  uint32_t num_layers() const { return map_.num_layers(); }
  // Whether all members' policies have taken the layer over: its buffer may be overwritten.
  absl::StatusOr<bool> AllTook(uint32_t layer) const;
  absl::Status ReadTails(const PrefillRun& run);
  absl::Status TakeLayerOf(size_t member);

  // Finds out whether the group's rows are sinks alone, and which of these are kept.
  void BeginSinks();
  absl::Status PrepareLayer();
  absl::Status LayOutKv();
  absl::Status ReadCachedTokens(const PrefillRun& run);
  absl::Status ReadIntoOwnKv(const CachedRead& read);
  // Reads what follows the sink of members that read_all(): the same for all of the run.
  absl::Status ReadWindow(const PrefillRun& run);
  absl::Status TakeLayer(const PrefillRun& run);
  void CollectPieces(int64_t first_row, int64_t num_rows);
  void AddPiece(const PrefillRun& run, int64_t first, int64_t last);
  // Of a group of sinks alone: the piece copies its sink, or keeps it when it is computed.
  void AddSink(const PrefillRun& run, PrefillPiece& piece, bool begins, bool ends);
  absl::Status Compute(int64_t rows);
  void CountRows(const PrefillRun& run, int64_t rows);
  absl::Status FillLastLogits(const MatrixView& logits);
  LayerKv KvAt(int64_t first_token, int64_t num_tokens) const;
  LayerKv KvOf(const PrefixGroup& prefix_group) const {
    return KvAt(prefix_group.first_token, prefix_group.num_tokens);
  }
  // The KV that TakeLayer() hands to the member's policy.
  LayerKv TakenKvOf(size_t member) const;
  MatrixView Hidden() const;

  const Parts parts_;
  const KvGeometry geometry_;
  const LayerMap map_;
  const int64_t max_tokens_;
  const int64_t max_rows_;
  size_t max_members_ = 0;
  std::optional<GroupRows> rows_;
  DeviceBuffer last_hidden_;  // [max_members, hidden]
  DeviceBuffer hidden_;       // [max_tokens, hidden]
  // KV of even and of odd layers: for each prefix group, then for each member with own KV,
  // [2][kv_heads][tokens][head_dim].
  std::array<DeviceBuffer, 2> kv_;
  std::optional<CachedKvReader> reader_;
  std::optional<SinkCache> sinks_;  // none: the model has window layers
  bool only_sinks_ = false;         // the group's rows are sinks of prompts that are read whole

  std::vector<MemberState> members_;  // in the order of Begin()
  PrefillRuns runs_;
  std::vector<PrefixGroup> prefix_groups_;
  std::vector<Failure> failures_;
  Counters counters_;
  int64_t num_rows_ = 0;
  uint32_t layer_ = 0;
  int64_t next_row_ = 0;
  std::vector<PrefillPiece> pieces_;  // of the pass that is being enqueued
};

}  // namespace retroinfer
