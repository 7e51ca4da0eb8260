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
  // Takes device memory for the numbers of a step's queries. `policy` and `context` must outlive
  // it.
  static absl::StatusOr<std::unique_ptr<DriftingQueries>> Create(
      Device& device, ModelOps& ops, Stream& stream, AttentionPolicy& policy,
      const SyntheticContext& context, uint32_t num_layers, int32_t max_batch);
  // Device bytes that Create takes.
  static size_t Bytes(uint32_t num_layers, int32_t max_batch);

  // A token's queries are of its position: consecutive tokens have consecutive ones of the context,
  // whichever steps they are fed in. Sequences and layers begin at different ones.
  absl::Status BeginStep(std::span<SequenceKv* const> batch) override;
  absl::Status UploadStep() override;
  // Overwrites `queries`, and `keys` where the context has some for generated tokens.
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
  // int32 [num_layers][max_batch]: rows of SyntheticContext::queries(); [max_batch]: of its
  // generated_keys().
  StagedArrays rows_;
};

}  // namespace retroinfer
