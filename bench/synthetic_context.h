// Long contexts without prefill, for measuring decode steps: keys that lie in clusters, and queries
// that drift from step to step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/attention/attention_policy.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/staged_arrays.h"
#include "gpu_worker/ops/ops.h"

namespace retroinfer::bench {

struct SyntheticShape {
  KvGeometry geometry;
  int32_t num_query_heads = 0;
  int64_t num_tokens = 0;  // of a context
  // Cosine between a head's queries of two steps, without what is random in each.
  double overlap = 0.9;
  uint64_t seed = 1;
};

// Topics, each a direction with some spread; a context stays with a topic for a dozen tokens. Every
// sequence and every layer get the same tokens, each layer beginning elsewhere.
class SyntheticContext {
 public:
  // Takes device memory for one layer's KV of a context, and for the tables.
  static absl::StatusOr<SyntheticContext> Create(Device& device, Ops& ops,
                                                 const SyntheticShape& shape);

  // Enqueues the making of a layer's KV, in memory that the next call overwrites.
  absl::StatusOr<LayerKv> MakeLayer(Stream& stream, uint32_t layer);

  // Queries: [num_queries][query_heads * head_dim] bf16; consecutive ones are those of consecutive
  // steps.
  const MatrixView& queries() const { return queries_; }

 private:
  absl::Status MakeTables(Stream& stream);
  absl::Status Upload(Stream& stream, std::span<const std::byte> host, DeviceBuffer& buffer);

  Device* device_ = nullptr;
  Ops* ops_ = nullptr;
  SyntheticShape shape_;
  DeviceBuffer keys_, values_;  // a layer's
  DeviceBuffer table_buffer_, ids_, chunk_;
  DeviceBuffer query_buffer_;
  MatrixView table_;    // [topics * variants, head_dim] bf16
  MatrixView queries_;  // see queries()
};

// A policy that answers for another one, but asks its own queries instead of the model's.
class DriftingQueries final : public AttentionPolicy {
 public:
  // `policy` and `context` must outlive it.
  static absl::StatusOr<std::unique_ptr<DriftingQueries>> Create(
      Device& device, Ops& ops, Stream& stream, AttentionPolicy& policy,
      const SyntheticContext& context, uint32_t num_layers, int32_t max_batch);

  KvNeed Need(int64_t prompt_tokens, int64_t total_tokens) const override {
    return policy_.Need(prompt_tokens, total_tokens);
  }
  absl::Status TakeLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) override {
    return policy_.TakeLayer(sequence, layer, kv);
  }
  absl::StatusOr<bool> LayerTaken(const SequenceKv& sequence, uint32_t layer) override {
    return policy_.LayerTaken(sequence, layer);
  }
  absl::StatusOr<bool> FinishPrefill(SequenceKv& sequence) override {
    return policy_.FinishPrefill(sequence);
  }
  absl::Status BeginStep(std::span<SequenceKv* const> batch) override;
  uint64_t StepShape() const override { return policy_.StepShape(); }
  absl::Status UploadStep() override;
  absl::Status DecodeLayer(uint32_t layer, const MatrixView& queries, const MatrixView& keys,
                           const MatrixView& values, const MatrixView& out) override;
  absl::Status DownloadStep() override { return policy_.DownloadStep(); }
  absl::Status EndStep() override { return policy_.EndStep(); }
  absl::StatusOr<bool> Release(SequenceKv& sequence) override { return policy_.Release(sequence); }
  BytesRead LastStepBytes(size_t row) const override { return policy_.LastStepBytes(row); }

 private:
  DriftingQueries(Ops& ops, Stream& stream, AttentionPolicy& policy,
                  const SyntheticContext& context, uint32_t num_layers, int32_t max_batch)
      : ops_(ops),
        stream_(stream),
        policy_(policy),
        context_(context),
        num_layers_(num_layers),
        max_batch_(max_batch) {}

  Ops& ops_;
  Stream& stream_;
  AttentionPolicy& policy_;
  const SyntheticContext& context_;
  const uint32_t num_layers_;
  const int32_t max_batch_;
  StagedArrays rows_;  // int32 [num_layers][max_batch]: rows of queries()
  int64_t step_ = 0;
};

}  // namespace retroinfer::bench
