// How a sequence attends that ends with its prompt: it keeps no KV, since nothing is decoded.
//
// Threads: as AttentionPolicy.
#pragma once

#include <span>

#include "gpu_worker/attention/attention_policy.h"

namespace retroinfer {

class PromptOnlyPolicy final : public AttentionPolicy {
 public:
  KvNeed Need(const AttentionSettings& /*settings*/, int64_t /*prompt_tokens*/,
              int64_t /*total_tokens*/) const override {
    return {};
  }
  absl::Status TakeLayer(SequenceKv& /*sequence*/, uint32_t /*layer*/,
                         const LayerKv& /*kv*/) override {
    return absl::OkStatus();
  }
  absl::StatusOr<bool> LayerTaken(const SequenceKv& /*sequence*/, uint32_t /*layer*/) override {
    return true;
  }
  bool TakesInOrder(const SequenceKv& /*sequence*/) const override { return true; }
  absl::StatusOr<bool> FinishPrefill(SequenceKv& sequence) override {
    sequence.num_tokens = sequence.prompt_tokens;
    return true;
  }
  absl::Status BeginStep(std::span<SequenceKv* const> /*batch*/) override {
    return absl::InternalError("a sequence without KV takes part in a decode step");
  }
  uint64_t StepShape() const override { return 0; }
  absl::Status UploadStep() override { return absl::OkStatus(); }
  absl::Status DecodeLayer(uint32_t /*layer*/, const AttentionForm& /*form*/,
                           const MatrixView& /*queries*/, const MatrixView& /*keys*/,
                           const MatrixView& /*values*/, const MatrixView& /*out*/) override {
    return absl::OkStatus();
  }
  absl::Status DownloadStep() override { return absl::OkStatus(); }
  absl::Status EndStep() override { return absl::OkStatus(); }
  absl::StatusOr<bool> Release(SequenceKv& /*sequence*/) override { return true; }
  BytesRead LastStepBytes(size_t /*row*/) const override { return {}; }
};

}  // namespace retroinfer
