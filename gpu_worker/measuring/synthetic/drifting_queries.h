// A policy that answers for another one, but asks its own queries instead of the model's: random
// weights ask for nothing that stays from one step to the next, as a real model does. Generated
// tokens get keys that fit these queries (SyntheticContext::generated_keys).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/staged_arrays.h"
#include "gpu_worker/measuring/synthetic/forwarding_policy.h"
#include "gpu_worker/measuring/synthetic/synthetic_context.h"
#include "gpu_worker/ops/model/model_ops.h"

namespace retroinfer {

class DriftingQueries final : public ForwardingPolicy {
 public:
  // Takes device memory for a step's queries and keys. `policy` and `context` must outlive it.
  static absl::StatusOr<std::unique_ptr<DriftingQueries>> Create(
      Device& device, ModelOps& ops, Stream& stream, AttentionPolicy& policy,
      const SyntheticContext& context, uint32_t num_layers, int32_t max_batch);
  // Device bytes that Create takes.
  static size_t Bytes(const SyntheticShape& shape, DType activation_dtype, int32_t max_batch);

  // A token's queries are of its position: consecutive tokens have consecutive ones of the context,
  // whichever steps they are fed in. Sequences and layers begin at different ones.
  absl::Status BeginStep(std::span<SequenceKv* const> batch) override;
  // Also fetches the queries of all layers and the keys at once: a fetch in each layer would take
  // a tenth of a step, which the model without this class does not take.
  absl::Status UploadStep() override;
  // Passes on its own queries for `queries`, and its own keys for `keys` where the context has some
  // for generated tokens.
  absl::Status DecodeLayer(uint32_t layer, const AttentionForm& form, const MatrixView& queries,
                           const MatrixView& keys, const MatrixView& values,
                           const MatrixView& out) override;

 private:
  DriftingQueries(ModelOps& ops, Stream& stream, AttentionPolicy& policy,
                  const SyntheticContext& context, uint32_t num_layers, int32_t max_batch)
      : ForwardingPolicy(policy),
        ops_(ops),
        stream_(stream),
        context_(context),
        num_layers_(num_layers),
        max_batch_(max_batch) {}

  ModelOps& ops_;
  Stream& stream_;
  const SyntheticContext& context_;
  const uint32_t num_layers_;
  const int32_t max_batch_;
  int64_t num_rows_ = 0;  // of the step
  // int32 [num_layers][num_rows_]: rows of SyntheticContext::queries(); [num_rows_]: of its
  // generated_keys().
  StagedArrays rows_;
  DeviceBuffer buffer_;
  MatrixView queries_;  // [num_layers * max_batch, query_heads * head_dim], of which a step fills
                        // num_layers * num_rows_
  MatrixView keys_;     // [max_batch, kv_heads * head_dim]; no rows where the context has none
};

}  // namespace retroinfer
