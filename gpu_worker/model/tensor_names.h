// What the tensors of a model are, and under which names a family's folders hold them. Nothing else
// in the product knows a name.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace retroinfer {

enum class TensorRole : uint8_t {
  // Of the whole model.
  kEmbedding,
  kFinalNorm,
  kOutput,  // the output projection
  // Of a layer.
  kAttentionNorm,
  kFeedForwardNorm,
  kPostAttentionNorm,    // of what attention adds
  kPostFeedForwardNorm,  // of what the feed-forward network adds
  kQueryNorm,            // of each query head
  kKeyNorm,              // of each key head
  kQuery,
  kKey,
  kValue,
  kQueryBias,
  kKeyBias,
  kValueBias,
  kAttentionOutput,
  kAttentionOutputBias,
  kSinks,  // a logit of each query head that has no value
  kGate,
  kUp,
  kDown,
  kRouter,  // gives each expert of the layer a score
  kRouterBias,
  // Of each expert of a layer.
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kExpertGateBias,
  kExpertUpBias,
  kExpertDownBias,
};

constexpr bool IsOfExpert(TensorRole role) {
  return role == TensorRole::kExpertGate || role == TensorRole::kExpertUp ||
         role == TensorRole::kExpertDown || role == TensorRole::kExpertGateBias ||
         role == TensorRole::kExpertUpBias || role == TensorRole::kExpertDownBias;
}

struct TensorName {
  TensorRole role;
  std::string_view name;
};

// The names of a family; in that of an expert's tensor a star stands for its number. Roles that
// have one name lie in that tensor one below the other, in the order of the list ("qkv_proj",
// "gate_up_proj"). A list may name roles that a model does not have.
struct TensorNames {
  std::span<const TensorName> of_model;
  // In front of a layer's names, with the layer's number and a dot behind it.
  std::string_view layer_prefix;
  std::span<const TensorName> of_layer;
  // How names of tensors end that may be there and have no effect.
  std::span<const std::string_view> without_effect;
  // How names of tensors begin that belong to what is not served: the part that sees images.
  std::span<const std::string_view> other_parts = {};
};

inline constexpr TensorName kLlamaModelTensors[] = {
    {TensorRole::kEmbedding, "model.embed_tokens.weight"},
    {TensorRole::kFinalNorm, "model.norm.weight"},
    {TensorRole::kOutput, "lm_head.weight"}};
inline constexpr TensorName kLlamaLayerTensors[] = {
    {TensorRole::kAttentionNorm, "input_layernorm.weight"},
    {TensorRole::kFeedForwardNorm, "post_attention_layernorm.weight"},
    {TensorRole::kQueryNorm, "self_attn.q_norm.weight"},
    {TensorRole::kKeyNorm, "self_attn.k_norm.weight"},
    {TensorRole::kQuery, "self_attn.q_proj.weight"},
    {TensorRole::kKey, "self_attn.k_proj.weight"},
    {TensorRole::kValue, "self_attn.v_proj.weight"},
    {TensorRole::kQueryBias, "self_attn.q_proj.bias"},
    {TensorRole::kKeyBias, "self_attn.k_proj.bias"},
    {TensorRole::kValueBias, "self_attn.v_proj.bias"},
    {TensorRole::kAttentionOutput, "self_attn.o_proj.weight"},
    {TensorRole::kGate, "mlp.gate_proj.weight"},
    {TensorRole::kUp, "mlp.up_proj.weight"},
    {TensorRole::kDown, "mlp.down_proj.weight"},
    {TensorRole::kRouter, "mlp.gate.weight"},
    {TensorRole::kExpertGate, "mlp.experts.*.gate_proj.weight"},
    {TensorRole::kExpertUp, "mlp.experts.*.up_proj.weight"},
    {TensorRole::kExpertDown, "mlp.experts.*.down_proj.weight"}};
inline constexpr std::string_view kLlamaWithoutEffect[] = {".self_attn.rotary_emb.inv_freq"};

// Llama's names, which Qwen has, too.
inline constexpr TensorNames kLlamaNames = {.of_model = kLlamaModelTensors,
                                            .layer_prefix = "model.layers.",
                                            .of_layer = kLlamaLayerTensors,
                                            .without_effect = kLlamaWithoutEffect};

// gpt-oss': its experts as UnstackExperts (stacked_experts.h) gives them.
inline constexpr TensorName kGptOssLayerTensors[] = {
    {TensorRole::kAttentionNorm, "input_layernorm.weight"},
    {TensorRole::kFeedForwardNorm, "post_attention_layernorm.weight"},
    {TensorRole::kQuery, "self_attn.q_proj.weight"},
    {TensorRole::kKey, "self_attn.k_proj.weight"},
    {TensorRole::kValue, "self_attn.v_proj.weight"},
    {TensorRole::kQueryBias, "self_attn.q_proj.bias"},
    {TensorRole::kKeyBias, "self_attn.k_proj.bias"},
    {TensorRole::kValueBias, "self_attn.v_proj.bias"},
    {TensorRole::kAttentionOutput, "self_attn.o_proj.weight"},
    {TensorRole::kAttentionOutputBias, "self_attn.o_proj.bias"},
    {TensorRole::kSinks, "self_attn.sinks"},
    {TensorRole::kRouter, "mlp.router.weight"},
    {TensorRole::kRouterBias, "mlp.router.bias"},
    {TensorRole::kExpertGate, "mlp.experts.*.gate_proj.weight"},
    {TensorRole::kExpertUp, "mlp.experts.*.up_proj.weight"},
    {TensorRole::kExpertDown, "mlp.experts.*.down_proj.weight"},
    {TensorRole::kExpertGateBias, "mlp.experts.*.gate_proj.bias"},
    {TensorRole::kExpertUpBias, "mlp.experts.*.up_proj.bias"},
    {TensorRole::kExpertDownBias, "mlp.experts.*.down_proj.bias"}};
inline constexpr TensorNames kGptOssNames = {.of_model = kLlamaModelTensors,
                                             .layer_prefix = "model.layers.",
                                             .of_layer = kGptOssLayerTensors,
                                             .without_effect = kLlamaWithoutEffect};

inline constexpr TensorName kGemma3LayerTensors[] = {
    {TensorRole::kAttentionNorm, "input_layernorm.weight"},
    {TensorRole::kPostAttentionNorm, "post_attention_layernorm.weight"},
    {TensorRole::kFeedForwardNorm, "pre_feedforward_layernorm.weight"},
    {TensorRole::kPostFeedForwardNorm, "post_feedforward_layernorm.weight"},
    {TensorRole::kQueryNorm, "self_attn.q_norm.weight"},
    {TensorRole::kKeyNorm, "self_attn.k_norm.weight"},
    {TensorRole::kQuery, "self_attn.q_proj.weight"},
    {TensorRole::kKey, "self_attn.k_proj.weight"},
    {TensorRole::kValue, "self_attn.v_proj.weight"},
    {TensorRole::kAttentionOutput, "self_attn.o_proj.weight"},
    {TensorRole::kGate, "mlp.gate_proj.weight"},
    {TensorRole::kUp, "mlp.up_proj.weight"},
    {TensorRole::kDown, "mlp.down_proj.weight"}};
inline constexpr TensorNames kGemma3Names = {.of_model = kLlamaModelTensors,
                                             .layer_prefix = "model.layers.",
                                             .of_layer = kGemma3LayerTensors,
                                             .without_effect = kLlamaWithoutEffect};

// The text part of a Gemma 3 that sees images.
inline constexpr TensorName kGemma3TextModelTensors[] = {
    {TensorRole::kEmbedding, "language_model.model.embed_tokens.weight"},
    {TensorRole::kFinalNorm, "language_model.model.norm.weight"},
    {TensorRole::kOutput, "language_model.lm_head.weight"}};
inline constexpr std::string_view kGemma3OtherParts[] = {"vision_tower.", "multi_modal_projector."};
inline constexpr TensorNames kGemma3TextNames = {.of_model = kGemma3TextModelTensors,
                                                 .layer_prefix = "language_model.model.layers.",
                                                 .of_layer = kGemma3LayerTensors,
                                                 .without_effect = kLlamaWithoutEffect,
                                                 .other_parts = kGemma3OtherParts};

// Phi-3's: queries, keys and values are rows of one tensor, and so are gate and up.
inline constexpr TensorName kPhi3LayerTensors[] = {
    {TensorRole::kAttentionNorm, "input_layernorm.weight"},
    {TensorRole::kFeedForwardNorm, "post_attention_layernorm.weight"},
    {TensorRole::kQuery, "self_attn.qkv_proj.weight"},
    {TensorRole::kKey, "self_attn.qkv_proj.weight"},
    {TensorRole::kValue, "self_attn.qkv_proj.weight"},
    {TensorRole::kAttentionOutput, "self_attn.o_proj.weight"},
    {TensorRole::kGate, "mlp.gate_up_proj.weight"},
    {TensorRole::kUp, "mlp.gate_up_proj.weight"},
    {TensorRole::kDown, "mlp.down_proj.weight"}};
inline constexpr TensorNames kPhi3Names = {.of_model = kLlamaModelTensors,
                                           .layer_prefix = "model.layers.",
                                           .of_layer = kPhi3LayerTensors,
                                           .without_effect = kLlamaWithoutEffect};

inline constexpr TensorName kMixtralLayerTensors[] = {
    {TensorRole::kAttentionNorm, "input_layernorm.weight"},
    {TensorRole::kFeedForwardNorm, "post_attention_layernorm.weight"},
    {TensorRole::kQuery, "self_attn.q_proj.weight"},
    {TensorRole::kKey, "self_attn.k_proj.weight"},
    {TensorRole::kValue, "self_attn.v_proj.weight"},
    {TensorRole::kAttentionOutput, "self_attn.o_proj.weight"},
    {TensorRole::kRouter, "block_sparse_moe.gate.weight"},
    {TensorRole::kExpertGate, "block_sparse_moe.experts.*.w1.weight"},
    {TensorRole::kExpertUp, "block_sparse_moe.experts.*.w3.weight"},
    {TensorRole::kExpertDown, "block_sparse_moe.experts.*.w2.weight"}};

inline constexpr TensorNames kMixtralNames = {.of_model = kLlamaModelTensors,
                                              .layer_prefix = "model.layers.",
                                              .of_layer = kMixtralLayerTensors,
                                              .without_effect = kLlamaWithoutEffect};

}  // namespace retroinfer
