// What the keys of a GGUF file say about a model, checked and reduced to what the forward pass
// needs: the same as the config.json of the folder that the file was made from.
//
// Architectures: llama (Llama 3 to 3.2), qwen2 and qwen3. A setting that would change the result
// and is not implemented is refused.
#pragma once

#include "absl/status/statusor.h"
#include "gpu_worker/model/generation_config.h"
#include "gpu_worker/model/gguf/gguf_files.h"
#include "gpu_worker/model/model_config.h"

namespace retroinfer {

// Where a file has the factors of Llama 3.1's RoPE (rope_freqs.weight), the scaling is found of
// which they are. An output projection that is missing is the embedding. What the weights are to be
// computed in is left open (kept_weights.h).
//
// Returns: INVALID_ARGUMENT for missing, mistyped or impossible values, UNIMPLEMENTED for what is
//          valid but not supported; both with file, key and what is accepted.
absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFiles& files);

// Ends of generation are the tokens that the file names as end of text, turn or message, and those
// control tokens that are known as such by their text: converters write one id, where
// generation_config.json has several. Sampling is what general.sampling.* says.
absl::StatusOr<GenerationConfig> ReadGgufGeneration(const GgufFiles& files,
                                                    const ModelConfig& model);

}  // namespace retroinfer
