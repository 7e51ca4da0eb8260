#!/usr/bin/env python3
"""Makes the models of tests/golden/models whose name has int4: small random checkpoints in 4 bits, in the
forms that people publish (AWQ, GPTQ, compressed-tensors), and what they must answer.

A folder has the files that make_golden.py describes. What a model must answer is computed here, in numpy
and in f64, from the numbers that codes, zeros and scales stand for: a second implementation of the model
and of the forms. `--check` compares the model with what Hugging Face transformers said of plain folders.

Needs numpy.
Run: tools/make_int4_golden.py [--out FOLDER] [--only PART_OF_A_NAME] | --check
"""
import argparse
import json
import pathlib
import shutil
import struct

import numpy as np

DECODE_STEPS = 64
PROMPT_TOKENS = 101
PREFILL_POSITIONS = [0, 1, 5, 67, 68, 99, 100]
CHECKED = ["qwen2-d64-group7-mixed", "qwen3-d128-tied-bf16", "qwen3-d64-untied-f32",
           "qwen3moe-d128-tied-f32"]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # output features of a word


# Files. numpy has no bf16: it is kept as its bits.
class Bf16:
    type_name = "BF16"

    def __init__(self, values):
        bits = np.asarray(values, np.float32).view(np.uint32)
        self.bits = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    def numbers(self):
        return (self.bits.astype(np.uint32) << 16).view(np.float32)


def write_safetensors(path, tensors):
    names = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.int32): "I32",
             np.dtype(np.int64): "I64", np.dtype(np.uint8): "U8"}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in sorted(tensors.items()):
        array = np.asarray(getattr(tensor, "bits", tensor))
        dtype = getattr(tensor, "type_name", None) or names[array.dtype]
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        raw = data[begin:end]
        if entry["dtype"] == "BF16":
            array = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(raw, {"F32": np.float32, "F16": np.float16}[entry["dtype"]])
        tensors[name] = array.reshape(entry["shape"]).astype(np.float64)
    return tensors


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


# The model, as transformers computes Llama, Qwen2, Qwen3 and Qwen3-MoE.
def rms_norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotated(x, theta):
    """x: [heads, tokens, head_dim]."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)
    low, high = x[..., :half], x[..., half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


def attention(config, weights, prefix, x):
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]

    def project(name, count):
        y = x @ weights[f"{prefix}{name}_proj.weight"].T + weights.get(f"{prefix}{name}_proj.bias", 0)
        y = y.reshape(len(x), count, width)
        norm = weights.get(f"{prefix}{name}_norm.weight")
        if norm is not None:
            y = rms_norm(y, norm, config["rms_norm_eps"])
        return y.transpose(1, 0, 2)

    query, key = rotated(project("q", heads), theta), rotated(project("k", kv_heads), theta)
    value = project("v", kv_heads)
    future = np.triu(np.full((len(x), len(x)), -np.inf), 1)
    out = []
    for head in range(heads):
        group = head * kv_heads // heads
        scores = query[head] @ key[group].T / np.sqrt(width) + future
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        out.append(scores / scores.sum(-1, keepdims=True) @ value[group])
    return np.concatenate(out, -1) @ weights[prefix + "o_proj.weight"].T


def feed_forward(weights, prefix, x):
    gate, up, down = (weights[f"{prefix}{name}_proj.weight"] for name in ("gate", "up", "down"))
    gated = x @ gate.T
    return (gated / (1 + np.exp(-gated)) * (x @ up.T)) @ down.T


def experts(config, weights, prefix, x):
    scores = x @ weights[prefix + "gate.weight"].T
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    chosen = np.argsort(-scores, -1, kind="stable")[:, :config["num_experts_per_tok"]]
    out = np.zeros_like(x)
    for row, of_row in enumerate(chosen):
        share = scores[row, of_row]
        if config["norm_topk_prob"]:
            share = share / share.sum()
        for expert, weight in zip(of_row, share):
            out[row] += weight * feed_forward(weights, f"{prefix}experts.{expert}.", x[row])
    return out


def logits_of(config, weights, tokens):
    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        norm = lambda name, y: rms_norm(y, weights[f"{prefix}{name}.weight"], config["rms_norm_eps"])
        x = x + attention(config, weights, prefix + "self_attn.", norm("input_layernorm", x))
        y = norm("post_attention_layernorm", x)
        if "num_experts" in config:
            x = x + experts(config, weights, prefix + "mlp.", y)
        else:
            x = x + feed_forward(weights, prefix + "mlp.", y)
    x = rms_norm(x, weights["model.norm.weight"], config["rms_norm_eps"])
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return x @ weights[head].T


# 4 bits.
def packed(codes, axis, order=range(8)):
    """Eight codes along an axis in each int32, padded with zeros."""
    codes = np.moveaxis(codes, axis, -1).astype(np.uint32)
    padding = -codes.shape[-1] % 8
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, padding)])
    codes = codes.reshape(*codes.shape[:-1], -1, 8)
    words = np.zeros(codes.shape[:-1], np.uint32)
    for place, which in enumerate(order):
        words |= codes[..., which] << np.uint32(4 * place)
    return np.moveaxis(words, -1, axis).astype(np.uint32).view(np.int32)


class Form:
    """How a model's matrices become codes. group: input features with a scale; 0: all."""

    def __init__(self, kind, group, symmetric, config, storage, act_order=False, zeros_lack=0,
                 left_out=()):
        self.kind, self.group, self.symmetric, self.config = kind, group, symmetric, config
        self.storage, self.act_order, self.zeros_lack = storage, act_order, zeros_lack
        self.left_out = left_out

    def covers(self, name):
        return name.endswith("_proj.weight") and not any(part in name for part in self.left_out)

    def groups_of(self, name, columns):
        group = self.group or columns
        order = np.arange(columns)
        if self.act_order:  # the same for what has the same input
            part = "qkv" if any(p in name for p in ("q_proj", "k_proj", "v_proj")) else \
                "gate_up" if "gate" in name or "up_proj" in name else name
            layer = name.split(".")[2]
            seed = sum(map(ord, layer + part))
            order = np.random.default_rng(seed).permutation(columns)
        groups = np.empty(columns, np.int32)
        groups[order] = np.arange(columns) // group
        return groups

    def apply(self, name, matrix):
        """The tensors to store, and the numbers that they stand for."""
        rows, columns = matrix.shape
        groups = self.groups_of(name, columns)
        count = groups.max() + 1
        scales, zeros = np.empty((rows, count)), np.empty((rows, count), np.int64)
        for g in range(count):
            part = matrix[:, groups == g]
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scale = np.abs(part).max(1) * 2 / 15 if self.symmetric else (high - low) / 15
            scales[:, g] = self.stored(scale)[1]
            # GPTQ's stored zeros are one less, and none is below zero.
            zeros[:, g] = 8 if self.symmetric else np.clip(np.rint(-low / scales[:, g]),
                                                           self.zeros_lack, 15)
        spread, offsets = scales[:, groups], zeros[:, groups]
        codes = np.clip(np.rint(matrix / spread) + offsets, 0, 15).astype(np.int64)
        module = name.removesuffix("weight")
        tensors = getattr(self, self.kind)(module, codes, self.stored(scales)[0], zeros, groups)
        return tensors, (codes - offsets) * spread

    def stored(self, values):
        """As stored, and as numbers."""
        if self.storage == "bf16":
            return Bf16(values), Bf16(values).numbers().astype(np.float64)
        return np.float16(values), np.float16(values).astype(np.float64)

    def awq(self, module, codes, scales, zeros, groups):
        return {module + "qweight": packed(codes.T, 1, AWQ_ORDER),
                module + "qzeros": packed(zeros.T, 1, AWQ_ORDER), module + "scales": scales.T}

    def gptq(self, module, codes, scales, zeros, groups):
        return {module + "qweight": packed(codes.T, 0),
                module + "qzeros": packed(zeros.T - self.zeros_lack, 1), module + "scales": scales.T,
                module + "g_idx": groups}

    def compressed(self, module, codes, scales, zeros, groups):
        tensors = {module + "weight_packed": packed(codes, 1), module + "weight_scale": scales,
                   module + "weight_shape": np.array(codes.shape, np.int64)}
        if not self.symmetric:
            tensors[module + "weight_zero_point"] = packed(zeros, 0)
        if self.act_order:
            tensors[module + "weight_g_idx"] = groups
        return tensors


def awq(group):
    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True,
            "version": "gemm", "modules_to_not_convert": None}


def gptq(group, sym, desc_act, **more):
    return {"quant_method": "gptq", "bits": 4, "group_size": group, "sym": sym, "desc_act": desc_act,
            "damp_percent": 0.1, "static_groups": False, "true_sequential": True, **more}


def compressed(strategy, group, symmetric, actorder=None):
    weights = {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": strategy,
               "group_size": group, "dynamic": False, "actorder": actorder, "block_structure": None}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized",
            "quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": None,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                          "input_activations": None, "output_activations": None}}}


COMMON = {"hidden_act": "silu", "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "vocab_size": 101,
          "max_position_embeddings": 256, "eos_token_id": 100, "bos_token_id": None, "head_dim": 64,
          "hidden_size": 128, "rope_theta": 10000.0, "tie_word_embeddings": False}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
         "mlp_bias": False, "num_attention_heads": 4, "num_key_value_heads": 1, **COMMON}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False,
         "num_attention_heads": 2, "num_key_value_heads": 1, **COMMON}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
         "use_sliding_window": False, "num_attention_heads": 2, "num_key_value_heads": 2, **COMMON}
QWEN3MOE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
            "attention_bias": False, "use_sliding_window": False, "decoder_sparse_step": 1,
            "mlp_only_layers": [], "num_experts": 6, "num_experts_per_tok": 2,
            "moe_intermediate_size": 64, "norm_topk_prob": True, "num_attention_heads": 2,
            "num_key_value_heads": 1, **COMMON}
MODELS = {
    "llama-int4-awq": (LLAMA, 256, Form("awq", 128, False, awq(128), "f16")),
    "qwen2-int4-awq": (QWEN2, 192, Form("awq", 64, False, awq(64), "f16",
                                        left_out=["self_attn.o_proj"])),
    "llama-int4-gptq": (LLAMA, 256, Form("gptq", 128, True, gptq(128, True, False), "f16",
                                         zeros_lack=1)),
    "qwen2-int4-gptq-act-order": (QWEN2, 192, Form(
        "gptq", 32, False, gptq(32, False, True), "f16", act_order=True, zeros_lack=1)),
    "qwen3-int4-gptq-v2": (QWEN3, 192, Form(
        "gptq", 0, False, gptq(-1, False, False, checkpoint_format="gptq_v2"), "f16")),
    "llama-int4-ct-group": (LLAMA, 192, Form(
        "compressed", 32, True, compressed("group", 32, True), "bf16")),
    "qwen3-int4-ct-zeros": (QWEN3, 192, Form(
        "compressed", 64, False, compressed("group", 64, False, "group"), "bf16", act_order=True)),
    "llama-int4-ct-channel": (LLAMA, 136, Form(
        "compressed", 0, True, compressed("channel", None, True), "bf16")),
    "qwen3moe-int4-awq": (QWEN3MOE, 192, Form("awq", 64, False, awq(64), "f16")),
    "qwen3moe-int4-gptq": (QWEN3MOE, 192, Form(
        "gptq", 32, True, gptq(32, True, False), "f16", zeros_lack=1)),
}


def shapes_of(config):
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    width, kv = config["num_attention_heads"] * 64, config["num_key_value_heads"] * 64
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,),
              "lm_head.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes.update({prefix + "input_layernorm.weight": (hidden,),
                       prefix + "post_attention_layernorm.weight": (hidden,)})
        networks = [(prefix + "mlp.", inner)]
        if "num_experts" in config:
            shapes[prefix + "mlp.gate.weight"] = (config["num_experts"], hidden)
            networks = [(f"{prefix}mlp.experts.{expert}.", config["moe_intermediate_size"])
                        for expert in range(config["num_experts"])]
        for network, size in networks:
            shapes.update({network + "gate_proj.weight": (size, hidden),
                           network + "up_proj.weight": (size, hidden),
                           network + "down_proj.weight": (hidden, size)})
        shapes[prefix + "self_attn.o_proj.weight"] = (hidden, width)
        for name, size in (("q", width), ("k", kv), ("v", kv)):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (size, hidden)
            if config["model_type"] == "qwen2":
                shapes[f"{prefix}self_attn.{name}_proj.bias"] = (size,)
        if config["model_type"] in ("qwen3", "qwen3_moe"):
            shapes[prefix + "self_attn.q_norm.weight"] = shapes[prefix + "self_attn.k_norm.weight"] = (64,)
    return shapes


def random_value(name, shape, generator):
    noise = generator.standard_normal(shape)
    if "norm" in name:
        return 1 + 0.3 * noise
    if len(shape) == 1:
        return 0.5 * noise
    value = noise if "embed_tokens" in name else noise * shape[1] ** -0.5
    return value * 0.4 if "o_proj" in name or "down_proj" in name else value


def steer_routers(config, values, generator):
    """As in make_golden.py; what would be zeros is small, since zeros have no scale."""
    count = config["num_experts"]
    for token in values["model.embed_tokens.weight"]:
        token[:count] = (generator.permutation(count) - count / 2) * 0.5
    for name, value in values.items():
        if name.endswith("mlp.gate.weight"):
            value *= 0.1
            value[:, :count] = 1.5 * np.eye(count)
        elif "post_attention_layernorm" in name:
            value[:count] = 1
        elif "o_proj" in name or "down_proj" in name:
            value[:count] *= 0.001


def make_model(folder, config, form, seed):
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {
        **config, "torch_dtype": "float16" if form.storage == "f16" else "bfloat16",
        "quantization_config": form.config})
    write_json(folder / "generation_config.json", {"eos_token_id": config["eos_token_id"]})
    generator = np.random.default_rng(seed)
    tensors, numbers = {}, {}
    values = {name: random_value(name, shape, generator) for name, shape in shapes_of(config).items()}
    if "num_experts" in config:
        steer_routers(config, values, generator)
    for name, value in values.items():
        if form.covers(name):
            stored, numbers[name] = form.apply(name, value)
            tensors.update(stored)
        else:
            tensors[name], numbers[name] = form.stored(value)
    write_safetensors(folder / "model.safetensors", tensors)
    tokens = generator.integers(0, config["vocab_size"], PROMPT_TOKENS + DECODE_STEPS).tolist()
    logits = logits_of(config, numbers, tokens).astype(np.float32)
    write_safetensors(folder / "expected.safetensors", {
        "prefill_logits": logits[PREFILL_POSITIONS], "decode_logits": logits[PROMPT_TOKENS:]})
    (folder / "expected.json").write_text(json.dumps({
        "prompt": tokens[:PROMPT_TOKENS], "forced": tokens[PROMPT_TOKENS:],
        "prefill_positions": PREFILL_POSITIONS}) + "\n")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder.name}: {size} bytes, {len(set(logits.argmax(-1).tolist()))} likeliest tokens")
    return size


def check(folder):
    """The largest difference to transformers' logits of a plain model, over their size."""
    config = json.loads((folder / "config.json").read_text())
    expected = json.loads((folder / "expected.json").read_text())
    wanted = read_safetensors(folder / "expected.safetensors")
    logits = logits_of(config, read_safetensors(folder / "model.safetensors"),
                       expected["prompt"] + expected["forced"])
    ours = np.concatenate([logits[expected["prefill_positions"]], logits[len(expected["prompt"]):]])
    theirs = np.concatenate([wanted["prefill_logits"], wanted["decode_logits"]])
    error = (np.linalg.norm(ours - theirs, axis=-1) / np.linalg.norm(theirs, axis=-1)).max()
    print(f"{folder.name}: {error:.1e}")
    return error


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/golden/models")
    parser.add_argument("--only", default="", help="models whose names hold this")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.check:
        worst = max(check(root / "tests/golden/models" / name) for name in CHECKED)
        raise SystemExit(1 if worst > 1e-5 else 0)
    total = 0
    for seed, (name, (settings, inner, form)) in enumerate(sorted(MODELS.items())):
        if arguments.only not in name:
            continue
        folder = arguments.out / name
        shutil.rmtree(folder, ignore_errors=True)
        total += make_model(folder, {**settings, "intermediate_size": inner}, form, seed + 201)
    print(f"{total} bytes in all")


if __name__ == "__main__":
    main()
