// An attention policy that only notes what it is asked.
#pragma once

#include <string>
#include <vector>

#include "gpu_worker/attention/attention_policy.h"

namespace retroinfer::test_support {

class FakePolicy final : public AttentionPolicy {
 public:
  KvNeed Need(const AttentionSettings&, int64_t prompt_tokens,
              int64_t total_tokens) const override {
    return {.dense_blocks = static_cast<int32_t>(prompt_tokens),
            .meta_blocks = static_cast<int32_t>(total_tokens),
            .segment_tokens = {}};
  }
  absl::Status TakeLayer(SequenceKv& /*sequence*/, uint32_t layer, const LayerKv& kv) override {
    layers.push_back(layer);
    taken = kv;
    return absl::OkStatus();
  }
  absl::StatusOr<bool> LayerTaken(const SequenceKv&, uint32_t) override { return true; }
  absl::StatusOr<bool> FinishPrefill(SequenceKv& sequence) override {
    sequence.num_tokens = sequence.prompt_tokens;
    return true;
  }
  absl::Status BeginStep(std::span<SequenceKv* const>) override { return absl::OkStatus(); }
  uint64_t StepShape() const override { return 17; }
  absl::Status UploadStep() override { return absl::OkStatus(); }
  absl::Status DecodeLayer(uint32_t, const AttentionForm&, const MatrixView& asked,
                           const MatrixView& given, const MatrixView&, const MatrixView&) override {
    queries = asked;
    keys = given;
    return absl::OkStatus();
  }
  absl::Status DownloadStep() override { return absl::OkStatus(); }
  absl::Status EndStep() override { return absl::OkStatus(); }
  absl::StatusOr<bool> Release(SequenceKv&) override { return true; }
  BytesRead LastStepBytes(size_t row) const override {
    return {.read = static_cast<double>(row), .full = 2};
  }

  std::vector<uint32_t> layers;
  LayerKv taken;
  MatrixView queries;
  MatrixView keys;
};

}  // namespace retroinfer::test_support
