// In what the matrices of a model are kept, and how much memory that takes.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/ops/backend/backend_needs.h"
#include "gpu_worker/ops/model/linear.h"

namespace retroinfer {

// What --weights-dtype `name` ("auto", "bf16", "fp8" or "int4") and --activations-dtype
// `activations` ("bf16" or "fp8") mean for a model. Never asks for what there is anyway: fp8 of a
// checkpoint in fp8 is kAsStored, and so is int4 of one in int4.
//
// Returns: INVALID_ARGUMENT for other names, for codes of one form that were to become those of
//          another, and for activations in fp8 beside weights that are not.
absl::StatusOr<KeptWeights> KeptWeightsNamed(const std::string& name, const ModelConfig& config,
                                             const std::string& activations = "bf16");

// Where config.json names no type, gives `config` the one that the embedding is stored in.
void TakeStoredType(const Checkpoint& checkpoint, ModelConfig& config);

// Whether the numbers of layers' matrices (StoredTensor::may_be_rounded) become codes; the
// embedding and the output projection stay what they are.
bool RoundsLayers(const ModelConfig& config, KeptWeights keep);

// Returns UNIMPLEMENTED, with the form, if the checkpoint's matrices are codes of one that the
// backend has not: before they are read.
absl::Status CheckWeightForm(const ModelConfig& config, const BackendNeeds& needs);

// The form of layers' matrices that are codes; null: they are numbers.
const WeightForm* KeptForm(const ModelConfig& config, KeptWeights keep);

// "fp8" or "int4", or the type of the numbers, as config.json says it: "bf16", "f16", "f32". Random
// ones are bf16 where that says nothing.
std::string WeightsDtype(const ModelConfig& config, KeptWeights keep);
// Whose scales they are: "fp8 (compressed-tensors, a scale for ..."; empty: the checkpoint's
// weights are numbers and stay so.
std::string WeightScalesFrom(const ModelConfig& config, KeptWeights keep);
// What becomes of such weights, for people: "they stay 8 bits in memory".
std::string WeightsInMemory(const ModelConfig& config, KeptWeights keep, const BackendNeeds& needs);

// Bytes of a checkpoint's weights in the memory of a backend, about.
size_t KeptWeightBytes(const ModelConfig& config, const Checkpoint& checkpoint, KeptWeights keep,
                       const BackendNeeds& needs);
// The same of random weights (random_weights.h).
size_t KeptRandomWeightBytes(const ModelConfig& config, KeptWeights keep,
                             const BackendNeeds& needs);

}  // namespace retroinfer
