// The interface between the engine and the way a sequence attends: the memory that a sequence
// needs, how the policy takes over the KV of a prompt, one decode step of one layer, suspension,
// and the end of a sequence.
//
// Threads: the engine's thread only, but for Need(). A policy runs its background work itself; the
// engine polls.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/kv/sequence_kv.h"
#include "gpu_worker/ops/attention/attention_form.h"
#include "gpu_worker/ops/attention/attention_window.h"
#include "gpu_worker/ops/attention/layer_kv.h"
#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

class AttentionPolicy {
 public:
  virtual ~AttentionPolicy() = default;

  // Memory that a sequence of `prompt_tokens`, which may grow to `total_tokens`, needs in its whole
  // life. May be called on any thread.
  virtual KvNeed Need(const AttentionSettings& settings, int64_t prompt_tokens,
                      int64_t total_tokens) const = 0;
  // Blocks that a sequence needs while it grows from growth.from to growth.to tokens, the blocks of
  // its prompt included: never more than Need(). A sequence can begin or be resumed at growth.from
  // with these blocks.
  virtual KvBlocks NeedWhile(const AttentionSettings& settings, const KvGrowth& growth) const {
    const KvNeed need = Need(settings, growth.prompt_tokens, growth.total_tokens);
    return {.dense = need.dense_blocks, .meta = need.meta_blocks};
  }

  // The part of the prompt that is read next, in a lane of `max_tokens`: the whole prompt, unless
  // the policy keeps what later parts need of the first ones, or later parts read the first ones
  // from the arena (SequenceKv::cached). A policy that keeps KV itself sets num_tokens to the end
  // of a part when it takes the part's last layer.
  virtual PromptPart NextPart(const SequenceKv& sequence, int64_t /*max_tokens*/) const {
    return {.begin = 0, .end = sequence.prompt_tokens, .num_context = 0};
  }
  // Layers count from 0 among those that are indexed (kv/layer_map.h), here and below.
  //
  // Before the first rows of a layer: puts the KV of the part's context into rows
  // [0, num_context) of `kv`.
  virtual absl::Status PrepareLayer(SequenceKv& /*sequence*/, uint32_t /*layer*/,
                                    const LayerKv& /*kv*/) {
    return absl::OkStatus();
  }
  // Which tokens before them the rows of the sequence's part see, by rows of the layers' KV: all,
  // unless the policy forgets some.
  virtual AttentionWindow WindowOf(const SequenceKv& /*sequence*/) const { return {}; }
  // Takes over one layer of a part's KV. `kv` has the part's context and tokens
  // [part.begin, part.end), cached tokens included, and stays untouched until LayerTaken(layer).
  // Layers come in order.
  // Of a prompt that shares cached tokens with others, tokens [kSinkTokens, part.first_kept) are
  // left out, unless the policy takes the prompt in order.
  virtual absl::Status TakeLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) = 0;
  // The same of a window layer, whose KV is not the policy's to keep (kv/window_layers.h): hands
  // on what belongs to the segments that the policy builds. Rows of `kv` are positions; layers
  // count from 0 among window layers.
  virtual absl::Status TakeWindowLayer(SequenceKv& /*sequence*/, uint32_t /*layer*/,
                                       const LayerKv& /*kv*/) {
    return absl::OkStatus();
  }
  // All layers of the part, of both kinds, have been taken: nothing reads SequenceKv::cached for it
  // any more.
  virtual void EndLayers(SequenceKv& /*sequence*/) {}
  // Whether the buffer that TakeLayer(layer) was given may be overwritten.
  virtual absl::StatusOr<bool> LayerTaken(const SequenceKv& sequence, uint32_t layer) = 0;
  // Whether the policy takes layers over on the compute stream: then LayerTaken is true after each
  // TakeLayer, and PromptTaken after the last one.
  virtual bool TakesInOrder(const SequenceKv& /*sequence*/) const { return false; }
  // After the last layer: whether the background has finished with the prompt, or with the part
  // that was read.
  virtual absl::StatusOr<bool> PromptTaken(const SequenceKv& /*sequence*/) { return true; }
  // Called when PromptTaken() has become true after a part that is not the last one, where the
  // policy does not take the prompt in order: later parts read what this part leaves.
  virtual void EndPart(SequenceKv& /*sequence*/) {}
  // Called when PromptTaken() has become true, once: lets the sequence decode, with num_tokens =
  // prompt_tokens. While PromptTaken() is false it returns false and does nothing.
  virtual absl::StatusOr<bool> FinishPrefill(SequenceKv& sequence) = 0;

  // Whether the sequence can take part in the next step, or has to wait for its background work.
  virtual absl::StatusOr<bool> ReadyForStep(const SequenceKv& /*sequence*/) { return true; }
  // Whether a segment of the sequence begins to be attended through its index in the next step.
  virtual bool GoesLive(const SequenceKv& /*sequence*/) const { return false; }
  // How many tokens of the sequence, known or drafted, may go into the next step as neighbouring
  // rows, with the results of one step each: each row attends to the rows before it, and no segment
  // goes live between them. Behind the step num_tokens may be set back over rows that turned out to
  // be wrong, all but the first one: they have replaced nothing.
  virtual int64_t RowsTogether(const SequenceKv& /*sequence*/) const { return 1; }
  // How many given tokens (SequenceKv::given_tokens) share what they retrieve: the first so many,
  // the next so many and so on, the last ones perhaps fewer. All of a run are rows of one step.
  virtual int64_t RowsOfRun(const SequenceKv& /*sequence*/) const { return 1; }
  // Whether setting num_tokens back from `total_tokens` to `prompt_tokens` restores the state after
  // prefill: the generated tokens have replaced nothing.
  virtual bool CanRewind(const AttentionSettings& /*settings*/, int64_t /*prompt_tokens*/,
                         int64_t /*total_tokens*/) const {
    return false;
  }
  // Prepares a step in which each sequence gets one more token at position num_tokens. A sequence
  // listed k times occupies k neighbouring rows and gets k tokens. Waits for the background work of
  // a sequence that is not ready.
  // REQUIRES: batch.size() <= the engine's max_batch; all use this policy.
  virtual absl::Status BeginStep(std::span<SequenceKv* const> batch) = 0;
  // The device's part of the step: UploadStep, DecodeLayer for each layer in order, DownloadStep.
  // What they enqueue depends on the batch's size and StepShape() alone, so it can be recorded once
  // and replayed; everything else is read from memory that BeginStep has written.
  virtual uint64_t StepShape() const = 0;
  virtual absl::Status UploadStep() = 0;
  // One layer of that step; row i belongs to batch[i]. `form` is the layer's in every step.
  //   queries, out: [batch, query_heads * head_dim]; keys, values: [batch, kv_heads * head_dim],
  //   activation dtype, after RoPE.
  // REQUIRES: form.window == 0; what a policy attends to is its own affair.
  virtual absl::Status DecodeLayer(uint32_t layer, const AttentionForm& form,
                                   const MatrixView& queries, const MatrixView& keys,
                                   const MatrixView& values, const MatrixView& out) = 0;
  // Copies what LastStepBytes needs to the host.
  virtual absl::Status DownloadStep() = 0;
  // Counts the new tokens: num_tokens grows by one for each row.
  virtual absl::Status EndStep() = 0;

  // A decoding sequence can be suspended: its blocks go to other sequences, and the KV in them is
  // copied to the host (suspended_kv.h). A suspended sequence keeps its extents and takes part in
  // no step. It is resumed in other blocks, and attends as if it had not been suspended.
  //
  // Whether the sequence can be suspended now: nothing in the background works for it.
  virtual absl::StatusOr<bool> CanSuspend(const SequenceKv& /*sequence*/) { return true; }
  // The sequence is suspended: the copies of its dense blocks to the host have been enqueued.
  virtual void OnSuspend(SequenceKv& /*sequence*/) {}
  // The sequence is resumed: its dense blocks and their table have been written on `stream`.
  // Enqueues there whatever else of the sequence the device needs.
  virtual absl::Status OnResume(SequenceKv& /*sequence*/, Stream& /*stream*/) {
    return absl::OkStatus();
  }

  // Whether everything in the background and on the device has let go of the sequence, so that its
  // blocks and extents may be reused. Polled between steps until true; the sequence takes part in
  // no step any more. It may be suspended.
  virtual absl::StatusOr<bool> Release(SequenceKv& sequence) = 0;

  // KV bytes that the last step read, all layers, and what full attention would have read.
  struct BytesRead {
    double read = 0;
    double full = 0;
  };
  // Bytes read for batch[row] in the step that EndStep ended. REQUIRES: the stream has passed that
  // step.
  virtual BytesRead LastStepBytes(size_t row) const = 0;
  // Share of batch[row]'s softmax mass that was not attended exactly in that step, from 0 to 1:
  // mean over layers and query heads, as the policy predicts it. None: the policy predicts none, or
  // none in that step. (Policy wave predicts it in a sequence's first step and in some of the
  // others; in every step, if a sequence of the batch has a limit.) REQUIRES: as LastStepBytes.
  virtual std::optional<double> LastStepUnseen(size_t /*row*/) const { return std::nullopt; }
  // Whether batch[row] came to KV that is not in the arena yet in that step: then its result means
  // nothing, and the row is to be fed again. REQUIRES: as LastStepBytes.
  virtual bool LastStepLacked(size_t /*row*/) const { return false; }
  // Called once for each step, when the stream has passed it and before the next step begins: the
  // policy may change how the step's sequences attend from now on.
  virtual void LearnFromStep() {}
};

}  // namespace retroinfer
