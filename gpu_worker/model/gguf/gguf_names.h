// Under which names GGUF files hold the tensors of llama, qwen2, qwen3 and qwen3moe. What they have
// of all experts in one tensor, gguf_tensors.h gives one by one, with a number behind its name.
#pragma once

#include "gpu_worker/model/tensor_names.h"

namespace retroinfer {

inline constexpr TensorName kGgufModelTensors[] = {{TensorRole::kEmbedding, "token_embd.weight"},
                                                   {TensorRole::kFinalNorm, "output_norm.weight"},
                                                   {TensorRole::kOutput, "output.weight"}};
inline constexpr TensorName kGgufLayerTensors[] = {
    {TensorRole::kAttentionNorm, "attn_norm.weight"},
    {TensorRole::kFeedForwardNorm, "ffn_norm.weight"},
    {TensorRole::kQueryNorm, "attn_q_norm.weight"},
    {TensorRole::kKeyNorm, "attn_k_norm.weight"},
    {TensorRole::kQuery, "attn_q.weight"},
    {TensorRole::kKey, "attn_k.weight"},
    {TensorRole::kValue, "attn_v.weight"},
    {TensorRole::kQueryBias, "attn_q.bias"},
    {TensorRole::kKeyBias, "attn_k.bias"},
    {TensorRole::kValueBias, "attn_v.bias"},
    {TensorRole::kAttentionOutput, "attn_output.weight"},
    {TensorRole::kGate, "ffn_gate.weight"},
    {TensorRole::kUp, "ffn_up.weight"},
    {TensorRole::kDown, "ffn_down.weight"},
    {TensorRole::kRouter, "ffn_gate_inp.weight"},
    {TensorRole::kExpertGate, "ffn_gate_exps.*.weight"},
    {TensorRole::kExpertUp, "ffn_up_exps.*.weight"},
    {TensorRole::kExpertDown, "ffn_down_exps.*.weight"}};

inline constexpr TensorNames kGgufNames = {.of_model = kGgufModelTensors,
                                           .layer_prefix = "blk.",
                                           .of_layer = kGgufLayerTensors,
                                           .without_effect = {}};

}  // namespace retroinfer
