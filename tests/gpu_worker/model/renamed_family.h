// A family as one would add it to the product (docs/architecture.md, "To add something"): other
// names, and one tensor for all that is multiplied as one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gpu_worker/model/model_table.h"
#include "tests/gpu_worker/model/golden_model.h"
#include "tests/gpu_worker/model/safetensors_text.h"

namespace retroinfer::test_support {

inline constexpr TensorName kRenamedModel[] = {{TensorRole::kEmbedding, "wte.weight"},
                                               {TensorRole::kFinalNorm, "ln_f.weight"},
                                               {TensorRole::kOutput, "head.weight"}};
inline constexpr TensorName kRenamedLayer[] = {{TensorRole::kAttentionNorm, "ln_1.weight"},
                                               {TensorRole::kFeedForwardNorm, "ln_2.weight"},
                                               {TensorRole::kQueryNorm, "attn.ln_q.weight"},
                                               {TensorRole::kKeyNorm, "attn.ln_k.weight"},
                                               {TensorRole::kQuery, "attn.qkv.weight"},
                                               {TensorRole::kKey, "attn.qkv.weight"},
                                               {TensorRole::kValue, "attn.qkv.weight"},
                                               {TensorRole::kQueryBias, "attn.qkv.bias"},
                                               {TensorRole::kKeyBias, "attn.qkv.bias"},
                                               {TensorRole::kValueBias, "attn.qkv.bias"},
                                               {TensorRole::kAttentionOutput, "attn.out.weight"},
                                               {TensorRole::kGate, "ffn.gate_up.weight"},
                                               {TensorRole::kUp, "ffn.gate_up.weight"},
                                               {TensorRole::kDown, "ffn.down.weight"}};
inline constexpr std::string_view kRenamedWithoutEffect[] = {".attn.causal_mask"};
inline constexpr TensorNames kRenamedNames = {.of_model = kRenamedModel,
                                              .layer_prefix = "transformer.h.",
                                              .of_layer = kRenamedLayer,
                                              .without_effect = kRenamedWithoutEffect};

// Tensors one below the other.
inline TensorText Stacked(const std::string& name, const std::vector<const HostTensor*>& tensors) {
  TensorText text{name, std::string(WeightTypeName(tensors.front()->type)), tensors.front()->shape,
                  ""};
  text.shape[0] = 0;
  for (const HostTensor* const tensor : tensors) {
    text.shape[0] += tensor->shape[0];
    text.bytes.append(reinterpret_cast<const char*>(tensor->stored.data()), tensor->stored.size());
  }
  return text;
}

// The weights of `golden`, whose scales, if any, are of output features, as a folder of that family
// has them.
inline std::string RenamedWeights(const GoldenModel& golden) {
  ModelConfig config = golden.config;
  const ModelTable from(config);
  config.names = &kRenamedNames;
  const ModelTable to(config);
  const auto& tensors = golden.checkpoint.tensors();
  std::vector<TensorText> texts;
  for (const auto& [name, stored] : to.stored()) {
    std::vector<const HostTensor*> parts;
    std::vector<const HostTensor*> scales;
    for (const TensorSpec& part : stored.parts) {
      const std::string& old_name = from.Get(part.role, part.layer).stored;
      parts.push_back(&tensors.at(old_name));
      if (HasScales(parts.back()->type)) {
        scales.push_back(&tensors.at(config.quantization->form.NamesOf(old_name).scales));
      }
    }
    texts.push_back(Stacked(name, parts));
    if (scales.empty()) continue;
    texts.push_back(Stacked(config.quantization->form.NamesOf(name).scales, scales));
  }
  return SafetensorsText(texts);
}

}  // namespace retroinfer::test_support
