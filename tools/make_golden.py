#!/usr/bin/env python3
"""Makes tests/golden/models: small random checkpoints and the logits that Hugging Face transformers
computes from them in f32.

Each folder holds a model as a user would download it (config.json, weights, generation_config.json)
and what it must answer:
  expected.json          prompt, forced (the tokens to decode, one by one), prefill_positions
  expected.safetensors   prefill_logits [positions, vocab], decode_logits [64, vocab], f32;
                         row i of decode_logits follows forced[i] at position len(prompt) + i

Models whose name has fp8 have e4m3 weights in the forms that people publish; what they must answer
is computed from the numbers that codes and scales stand for, in f32.

Needs torch, transformers (5 or later), safetensors.
Run: tools/make_golden.py [--out FOLDER] [--only PART_OF_A_NAME]
The result depends on the seeds below and, in the last bits, on the version of torch.
"""
import argparse
import json
import pathlib
import shutil
import tempfile

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

DECODE_STEPS = 64
PROMPT_TOKENS = 101
PREFILL_POSITIONS = [0, 1, 5, 67, 68, 99, 100]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
FP8, FP8_MAX, BLOCK = torch.float8_e4m3fn, 448.0, 128

# Contexts are short here, so RoPE is scaled from an original length of 32 tokens: the scaling acts
# within the prompt.
LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
COMMON = {
    "hidden_act": "silu", "num_hidden_layers": 2, "vocab_size": 259, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256, "eos_token_id": [257, 258], "bos_token_id": 256,
}


def llama(**settings):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
            "mlp_bias": False, "pretraining_tp": 1, **COMMON, **settings}


def qwen2(**settings):
    return {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
            "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28,
            **COMMON, **settings}


def qwen3(**settings):
    return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
            "use_sliding_window": False, "sliding_window": None, "max_window_layers": 28,
            **COMMON, **settings}


def mistral(**settings):
    return {"architectures": ["MistralForCausalLM"], "model_type": "mistral",
            "sliding_window": None, **COMMON, **settings}


def seed_oss(**settings):
    return {"architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss",
            "attention_bias": True, "attention_out_bias": False, "mlp_bias": False, **COMMON,
            **settings}


def smollm3(**settings):
    return {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3",
            "attention_bias": False, "mlp_bias": False, "use_sliding_window": False,
            "sliding_window": None, **COMMON, **settings}


def gemma3(**settings):
    return {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
            "attention_bias": False, "attn_logit_softcapping": None,
            "final_logit_softcapping": None, "hidden_activation": "gelu_pytorch_tanh",
            **{key: value for key, value in COMMON.items() if key != "hidden_act"}, **settings}


def granite(**settings):
    return {"architectures": ["GraniteForCausalLM"], "model_type": "granite",
            "attention_bias": False, "mlp_bias": False, **COMMON, **settings}


def phi3(**settings):
    return {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "attention_bias": False,
            "sliding_window": None, "pad_token_id": None, **COMMON, **settings}


def ministral3(**settings):
    return {"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3",
            "sliding_window": None, "pad_token_id": None, **COMMON, **settings}


# Factors of LongRoPE for so many pairs of dimensions.
def longrope(pairs):
    return {"type": "longrope", "short_factor": [1 + 0.01 * i for i in range(pairs)],
            "long_factor": [1 + 0.5 * i for i in range(pairs)]}


def qwen3_moe(**settings):
    return {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
            "attention_bias": False, "use_sliding_window": False, "sliding_window": None,
            "decoder_sparse_step": 1, "mlp_only_layers": [], **COMMON, **settings}


def mixtral(**settings):
    return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
            "sliding_window": None, **COMMON, **settings}


# name -> (config.json, element type of a tensor, files)
MODELS = {
    # The old form of config.json; groups of 8; two files with an index.
    "llama-d64-untied-bf16": (
        llama(hidden_size=64, intermediate_size=88, num_attention_heads=8, num_key_value_heads=1,
              head_dim=64, rope_theta=500000.0, rope_scaling=LLAMA3_ROPE, torch_dtype="bfloat16",
              tie_word_embeddings=False), lambda name: BF16, 2),
    # The form of transformers 5.
    "llama-d128-tied-f16": (
        llama(hidden_size=64, intermediate_size=88, num_attention_heads=4, num_key_value_heads=2,
              head_dim=128, rope_parameters={"rope_theta": 10000.0, **LLAMA3_ROPE},
              dtype="float16", tie_word_embeddings=True), lambda name: F16, 1),
    # Groups of 7 as in Qwen2.5-7B; every element type in one checkpoint.
    "qwen2-d64-group7-mixed": (
        qwen2(hidden_size=40, intermediate_size=72, num_attention_heads=7, num_key_value_heads=1,
              head_dim=64, rope_theta=1000000.0, torch_dtype="bfloat16",
              tie_word_embeddings=False),
        lambda name: F32 if "norm" in name or "bias" in name else
        F16 if "mlp" in name else BF16, 1),
    # No head_dim: hidden size over heads.
    "qwen2-d128-yarn-bf16": (
        qwen2(hidden_size=256, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1,
              vocab_size=101, eos_token_id=100, bos_token_id=None, num_hidden_layers=1,
              rope_theta=10000.0, rope_scaling=YARN_ROPE, torch_dtype="bfloat16",
              tie_word_embeddings=True), lambda name: BF16, 1),
    "qwen3-d64-untied-f32": (
        qwen3(hidden_size=24, intermediate_size=40, num_attention_heads=3, num_key_value_heads=3,
              head_dim=64, rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"},
              dtype="float32", tie_word_embeddings=False), lambda name: F32, 1),
    "qwen3-d128-tied-bf16": (
        qwen3(hidden_size=64, intermediate_size=88, num_attention_heads=5, num_key_value_heads=1,
              head_dim=128, rope_theta=1000000.0, rope_scaling=None, torch_dtype="bfloat16",
              tie_word_embeddings=True), lambda name: BF16, 1),
}

# Seeds of the models above go by their order, so those that came later have seeds of their own.
LATER_MODELS = {
    # As Mistral Nemo: heads that are larger than the hidden size over their number.
    "mistral-d64-untied-bf16": (
        mistral(hidden_size=96, intermediate_size=56, num_attention_heads=4, num_key_value_heads=1,
                head_dim=64, vocab_size=101, eos_token_id=100, bos_token_id=None,
                rope_theta=1000000.0, torch_dtype="bfloat16", tie_word_embeddings=False),
        lambda name: BF16, 1),
    # Biases of q, k and v, none of o; groups of 5.
    "seedoss-d64-untied-bf16": (
        seed_oss(hidden_size=72, intermediate_size=56, num_attention_heads=5, num_key_value_heads=1,
                 head_dim=64, vocab_size=101, eos_token_id=100, bos_token_id=None,
                 rope_theta=10000000.0, torch_dtype="bfloat16", tie_word_embeddings=False),
        lambda name: BF16, 1),
    # The second layer has no RoPE; what is not named is what transformers takes.
    "smollm3-d64-norope-bf16": (
        smollm3(hidden_size=128, intermediate_size=40, num_attention_heads=2, num_key_value_heads=1,
                no_rope_layers=[1, 0], vocab_size=101, eos_token_id=100,
                pad_token_id=None, bos_token_id=None, torch_dtype="bfloat16"),
        lambda name: BF16, 1),
    # As Gemma 3's heads, and a group of 10 as in Seed-OSS 36B.
    "llama-d256-untied-bf16": (
        llama(hidden_size=64, intermediate_size=40, num_attention_heads=2, num_key_value_heads=1,
              head_dim=256, num_hidden_layers=1, vocab_size=101, eos_token_id=100,
              bos_token_id=None, rope_theta=10000.0, torch_dtype="bfloat16",
              tie_word_embeddings=False), lambda name: BF16, 1),
    "seedoss-d64-group10-bf16": (
        seed_oss(hidden_size=40, intermediate_size=40, num_attention_heads=10,
                 num_key_value_heads=1, head_dim=64, vocab_size=101, eos_token_id=100,
                 bos_token_id=None, rope_theta=10000000.0, torch_dtype="bfloat16",
                 tie_word_embeddings=False), lambda name: BF16, 1),
    # Multipliers of another size than Granite's own, with which random layers would add nothing.
    "granite-d64-tied-bf16": (
        granite(hidden_size=128, intermediate_size=56, num_attention_heads=2,
                num_key_value_heads=1, vocab_size=101, eos_token_id=100, bos_token_id=None,
                pad_token_id=None, rope_theta=10000.0, embedding_multiplier=0.75,
                residual_multiplier=0.6, logits_scaling=3.0, attention_multiplier=0.2,
                torch_dtype="bfloat16", tie_word_embeddings=True), lambda name: BF16, 1),
    # As Phi-4-mini: three quarters of a head are turned, by the factors of long contexts.
    "phi3-d64-partial-long-bf16": (
        phi3(hidden_size=256, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2,
             partial_rotary_factor=0.75, original_max_position_embeddings=64,
             rope_scaling=longrope(24), vocab_size=101, eos_token_id=100, bos_token_id=None,
             num_hidden_layers=1, torch_dtype="bfloat16", tie_word_embeddings=True),
        lambda name: BF16, 1),
    # As Phi-3-mini: heads of 96; the context is the original one.
    "phi3-d96-short-f16": (
        phi3(hidden_size=192, intermediate_size=40, num_attention_heads=2, num_key_value_heads=2,
             original_max_position_embeddings=256, rope_scaling=longrope(48), vocab_size=101,
             eos_token_id=100, bos_token_id=None, num_hidden_layers=1, torch_dtype="float16",
             tie_word_embeddings=False), lambda name: F16, 1),
    "llama-d80-untied-bf16": (
        llama(hidden_size=96, intermediate_size=40, num_attention_heads=3, num_key_value_heads=1,
              head_dim=80, vocab_size=101, eos_token_id=100, bos_token_id=None,
              rope_theta=10000.0, torch_dtype="bfloat16", tie_word_embeddings=False),
        lambda name: BF16, 2),
    # Queries grow from token 32 on.
    "ministral3-d64-yarn-bf16": (
        ministral3(hidden_size=96, intermediate_size=56, num_attention_heads=4,
                   num_key_value_heads=1, head_dim=64, vocab_size=101, eos_token_id=100,
                   bos_token_id=None, torch_dtype="bfloat16", tie_word_embeddings=False,
                   rope_parameters={"type": "yarn", "rope_theta": 1000000.0, "factor": 8.0,
                                    "original_max_position_embeddings": 32,
                                    "max_position_embeddings": 256, "beta_fast": 32.0,
                                    "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0,
                                    "llama_4_scaling_beta": 0.1}), lambda name: BF16, 1),
}


# Sinks, biases everywhere, experts in MXFP4; of the three layers the second sees all tokens.
GPT_OSS = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True,
           **COMMON, "num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 32,
           "num_local_experts": 6, "num_experts_per_tok": 4, "num_attention_heads": 4,
           "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 101, "eos_token_id": 100,
           "bos_token_id": None, "sliding_window": 24, "swiglu_limit": 7.0, "rope_theta": 150000,
           "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
           "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
                            "original_max_position_embeddings": 32, "truncate": False},
           "torch_dtype": "bfloat16", "tie_word_embeddings": False}

# Windows that are shorter than the prompt. The roots of the hidden sizes are whole numbers, so that
# embeddings are multiplied alike in every type.
WINDOW_MODELS = {
    # The older form, with what folders of one model have; the third layer sees all tokens.
    "gemma3-d64-windows-bf16": (
        gemma3(hidden_size=64, intermediate_size=88, num_attention_heads=4, num_key_value_heads=2,
               head_dim=64, num_hidden_layers=3, sliding_window_pattern=3, sliding_window=24,
               query_pre_attn_scalar=32, rope_theta=1000000, rope_local_base_freq=10000,
               rope_scaling={"factor": 8.0, "rope_type": "linear"}, torch_dtype="bfloat16"),
        lambda name: BF16, 1),
    # The text part of a model that sees images, in the form of transformers 5, heads of 256.
    "gemma3-d256-text-part-bf16": (
        gemma3(hidden_size=36, intermediate_size=56, num_attention_heads=1, num_key_value_heads=1,
               head_dim=256, vocab_size=101, eos_token_id=100, bos_token_id=None,
               layer_types=["full_attention", "sliding_attention"], sliding_window=70,
               rope_parameters={
                   "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                   "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
               dtype="bfloat16"), None, 1),
}


EXPERT_MODELS = {
    # Experts of a size that fills no tile of 16; weights of the chosen ones sum to 1.
    "qwen3moe-d64-untied-bf16": (
        qwen3_moe(hidden_size=64, intermediate_size=88, moe_intermediate_size=40, num_experts=8,
                  num_experts_per_tok=3, norm_topk_prob=True, num_attention_heads=4,
                  num_key_value_heads=1, head_dim=64, vocab_size=101, eos_token_id=100,
                  bos_token_id=None, rope_theta=1000000.0, torch_dtype="bfloat16",
                  tie_word_embeddings=False), lambda name: BF16, 2),
    # They do not; f32.
    "qwen3moe-d128-tied-f32": (
        qwen3_moe(hidden_size=48, intermediate_size=88, moe_intermediate_size=16, num_experts=5,
                  num_experts_per_tok=2, norm_topk_prob=False, num_attention_heads=2,
                  num_key_value_heads=2, head_dim=128, vocab_size=101, eos_token_id=100,
                  bos_token_id=None, rope_theta=10000.0, torch_dtype="float32",
                  tie_word_embeddings=True), lambda name: F32, 1),
    "mixtral-d64-untied-bf16": (
        mixtral(hidden_size=128, intermediate_size=24, num_local_experts=6, num_experts_per_tok=2,
                num_attention_heads=2, num_key_value_heads=1, vocab_size=101, eos_token_id=100,
                bos_token_id=None, rope_theta=1000000.0, torch_dtype="bfloat16",
                tie_word_embeddings=False), lambda name: BF16, 1),
}


def compressed_tensors(strategy, dynamic, **weights):
    """quantization_config as llm-compressor writes it."""
    activations = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": dynamic,
                   "strategy": "token" if dynamic else "tensor"}
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False,
               "strategy": strategy, **weights}
    return {"quant_method": "compressed-tensors", "format": "float-quantized",
            "quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": None,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                          "input_activations": activations,
                                          "output_activations": None}}}


# How the matrices of a model are quantized: what has a scale ("matrix", "feature", "block"), name
# and type of the scales, whether activations have static ones, modules that are left out, further
# tensors, and files of the folder beside config.json.
class Quantization:
    def __init__(self, part, config, scale="weight_scale", storage=F32, input_scale=False,
                 left_out=(), more=(), hf_quant_config=None):
        self.part, self.config, self.scale, self.storage = part, config, scale, storage
        self.input_scale, self.left_out, self.more = input_scale, left_out, more
        self.hf_quant_config = hf_quant_config

    def folder_config(self, settings):
        return settings if self.config is None else {**settings,
                                                     "quantization_config": self.config}

    def covers(self, name):
        return name.endswith("_proj.weight") and not any(part in name for part in self.left_out)

    def scales_of(self, matrix):
        """One scale for each part, and all of them spread to the shape of the matrix."""
        rows, cols = matrix.shape
        if self.part == "matrix":
            scales = (matrix.abs().max() / FP8_MAX).to(self.storage)
            return scales, scales.float().expand(rows, cols)
        if self.part == "feature":
            scales = (matrix.abs().amax(dim=1, keepdim=True) / FP8_MAX).to(self.storage)
            return scales, scales.float().expand(rows, cols)
        down, across = -(-rows // BLOCK), -(-cols // BLOCK)
        padded = torch.zeros(down * BLOCK, across * BLOCK)
        padded[:rows, :cols] = matrix.abs()
        scales = (padded.view(down, BLOCK, across, BLOCK).amax(dim=(1, 3)) / FP8_MAX)
        scales = scales.to(self.storage)
        spread = scales.float().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        return scales, spread[:rows, :cols]

    def apply(self, state, generator):
        """The tensors to store, and the numbers that they stand for."""
        stored, numbers = {}, {}
        for name, tensor in state.items():
            stored[name], numbers[name] = tensor, tensor.float()
            if not self.covers(name):
                continue
            scales, spread = self.scales_of(tensor.float())
            codes = (tensor.float() / spread).clamp(-FP8_MAX, FP8_MAX).to(FP8)
            stored[name], numbers[name] = codes, codes.float() * spread
            module = name.removesuffix("weight")
            stored[module + self.scale] = scales.contiguous()
            if self.input_scale:
                stored[module + "input_scale"] = torch.rand((), generator=generator) + 0.01
        for name in self.more:
            stored[name] = torch.rand((), generator=generator) + 0.01
        return stored, numbers


class TextPart:
    """A folder of a model that sees images, too: other names, and tensors that text does not need."""
    hf_quant_config = None

    def folder_config(self, settings):
        text = {key: value for key, value in settings.items()
                if key not in ("architectures", "dtype", "eos_token_id")}
        return {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
                "dtype": settings["dtype"], "eos_token_id": settings["eos_token_id"],
                "image_token_index": 99, "mm_tokens_per_image": 4, "text_config": text,
                "vision_config": {"hidden_size": 8, "model_type": "siglip_vision_model"}}

    def apply(self, state, generator):
        stored = {"language_model." + name: tensor for name, tensor in state.items()}
        for name in ("vision_tower.vision_model.post_layernorm.weight",
                     "multi_modal_projector.mm_soft_emb_norm.weight"):
            stored[name] = torch.rand(8, generator=generator).to(BF16)
        return stored, {name: tensor.float() for name, tensor in state.items()}


class Mxfp4Experts:
    """Experts as gpt-oss stores them."""
    hf_quant_config = None
    NUMBERS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])

    def folder_config(self, settings):
        return {**settings, "quantization_config": {
            "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn",
                                                                "model.layers.*.mlp.router",
                                                                "model.embed_tokens", "lm_head"]}}

    def apply(self, state, generator):
        stored, numbers = {}, {}
        for name, tensor in state.items():
            if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                stored[name], numbers[name] = tensor, tensor.float()
                continue
            groups = tensor.float().transpose(1, 2).contiguous()  # [experts, out, in]
            experts, rows, cols = groups.shape
            groups = groups.view(experts, rows, cols // 32, 32)
            power = groups.abs().amax(-1, keepdim=True).clamp(min=1e-9).log2().floor() - 2
            scaled = groups / 2 ** power
            codes = (scaled.abs().unsqueeze(-1) - self.NUMBERS).abs().argmin(-1)
            values = self.NUMBERS[codes] * scaled.sign() * 2 ** power
            codes = (codes + 8 * (scaled < 0)).to(torch.uint8)
            stored[name + "_blocks"] = (codes[..., ::2] + 16 * codes[..., 1::2]).contiguous()
            stored[name + "_scales"] = (power.squeeze(-1) + 127).to(torch.uint8).contiguous()
            numbers[name] = values.view(experts, rows, cols).transpose(1, 2).contiguous()
        return stored, numbers


FP8_SHAPE = {"hidden_size": 144, "intermediate_size": 200, "head_dim": 64, "vocab_size": 101,
             "eos_token_id": 100, "bos_token_id": None, "rope_theta": 10000.0,
             "torch_dtype": "bfloat16", "tie_word_embeddings": False}
LLAMA_FP8 = llama(num_attention_heads=3, num_key_value_heads=1, **FP8_SHAPE)
QWEN2_FP8 = qwen2(num_attention_heads=2, num_key_value_heads=2, **FP8_SHAPE)
QWEN3_FP8 = qwen3(num_attention_heads=4, num_key_value_heads=1, **FP8_SHAPE)
QWEN3MOE_FP8 = qwen3_moe(num_attention_heads=2, num_key_value_heads=1, num_experts=6,
                         num_experts_per_tok=2, norm_topk_prob=True, moe_intermediate_size=72,
                         **FP8_SHAPE)
QUANTIZED = {
    "llama-fp8-ct-channel": (LLAMA_FP8, Quantization(
        "feature", compressed_tensors("channel", True), storage=BF16)),
    "llama-fp8-ct-block": (LLAMA_FP8, Quantization(
        "block", compressed_tensors("block", True, block_structure=[128, 128]), storage=BF16)),
    "qwen2-fp8-ct-static": (QWEN2_FP8, Quantization(
        "matrix", compressed_tensors("tensor", False), input_scale=True)),
    # AutoFP8 and vLLM.
    "llama-fp8-static": (LLAMA_FP8, Quantization(
        "matrix", {"quant_method": "fp8", "activation_scheme": "static",
                   "ignored_layers": ["lm_head"]}, input_scale=True)),
    # Qwen3-FP8 and DeepSeek.
    "qwen3-fp8-block": (QWEN3_FP8, Quantization(
        "block", {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                  "weight_block_size": [128, 128], "modules_to_not_convert":
                      ["lm_head", "model.layers.1.mlp.down_proj"]},
        scale="weight_scale_inv", left_out=["layers.1.mlp.down_proj"])),
    "qwen3moe-fp8-block": (QWEN3MOE_FP8, Quantization(
        "block", {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                  "weight_block_size": [128, 128], "modules_to_not_convert":
                      ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]},
        scale="weight_scale_inv")),
    "llama-fp8-modelopt": (LLAMA_FP8, Quantization(
        "matrix", None, input_scale=True, left_out=["layers.0.self_attn"],
        more=["model.layers.1.self_attn.k_proj.k_scale", "model.layers.1.self_attn.v_proj.v_scale"],
        hf_quant_config={"producer": {"name": "modelopt", "version": "0.29.0"}, "quantization": {
            "quant_algo": "FP8", "kv_cache_quant_algo": "FP8",
            "exclude_modules": ["lm_head", "model.layers.0.self_attn*"]}})),
}


def steer_routers(config, values, generator):
    """Gives each token an order of experts of its own, with clear distances, so that rounding does
    not choose others. It stands in the first channels, which nothing else writes to."""
    count = getattr(config, "num_local_experts", None) or config.num_experts
    embedding = next(value for name, value in values.items() if "embed_tokens" in name)
    for token in range(embedding.shape[0]):
        order = torch.randperm(count, generator=generator)
        embedding[token, :count] = (order - count / 2) * embedding.std() * 0.5
    for name, value in values.items():
        if name.endswith("mlp.router.bias"):
            value *= 0.1
        elif name.endswith(("mlp.gate.weight", "mlp.router.weight")):
            value *= 0.1
            value[:, :count] = 1.5 * torch.eye(count)
        elif "post_attention_layernorm" in name:
            value[:count] = 1
        elif "o_proj" in name:
            value[:count] = 0
        elif "down_proj" in name and config.model_type == "gpt_oss":
            value[..., :count] = 0  # matrices lie the other way round
        elif "down_proj" in name:
            value[:, :count] = 0


def stored_tensors(config, name, value):
    """A parameter as folders hold it: experts by themselves, gates and ups apart."""
    if config.model_type == "mixtral":
        name = name.replace("mlp.", "block_sparse_moe.")
    if ".experts." not in name or config.model_type == "gpt_oss":
        yield name, value
        return
    gate, up, down = (("w1", "w3", "w2") if config.model_type == "mixtral" else
                      ("gate_proj", "up_proj", "down_proj"))
    module = name[:name.index(".experts.") + len(".experts.")]
    for expert, matrix in enumerate(value):
        if "down_proj" in name:
            yield f"{module}{expert}.{down}.weight", matrix
        else:
            for part, half in zip((gate, up), matrix.chunk(2)):
                yield f"{module}{expert}.{part}.weight", half


def random_weights(config, storage, generator):
    """State of a model: projections that keep the scale of their input, lively norms and biases."""
    model = AutoModelForCausalLM.from_config(config)
    values = {}
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            value = (0 if config.model_type == "gemma3_text" else 1) + 0.3 * noise
        elif parameter.dim() == 1:
            value = 0.5 * noise
        elif "embed_tokens" in name:
            value = noise * (0.4 if config.tie_word_embeddings else 1.0)
        else:
            inputs = 1 if config.model_type == "gpt_oss" and parameter.dim() == 3 else -1
            value = noise * parameter.shape[inputs] ** -0.5
        if "o_proj" in name or "down_proj" in name:
            # A sum of experts is smaller than one.
            value = value * (0.6 if ".experts." in name else 0.4)
        values[name] = value
    if any(".experts." in name for name in values):
        steer_routers(config, values, generator)
    return {stored: tensor.to(storage(stored)).contiguous() for name, value in values.items()
            for stored, tensor in stored_tensors(config, name, value)}


def save_weights(folder, state, num_files):
    if num_files == 1:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(state)
    weight_map = {}
    for part in range(num_files):
        file = f"model-{part + 1:05d}-of-{num_files:05d}.safetensors"
        chosen = names[part::num_files]
        save_file({name: state[name] for name in chosen}, folder / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in chosen})
    size = sum(t.numel() * t.element_size() for t in state.values())
    write_json(folder / "model.safetensors.index.json",
               {"metadata": {"total_size": size}, "weight_map": weight_map})


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


def relative_error(actual, expected):
    return ((actual - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()


def make_quantized(folder, settings, quantization, generator, numbers_folder):
    """Stores the quantized weights, and their numbers as a plain model in a folder of its own."""
    state = random_weights(AutoConfig.from_pretrained(folder), lambda name: BF16, generator)
    stored, numbers = quantization.apply(state, generator)
    write_json(numbers_folder / "config.json", {**settings, "torch_dtype": "float32"})
    save_weights(numbers_folder, numbers, 1)
    save_weights(folder, stored, 1)
    write_json(folder / "config.json", quantization.folder_config(settings))
    if quantization.hf_quant_config is not None:
        write_json(folder / "hf_quant_config.json", quantization.hf_quant_config)


def make_model(folder, settings, storage, num_files, seed, quantization=None):
    folder.mkdir(parents=True)
    write_json(folder / "config.json", settings)
    write_json(folder / "generation_config.json",
               {key: settings[key] for key in ("bos_token_id", "eos_token_id")
                if settings[key] is not None})
    generator = torch.Generator().manual_seed(seed)
    scratch = tempfile.TemporaryDirectory()
    source = folder
    if quantization is None:
        save_weights(folder, random_weights(AutoConfig.from_pretrained(folder), storage, generator),
                     num_files)
    else:
        source = pathlib.Path(scratch.name)
        make_quantized(folder, settings, quantization, generator, source)
    # From here on the folder is read as a user of transformers would read it.
    load = lambda dtype: AutoModelForCausalLM.from_pretrained(
        source, dtype=dtype, attn_implementation="eager").eval()
    model = load(F32)
    tokens = torch.randint(0, settings["vocab_size"], (PROMPT_TOKENS + DECODE_STEPS,),
                           generator=generator).tolist()
    logits = logits_of(model, tokens)
    decode = logits[PROMPT_TOKENS:]
    save_file({"prefill_logits": logits[PREFILL_POSITIONS].contiguous(),
               "decode_logits": decode.contiguous()}, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps({
        "prompt": tokens[:PROMPT_TOKENS], "forced": tokens[PROMPT_TOKENS:],
        "prefill_positions": PREFILL_POSITIONS}) + "\n")
    bf16 = logits_of(load(BF16), tokens)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder.name}: {size} bytes, {len(set(logits.argmax(-1).tolist()))} likeliest tokens, "
          f"transformers in bf16 is off by {relative_error(bf16, logits):.2e}")
    return size


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/golden/models")
    parser.add_argument("--only", default="", help="models whose names hold this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    total = 0
    plain = [(name, (*model, seed + 1)) for seed, (name, model) in enumerate(sorted(MODELS.items()))]
    quantized = [(name, (settings, None, 1, seed + 101, quantization))
                 for seed, (name, (settings, quantization)) in enumerate(sorted(QUANTIZED.items()))]
    later = [(name, (*model, seed + 201)) for seed, (name, model) in enumerate(LATER_MODELS.items())]
    experts = [(name, (*model, seed + 204)) for seed, (name, model) in enumerate(EXPERT_MODELS.items())]
    gpt_oss = [("gptoss-d64-mxfp4", (GPT_OSS, None, 1, 401, Mxfp4Experts()))]
    windows = [(name, (*model, seed + 301, None if model[1] else TextPart()))
               for seed, (name, model) in enumerate(WINDOW_MODELS.items())]
    for name, model in plain + quantized + later + experts + windows + gpt_oss:
        if arguments.only not in name:
            continue
        folder = arguments.out / name
        shutil.rmtree(folder, ignore_errors=True)
        total += make_model(folder, *model)
    print(f"{total} bytes in all")


if __name__ == "__main__":
    main()
