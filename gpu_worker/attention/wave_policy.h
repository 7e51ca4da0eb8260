// Policy `wave`: tripartite attention. Steady zone and retrieved clusters exactly, the next
// clusters by estimate; the KV of indexed tokens lives in the arena (RetroInfer, sections 4 and 5).
// How tokens become clusters, and when, is in sequence_segments.h.
//
// Threads: the engine's thread.
// Owns:    the step's device arrays.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gpu_worker/attention/attention_policy.h"
#include "gpu_worker/attention/dense_zone_batch.h"
#include "gpu_worker/attention/wave_decode.h"
#include "gpu_worker/kv/kv_memory.h"
#include "gpu_worker/kv/sequence_segments.h"

namespace retroinfer {

class WavePolicy final : public AttentionPolicy {
 public:
  // All of it outlives the policy but `decode`.
  struct Parts {
    Device* device = nullptr;
    AttentionOps* ops = nullptr;
    Stream* stream = nullptr;  // compute
    KvMemory* memory = nullptr;
    SequenceSegments* segments = nullptr;
    std::unique_ptr<WaveDecode> decode;
    RetrievalObserver* observer = nullptr;  // may be null
  };

  static absl::StatusOr<std::unique_ptr<WavePolicy>> Create(int32_t max_batch, Parts parts);

  KvNeed Need(const AttentionSettings& settings, int64_t prompt_tokens,
              int64_t total_tokens) const override;
  KvBlocks NeedWhile(const AttentionSettings& settings, const KvGrowth& growth) const override;
  PromptPart NextPart(const SequenceKv& sequence, int64_t /*max_tokens*/) const override {
    return {.begin = 0,
            .end = segments_.StretchEnd(sequence),
            .num_context = 0,
            .attends_to_all = true};
  }
  void EndPart(SequenceKv& sequence) override { segments_.EndPart(sequence); }
  absl::Status TakeLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) override;
  absl::Status TakeWindowLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) override {
    return segments_.TakeWindowLayer(sequence, layer, kv);
  }
  absl::StatusOr<bool> LayerTaken(const SequenceKv& sequence, uint32_t layer) override;
  bool TakesInOrder(const SequenceKv& sequence) const override;
  absl::StatusOr<bool> PromptTaken(const SequenceKv& sequence) override {
    return segments_.PromptIsBuilt(sequence);
  }
  absl::StatusOr<bool> FinishPrefill(SequenceKv& sequence) override;
  absl::StatusOr<bool> ReadyForStep(const SequenceKv& sequence) override;
  bool GoesLive(const SequenceKv& sequence) const override;
  int64_t RowsTogether(const SequenceKv& sequence) const override;
  int64_t RowsOfRun(const SequenceKv& sequence) const override;
  bool CanRewind(const AttentionSettings& settings, int64_t prompt_tokens,
                 int64_t total_tokens) const override;
  absl::Status BeginStep(std::span<SequenceKv* const> batch) override;
  uint64_t StepShape() const override { return parts_.decode->StepShape(); }
  absl::Status UploadStep() override;
  absl::Status DecodeLayer(uint32_t layer, const AttentionForm& form, const MatrixView& queries,
                           const MatrixView& keys, const MatrixView& values,
                           const MatrixView& out) override;
  absl::Status DownloadStep() override { return parts_.decode->DownloadStep(); }
  absl::Status EndStep() override;
  absl::StatusOr<bool> CanSuspend(const SequenceKv& sequence) override {
    return segments_.CanSuspend(sequence);
  }
  void OnSuspend(SequenceKv& sequence) override { segments_.OnSuspend(sequence); }
  absl::Status OnResume(SequenceKv& sequence, Stream& stream) override {
    return segments_.OnResume(sequence, stream);
  }
  absl::StatusOr<bool> Release(SequenceKv& sequence) override;
  BytesRead LastStepBytes(size_t row) const override;
  bool LastStepLacked(size_t row) const override { return parts_.decode->LastStepLacked(row); }
  std::optional<double> LastStepUnseen(size_t row) const override {
    return parts_.decode->LastStepUnseen(row);
  }
  void LearnFromStep() override;

 private:
  SelectionRatios RatiosOf(const SequenceKv& sequence) const;
  bool WeighsUnseen(std::span<SequenceKv* const> batch);
  // Fills runs_ with the runs of given tokens among the rows of a step.
  void FindRuns(std::span<SequenceKv* const> batch);

  WavePolicy(Parts parts, DenseZoneBatch dense)
      : parts_(std::move(parts)), segments_(*parts_.segments), dense_(std::move(dense)) {}

  const Parts parts_;
  SequenceSegments& segments_;
  DenseZoneBatch dense_;
  std::vector<SequenceKv*> batch_;
  std::vector<RowRun> runs_;
  std::vector<WaveDecode::Sequence> decode_batch_;
  uint64_t num_steps_ = 0;
};

}  // namespace retroinfer
