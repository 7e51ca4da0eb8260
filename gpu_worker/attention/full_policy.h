// Policy `full`: exact dense attention over paged device memory. What every comparison is made
// against, and what serves contexts that fit.
//
// A long prompt is read in stretches (sequence_segments.h): the rows of one attend to what the
// sequence's blocks hold of those before.
#pragma once

#include <limits>
#include <memory>
#include <vector>

#include "gpu_worker/attention/attention_policy.h"
#include "gpu_worker/attention/dense_zone_batch.h"
#include "gpu_worker/kv/sequence_segments.h"

namespace retroinfer {

class FullPolicy final : public AttentionPolicy {
 public:
  static absl::StatusOr<std::unique_ptr<FullPolicy>> Create(
      Device& device, AttentionOps& ops, Stream& stream, const DensePoolView& pool,
      BlockTables& tables, const Stretches& stretches, int32_t num_query_heads, int32_t max_batch);

  KvNeed Need(const AttentionSettings& settings, int64_t prompt_tokens,
              int64_t total_tokens) const override;
  KvBlocks NeedWhile(const AttentionSettings& settings, const KvGrowth& growth) const override;
  PromptPart NextPart(const SequenceKv& sequence, int64_t max_tokens) const override;
  absl::Status PrepareLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) override;
  absl::Status TakeLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) override;
  void EndLayers(SequenceKv& sequence) override;
  absl::StatusOr<bool> LayerTaken(const SequenceKv& sequence, uint32_t layer) override;
  bool TakesInOrder(const SequenceKv& /*sequence*/) const override { return true; }
  absl::StatusOr<bool> FinishPrefill(SequenceKv& sequence) override;
  int64_t RowsTogether(const SequenceKv& /*sequence*/) const override {
    return std::numeric_limits<int64_t>::max();
  }
  bool CanRewind(const AttentionSettings& /*settings*/, int64_t /*prompt_tokens*/,
                 int64_t /*total_tokens*/) const override {
    return true;
  }
  absl::Status BeginStep(std::span<SequenceKv* const> batch) override;
  uint64_t StepShape() const override { return 0; }
  absl::Status UploadStep() override { return dense_.UploadStep(); }
  absl::Status DecodeLayer(uint32_t layer, const AttentionForm& form, const MatrixView& queries,
                           const MatrixView& keys, const MatrixView& values,
                           const MatrixView& out) override {
    return dense_.DecodeLayer(layer, form, queries, keys, values, out);
  }
  absl::Status DownloadStep() override { return absl::OkStatus(); }
  absl::Status EndStep() override;
  absl::StatusOr<bool> Release(SequenceKv& sequence) override;
  BytesRead LastStepBytes(size_t row) const override;
  std::optional<double> LastStepUnseen(size_t /*row*/) const override { return 0; }

 private:
  FullPolicy(DenseZoneBatch dense, const Stretches& stretches)
      : stretches_(stretches), dense_(std::move(dense)) {}

  const Stretches stretches_;
  DenseZoneBatch dense_;
  std::vector<SequenceKv*> batch_;
};

}  // namespace retroinfer
