// A policy that answers for another one: the base of those that change a part of it.
#pragma once

#include <span>

#include "gpu_worker/attention/attention_policy.h"

namespace retroinfer {

// Threads: as AttentionPolicy.
class ForwardingPolicy : public AttentionPolicy {
 public:
  // `policy` must outlive it.
  explicit ForwardingPolicy(AttentionPolicy& policy) : policy_(policy) {}

  KvNeed Need(const AttentionSettings& settings, int64_t prompt_tokens,
              int64_t total_tokens) const override {
    return policy_.Need(settings, prompt_tokens, total_tokens);
  }
  KvBlocks NeedWhile(const AttentionSettings& settings, const KvGrowth& growth) const override {
    return policy_.NeedWhile(settings, growth);
  }
  PromptPart NextPart(const SequenceKv& sequence, int64_t max_tokens) const override {
    return policy_.NextPart(sequence, max_tokens);
  }
  absl::Status PrepareLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) override {
    return policy_.PrepareLayer(sequence, layer, kv);
  }
  AttentionWindow WindowOf(const SequenceKv& sequence) const override {
    return policy_.WindowOf(sequence);
  }
  absl::Status TakeLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) override {
    return policy_.TakeLayer(sequence, layer, kv);
  }
  absl::Status TakeWindowLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) override {
    return policy_.TakeWindowLayer(sequence, layer, kv);
  }
  void EndLayers(SequenceKv& sequence) override { policy_.EndLayers(sequence); }
  absl::StatusOr<bool> LayerTaken(const SequenceKv& sequence, uint32_t layer) override {
    return policy_.LayerTaken(sequence, layer);
  }
  absl::StatusOr<bool> PromptTaken(const SequenceKv& sequence) override {
    return policy_.PromptTaken(sequence);
  }
  void EndPart(SequenceKv& sequence) override { policy_.EndPart(sequence); }
  absl::StatusOr<bool> FinishPrefill(SequenceKv& sequence) override {
    return policy_.FinishPrefill(sequence);
  }
  absl::StatusOr<bool> ReadyForStep(const SequenceKv& sequence) override {
    return policy_.ReadyForStep(sequence);
  }
  bool GoesLive(const SequenceKv& sequence) const override { return policy_.GoesLive(sequence); }
  int64_t RowsTogether(const SequenceKv& sequence) const override {
    return policy_.RowsTogether(sequence);
  }
  int64_t RowsOfRun(const SequenceKv& sequence) const override {
    return policy_.RowsOfRun(sequence);
  }
  bool CanRewind(const AttentionSettings& settings, int64_t prompt_tokens,
                 int64_t total_tokens) const override {
    return policy_.CanRewind(settings, prompt_tokens, total_tokens);
  }
  absl::Status BeginStep(std::span<SequenceKv* const> batch) override {
    return policy_.BeginStep(batch);
  }
  uint64_t StepShape() const override { return policy_.StepShape(); }
  absl::Status UploadStep() override { return policy_.UploadStep(); }
  absl::Status DecodeLayer(uint32_t layer, const AttentionForm& form, const MatrixView& queries,
                           const MatrixView& keys, const MatrixView& values,
                           const MatrixView& out) override {
    return policy_.DecodeLayer(layer, form, queries, keys, values, out);
  }
  absl::Status DownloadStep() override { return policy_.DownloadStep(); }
  absl::Status EndStep() override { return policy_.EndStep(); }
  absl::StatusOr<bool> CanSuspend(const SequenceKv& sequence) override {
    return policy_.CanSuspend(sequence);
  }
  void OnSuspend(SequenceKv& sequence) override { policy_.OnSuspend(sequence); }
  absl::Status OnResume(SequenceKv& sequence, Stream& stream) override {
    return policy_.OnResume(sequence, stream);
  }
  absl::StatusOr<bool> Release(SequenceKv& sequence) override { return policy_.Release(sequence); }
  BytesRead LastStepBytes(size_t row) const override { return policy_.LastStepBytes(row); }
  bool LastStepLacked(size_t row) const override { return policy_.LastStepLacked(row); }
  std::optional<double> LastStepUnseen(size_t row) const override {
    return policy_.LastStepUnseen(row);
  }
  void LearnFromStep() override { policy_.LearnFromStep(); }

 private:
  AttentionPolicy& policy_;
};

}  // namespace retroinfer
