// How a checkpoint says that its weights are quantized, and in which of the ways that people
// publish: e4m3 with a scale for each matrix, each output feature, or each block of 128 x 128; int4
// with a scale for each group of 32, 64 or 128 input features, or each output feature; or floats of
// 4 bits (float4_form.h).
//
// * compressed-tensors: quantization_config of config.json, format float-quantized, pack-quantized,
//   nvfp4-pack-quantized or mxfp4-pack-quantized
// * fp8: quantization_config, weight_block_size or a scale for each matrix
// * modelopt: quantization_config or hf_quant_config.json, quant_algo FP8 or NVFP4
// * awq: quantization_config, version gemm, 4 bits
// * gptq: quantization_config, 4 bits, both versions of the format, with act order, too
//
// Which matrices are quantized their element types say: those that a list of the folder leaves out
// are stored in 16 or 32 bits and stay so. Activations are not rounded, whatever the folder says:
// that would only lose accuracy. Anything else is refused by name.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/json/json_reader.h"
#include "gpu_worker/model/float4_form.h"
#include "gpu_worker/model/stored_form.h"

namespace retroinfer {

struct WeightQuantization {
  StoredForm form;
  std::string method;          // "compressed-tensors", "fp8", "modelopt", "awq" or "gptq"
  bool has_kv_scheme = false;  // scales for an 8-bit KV cache come along, which have no effect here

  // Matrices are in this form, and `form` says nothing.
  std::optional<Float4Form> float4 = {};

  // For people: "fp8 (compressed-tensors, a scale for each output feature)".
  std::string ToString() const;
};

// What `config` (config.json) and, where it says nothing, `hf_quant_config` say; nothing: weights
// are numbers.
//
// Returns: INVALID_ARGUMENT for what makes no sense, UNIMPLEMENTED for another way of quantizing;
//          both with file, key and what is accepted.
absl::StatusOr<std::optional<WeightQuantization>> ReadWeightQuantization(
    const common::JsonReader& config, const common::JsonReader* hf_quant_config);

// Checks that `config` has experts in MXFP4, which are numbers when they are loaded
// (stacked_experts.h) and so no quantization of the model here.
//
// Returns: UNIMPLEMENTED for another form, and for none.
absl::Status RequireMxfp4(const common::JsonReader& config);

}  // namespace retroinfer
