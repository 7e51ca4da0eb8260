// A small model of the same vocabulary, which guesses what follows texts: drafts where the texts
// themselves offer none.
//
// The model sees a window of each text: all of a short one; of a longer one the first tokens and
// the newest, one behind the other, as if nothing had been between them. When the window is full,
// half of it is left. So its KV takes the same memory whatever the length of the text, and attends
// as the small model was made to. What the model says is a guess, and changes no answer.
//
// Before the first draft, and whenever the window has moved, the model reads the text (Read), in
// pieces that the caller chooses. Then a draft of n tokens takes n steps of the small model, each
// for all texts together. KV of drafts that were not right is written over.
//
// Threads: one at a time, the engine's.
// Owns:    KV, lane, workspaces; the weights belong to the Transformer. Nothing of it is in the
//          store, saved or suspended.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/attention/full_policy.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/executor/decode_step.h"
#include "gpu_worker/executor/draft_window.h"
#include "gpu_worker/executor/prefill_lane.h"
#include "gpu_worker/executor/sampler.h"
#include "gpu_worker/kv/kv_memory.h"
#include "gpu_worker/model/transformer.h"
#include "gpu_worker/ops/backend/backend_needs.h"

namespace retroinfer {

class DraftModel {
 public:
  // Most tokens of a draft.
  static constexpr int64_t kMostDrafted = kMaxSamplingAhead;
  // Of its KV, whatever that of the served model is.
  static constexpr KvFormat kKvFormat = {};

  // All parts outlive the model.
  struct Parts {
    Device* device = nullptr;
    Ops* ops = nullptr;
    Stream* stream = nullptr;  // compute
    Transformer* model = nullptr;
  };
  struct Sizes {
    KvGeometry geometry;
    int64_t window_tokens = 0;
    int32_t max_texts = 0;   // at a time
    int64_t max_rows = 0;    // of a pass over a text
    int64_t vocab_size = 0;  // of whom the drafts are for: tokens beyond it are no drafts

    int32_t max_step_rows() const { return max_texts * (static_cast<int32_t>(kMostDrafted) + 1); }
    TransformerOptions model_options() const {
      return {.max_prefill_rows = max_rows,
              .max_decode_rows = max_step_rows(),
              .max_positions = window_tokens,
              .progress = {}};
    }
  };

  // Sizes for a worker with `max_batch` rows of contexts of up to `max_model_len` tokens.
  //
  // Returns: UNIMPLEMENTED for a model with window layers, whose rings take nothing back;
  //          INVALID_ARGUMENT for one that was made for contexts of fewer than 128 tokens.
  static absl::StatusOr<Sizes> SizesFor(const ModelConfig& draft, int64_t vocab_size,
                                        int64_t max_model_len, int32_t max_batch);
  // Device memory for all but the weights.
  static MemoryNeed MemoryOf(const ModelConfig& draft, const BackendNeeds& backend,
                             const Sizes& sizes);
  // REQUIRES: the Transformer was made with sizes.model_options().
  static absl::StatusOr<std::unique_ptr<DraftModel>> Create(const Parts& parts, const Sizes& sizes);

  // Reads and drafts for made-up texts, so that what the first ones take is no client's time:
  // weights come from files, kernels are loaded. REQUIRES: there is no text yet.
  absl::Status WarmUp();

  // What is to be done for a text.
  struct State {
    bool has_room = false;  // it is known, or can be
    int64_t unread = 0;     // rows of layers to read before anything can be drafted
    int64_t behind = 0;     // tokens that the first step of a draft is fed beside the newest
  };
  State StateOf(const DraftedText& text);
  // The text that is being read: it is to be read to its end before another one; 0: none.
  uint64_t reading() const { return lane_->busy() ? slots_[reading_].id : 0; }

  // Reads up to `rows` rows of layers of the text, or a little more, and waits for the device: what
  // that takes is known then. The text may have grown since the last call.
  //
  // REQUIRES: StateOf(text) has room and something unread; no other text is being read.
  absl::Status Read(const DraftedText& text, int64_t rows);

  struct Ask {
    DraftedText text;
    int64_t count = 0;  // tokens to draft, at most kMostDrafted
  };
  struct Drafts {
    std::vector<std::vector<int32_t>> tokens;  // by Ask: as many as asked for, or fewer
    int64_t num_steps = 0;
    int64_t num_rows = 0;     // of these steps
    bool is_settled = false;  // steps of all these numbers of rows have been run before
  };
  // Drafts what follows the texts, and waits for the device.
  //
  // REQUIRES: of each text StateOf() has room and nothing unread; no text comes twice.
  absl::StatusOr<Drafts> Draft(std::span<const Ask> asks);

  // Lets go of all texts but these.
  void Keep(std::span<const uint64_t> ids);

  const Sizes& sizes() const { return sizes_; }

 private:
  struct Slot {
    uint64_t id = 0;  // 0: free
    SequenceKv kv;    // num_tokens: positions of the window
    DraftWindow window;
    std::optional<SamplingState> sampling;
    bool is_read = false;  // kv has what the window has, up to what was told since
    // Tokens behind those of the text whose KV is there, as the model has drafted them.
    std::vector<int32_t> fed;
  };

  DraftModel(const Parts& parts, const Sizes& sizes) : parts_(parts), sizes_(sizes) {}

  absl::Status Allocate();
  Slot* Find(uint64_t id);
  // The slot of the text, which follows it: KV of drafts that were not right counts no more.
  Slot* Follow(const DraftedText& text);
  absl::StatusOr<Slot*> Take(const DraftedText& text);
  absl::Status BeginToRead(Slot& slot, const DraftedText& text);
  void LetGo(Slot& slot);
  // Tokens of the window without KV.
  static int64_t Pending(const Slot& slot, const DraftedText& text);
  int32_t Embeddable(int32_t token) const;
  // The rows of a step: of the first one all tokens without KV, then the one drafted last.
  void CollectRows(std::span<const Ask> asks, int64_t step, const Drafts& drafts);
  // Takes what the step has drawn. Returns whether another step is to follow.
  bool TakeResults(std::span<const Ask> asks, int64_t step, std::span<const StepResult> results,
                   Drafts& drafts);

  const Parts parts_;
  const Sizes sizes_;
  std::unique_ptr<KvMemory> memory_;
  std::unique_ptr<FullPolicy> policy_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<DecodeStep> step_;
  std::unique_ptr<PrefillLane> lane_;
  std::vector<Slot> slots_;
  size_t reading_ = 0;  // slot, while the lane is busy
  std::unique_ptr<Event> read_;
  std::vector<int32_t> read_text_;
  std::vector<StepRow> rows_;
  std::vector<size_t> owners_;       // of rows_: number of the ask
  std::vector<uint8_t> times_seen_;  // steps of so many rows, up to a few
};

}  // namespace retroinfer
