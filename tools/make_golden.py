#!/usr/bin/env python3
"""Makes tests/golden/models: small random checkpoints and the logits that Hugging Face transformers
computes from them in f32.

Each folder holds a model as a user would download it (config.json, weights, generation_config.json)
and what it must answer:
  expected.json          prompt, forced (the tokens to decode, one by one), prefill_positions
  expected.safetensors   prefill_logits [positions, vocab], decode_logits [64, vocab], f32;
                         row i of decode_logits follows forced[i] at position len(prompt) + i

Needs torch, transformers (5 or later), safetensors. Run: tools/make_golden.py [--out FOLDER]
The result depends on the seeds below and, in the last bits, on the version of torch.
"""
import argparse
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

DECODE_STEPS = 64
PROMPT_TOKENS = 101
PREFILL_POSITIONS = [0, 1, 5, 67, 68, 99, 100]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

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


def random_weights(config, storage, generator):
    """State of a model: projections that keep the scale of their input, lively norms and biases."""
    model = AutoModelForCausalLM.from_config(config)
    state = {}
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            value = 1 + 0.3 * noise
        elif parameter.dim() == 1:
            value = 0.5 * noise
        elif "embed_tokens" in name:
            value = noise * (0.4 if config.tie_word_embeddings else 1.0)
        else:
            value = noise * parameter.shape[1] ** -0.5
        if "o_proj" in name or "down_proj" in name:
            value = value * 0.4
        state[name] = value.to(storage(name)).contiguous()
    return state


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


def make_model(folder, settings, storage, num_files, seed):
    folder.mkdir(parents=True)
    write_json(folder / "config.json", settings)
    write_json(folder / "generation_config.json",
               {key: settings[key] for key in ("bos_token_id", "eos_token_id")
                if settings[key] is not None})
    generator = torch.Generator().manual_seed(seed)
    save_weights(folder, random_weights(AutoConfig.from_pretrained(folder), storage, generator),
                 num_files)
    # From here on the folder is read as a user of transformers would read it.
    load = lambda dtype: AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager").eval()
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
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    total = 0
    for seed, (name, (settings, storage, num_files)) in enumerate(sorted(MODELS.items())):
        folder = arguments.out / name
        shutil.rmtree(folder, ignore_errors=True)
        total += make_model(folder, settings, storage, num_files, seed + 1)
    print(f"{total} bytes in all")


if __name__ == "__main__":
    main()
