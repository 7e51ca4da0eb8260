// The interface between the engine and how a sequence attends: what it needs, how it takes over the
// KV of a prompt, one decode step of one layer, and how it ends.
//
// Threads: the engine's thread only. Background work is the policy's own affair; the engine polls.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/kv/sequence_kv.h"
#include "gpu_worker/ops/attention/layer_kv.h"
#include "gpu_worker/ops/attention/prefill_attention.h"
#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

class AttentionPolicy {
 public:
  virtual ~AttentionPolicy() = default;

  // What a sequence of `prompt_tokens` that may grow to `total_tokens` needs in its whole life. May
  // be called on any thread.
  virtual KvNeed Need(const AttentionSettings& settings, int64_t prompt_tokens,
                      int64_t total_tokens) const = 0;
  // Blocks that it needs while it grows so far, those of its prompt included: never more than
  // Need() says. Where the sequence begins or comes back at growth.from, that is enough to do so.
  virtual KvBlocks NeedWhile(const AttentionSettings& settings, const KvGrowth& growth) const {
    const KvNeed need = Need(settings, growth.prompt_tokens, growth.total_tokens);
    return {.dense = need.dense_blocks, .meta = need.meta_blocks};
  }

  // What of the prompt is read next, in a lane with room for `max_tokens`: all of it, unless the
  // policy keeps what it needs of the first parts, or later parts read them from the arena
  // (SequenceKv::cached). A policy that keeps them sets num_tokens to the end of a part when it
  // takes its last layer.
  virtual PromptPart NextPart(const SequenceKv& sequence, int64_t /*max_tokens*/) const {
    return {.begin = 0, .end = sequence.prompt_tokens, .num_context = 0};
  }
  // Before the first rows of a layer: puts the KV of the part's context into rows
  // [0, num_context) of `kv`.
  virtual absl::Status PrepareLayer(SequenceKv& /*sequence*/, uint32_t /*layer*/,
                                    const LayerKv& /*kv*/) {
    return absl::OkStatus();
  }
  // How rows of the sequence's part attend, if not exactly to all before them. `sequence` outlives
  // the result's calls.
  virtual PromptAttention AttentionOf(const SequenceKv& /*sequence*/, uint32_t /*layer*/) {
    return nullptr;
  }
  // Takes over one layer of a part's KV: context and tokens [part.begin, part.end) are in `kv`,
  // cached ones included, which must stay untouched until LayerTaken(layer). Layers come in order.
  // Of a prompt that shares cached tokens with others, tokens [kSinkTokens, part.first_kept) are
  // left out, unless the policy takes the prompt in order.
  virtual absl::Status TakeLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) = 0;
  // Whether the buffer that TakeLayer(layer) was given may be overwritten.
  virtual absl::StatusOr<bool> LayerTaken(const SequenceKv& sequence, uint32_t layer) = 0;
  // Whether the policy takes layers over on the compute stream, so that LayerTaken and, after the
  // last layer, PromptTaken are true at once.
  virtual bool TakesInOrder(const SequenceKv& /*sequence*/) const { return false; }
  // After the last layer: whether the background has done all that it does with the prompt, or with
  // the part of it that was read.
  virtual absl::StatusOr<bool> PromptTaken(const SequenceKv& /*sequence*/) { return true; }
  // Called when PromptTaken() has become true behind a part that is not the last one, where the
  // policy does not take the prompt in order: later parts read what this one leaves.
  virtual void EndPart(SequenceKv& /*sequence*/) {}
  // Called when PromptTaken() has become true, once: lets the sequence decode, with num_tokens =
  // prompt_tokens. While PromptTaken() is false it returns false and does nothing.
  virtual absl::StatusOr<bool> FinishPrefill(SequenceKv& sequence) = 0;

  // Whether the sequence can take part in the next step, or has to wait for its background work.
  virtual absl::StatusOr<bool> ReadyForStep(const SequenceKv& /*sequence*/) { return true; }
  // Whether a segment of the sequence begins to be attended through its index in the next step.
  virtual bool GoesLive(const SequenceKv& /*sequence*/) const { return false; }
  // How many tokens of the sequence, all known, may go into the next step as neighbouring rows,
  // with the result of one step each: each row attends to those before it, and to no other index.
  virtual int64_t RowsTogether(const SequenceKv& /*sequence*/) const { return 1; }
  // Whether a sequence that was prefilled with `prompt_tokens` and has `total_tokens` by now is as
  // it was when num_tokens is set back to prompt_tokens: the tokens behind have replaced nothing.
  virtual bool CanRewind(const AttentionSettings& /*settings*/, int64_t /*prompt_tokens*/,
                         int64_t /*total_tokens*/) const {
    return false;
  }
  // Prepares a step in which each sequence gets one more token at position num_tokens; one that is
  // there k times gets k, as neighbouring rows. Waits for the background work of a sequence that is
  // not ready.
  // REQUIRES: batch.size() <= the engine's max_batch; all use this policy.
  virtual absl::Status BeginStep(std::span<SequenceKv* const> batch) = 0;
  // The device's part of the step: UploadStep, DecodeLayer for each layer in order, DownloadStep.
  // What they enqueue depends on the batch's size and StepShape() alone, so it can be recorded once
  // and replayed; everything else is read from memory that BeginStep has written.
  virtual uint64_t StepShape() const = 0;
  virtual absl::Status UploadStep() = 0;
  // One layer of that step; row i belongs to batch[i].
  //   queries, out: [batch, query_heads * head_dim]; keys, values: [batch, kv_heads * head_dim],
  //   activation dtype, after RoPE.
  virtual absl::Status DecodeLayer(uint32_t layer, const MatrixView& queries,
                                   const MatrixView& keys, const MatrixView& values,
                                   const MatrixView& out) = 0;
  // Copies what LastStepBytes needs to the host.
  virtual absl::Status DownloadStep() = 0;
  // Counts the new tokens: num_tokens grows by one for each row.
  virtual absl::Status EndStep() = 0;

  // A sequence that decodes can step aside: its blocks go to others, and what they held is kept
  // elsewhere (suspended_kv.h). It keeps its extents, takes part in no step, and comes back in
  // other blocks, from which it attends as it would have.
  //
  // Whether it can now: nothing in the background works for it.
  virtual absl::StatusOr<bool> CanStepAside(const SequenceKv& /*sequence*/) { return true; }
  virtual void StepAside(SequenceKv& /*sequence*/) {}
  // Its dense blocks and their table have been written on `stream`. Enqueues there what else the
  // device needs of it.
  virtual absl::Status ComeBack(SequenceKv& /*sequence*/, Stream& /*stream*/) {
    return absl::OkStatus();
  }

  // Whether everything in the background and on the device has let go of the sequence, so that its
  // blocks and extents may be reused. Polled between steps until true; the sequence takes part in
  // no step any more. It may have stepped aside.
  virtual absl::StatusOr<bool> Release(SequenceKv& sequence) = 0;

  // KV bytes that the last step read, all layers, and what full attention would have read.
  struct BytesRead {
    double read = 0;
    double full = 0;
  };
  // Of batch[row] in the step that EndStep ended. REQUIRES: the stream has passed that step.
  virtual BytesRead LastStepBytes(size_t row) const = 0;
  // Of that row's softmax mass, the share that was not attended exactly, from 0 to 1: mean over
  // layers and query heads, as the policy predicts it. None: the policy cannot tell, or that step
  // did not (policy wave tells of a sequence's first step and of some of the others; of all, if a
  // sequence of the batch has a limit). REQUIRES: as above.
  virtual std::optional<double> LastStepUnseen(size_t /*row*/) const { return std::nullopt; }
  // Called once for each step, when the stream has passed it and before the next one begins: what
  // the step told may change how its sequences attend from now on.
  virtual void LearnFromStep() {}
};

}  // namespace retroinfer
