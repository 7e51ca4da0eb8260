#!/usr/bin/env python3
"""Makes tests/golden/gguf: small random models in GGUF, and what must be read from them.

  blocks.gguf    for each type of blocks a tensor of random codes, NAME, and its numbers in F32, NAME.expected,
                 as the package gguf decodes them
  NAME.gguf      a model, converted from random weights in the order that Hugging Face folders have;
                 qwen2 is split into two files
  NAME.json      its configuration, and for each tensor: type, shape, and the SHA-256 of its bytes, which
                 follow from the weights before they were converted

llama and qwen2 have the tokenizers of tests/golden/tokenizer, so that encodings.jsonl says what they must give.

Needs gguf and numpy. Run: tools/gguf/make_golden.py [--out FOLDER]
"""
import argparse
import hashlib
import json
import pathlib

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYERS = 2
# Where the numbers of f16 that scale are in a block: random bits there might be infinite.
SCALES_AT = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
             T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}
PLAIN = {T.F32, T.F16, T.BF16}


def to_bf16(numbers):
    bits = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def random_blocks(rng, rows, cols, kind):
    """Rows of `kind` with any codes, as bytes."""
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * cols // elements, size), dtype=np.uint8)
    for at in SCALES_AT[kind]:
        scales = (rng.standard_normal(len(blocks)) * 0.01).astype(np.float16)
        blocks[:, at:at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def stored(rng, rows, cols, kind):
    """What a file has, and the numbers that it stands for."""
    if kind in PLAIN:
        numbers = (rng.standard_normal((rows, cols)) * 0.05).astype(np.float32)
        data = quantize(numbers, kind)
    else:
        data = random_blocks(rng, rows, cols, kind)
    return data, dequantize(data, kind).reshape(rows, cols)


def write_blocks(out):
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(out / "blocks.gguf", "blocks")
    for kind in [*PLAIN, *SCALES_AT]:
        data, numbers = stored(rng, 3, 512, kind)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        writer.add_tensor(kind.name + ".expected", numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def permuted(rows, heads):
    """Rows as converters of architecture llama put them: those that RoPE turns together side by side."""
    head = rows.shape[0] // heads
    return rows.reshape(heads, 2, head // 2, -1).swapaxes(1, 2).reshape(rows.shape)


class Model:
    """Collects the tensors of one model."""

    def __init__(self, seed, arch, matrices_become_bf16):
        self.rng = np.random.default_rng(seed)
        self.arch = arch
        self.become_bf16 = matrices_become_bf16
        self.tensors = []   # (name, data, kind)
        self.expected = {}

    def expect(self, name, kind, numbers, is_vector):
        if is_vector:
            kind, data = "F32", numbers.astype(np.float32)
        elif self.become_bf16 or kind == T.BF16:
            kind, data = "BF16", to_bf16(numbers)
        else:
            kind, data = {T.F32: ("F32", numbers), T.F16: ("F16", numbers.astype(np.float16))}[kind]
        self.expected[name] = [kind, list(data.shape), hashlib.sha256(data.tobytes()).hexdigest()]

    def vector(self, name, size):
        numbers = (1 + 0.1 * self.rng.standard_normal(size)).astype(np.float32)
        self.tensors.append((name, numbers, T.F32))
        self.expect(name, T.F32, numbers, True)

    def matrix(self, name, rows, cols, kind, heads=0):
        data, numbers = stored(self.rng, rows, cols, kind)
        self.expect(name, kind, numbers, False)
        self.tensors.append((name, permuted(data, heads) if heads else data, kind))

    def layer(self, i, hidden, inner, heads, kv_heads, head_dim, kinds, experts=0):
        kinds = iter(kinds)
        blk = f"blk.{i}."
        is_llama = self.arch == "llama"
        self.vector(blk + "attn_norm.weight", hidden)
        self.vector(blk + "ffn_norm.weight", hidden)
        for letter, count in ("q", heads), ("k", kv_heads), ("v", kv_heads):
            self.matrix(blk + f"attn_{letter}.weight", count * head_dim, hidden, next(kinds),
                        count if is_llama and letter != "v" else 0)
            if self.arch == "qwen2":
                self.vector(blk + f"attn_{letter}.bias", count * head_dim)
            if self.arch.startswith("qwen3") and letter != "v":
                self.vector(blk + f"attn_{letter}_norm.weight", head_dim)
        self.matrix(blk + "attn_output.weight", hidden, heads * head_dim, next(kinds))
        if experts:
            self.matrix(blk + "ffn_gate_inp.weight", experts, hidden, T.F32)
        for part, rows, cols in ("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner):
            if experts:
                self.experts(blk + f"ffn_{part}_exps", experts, rows, cols, next(kinds))
            else:
                self.matrix(blk + f"ffn_{part}.weight", rows, cols, next(kinds))

    def experts(self, name, count, rows, cols, kind):
        """One tensor of the file, which is read as a matrix for each expert."""
        data, numbers = stored(self.rng, count * rows, cols, kind)
        self.tensors.append((name + ".weight", data.reshape(count, rows, -1), kind))
        for expert, matrix in enumerate(numbers.reshape(count, rows, cols)):
            self.expect(f"{name}.{expert}.weight", kind, matrix, False)

    def write(self, out, keys, config, **split):
        writer = gguf.GGUFWriter(out / f"{self.arch}.gguf", self.arch, **split)
        for add in keys:
            add(writer)
        for name, data, kind in self.tensors:
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        text = json.dumps({"config": config, "tensors": self.expected}, indent=1)
        (out / f"{self.arch}.json").write_text(text + "\n")


def shape_keys(hidden, inner, heads, kv_heads, head_dim, context, theta, epsilon):
    return [lambda w: (w.add_block_count(LAYERS), w.add_context_length(context), w.add_embedding_length(hidden),
                       w.add_feed_forward_length(inner), w.add_head_count(heads), w.add_head_count_kv(kv_heads),
                       w.add_key_length(head_dim), w.add_value_length(head_dim), w.add_rope_freq_base(theta),
                       w.add_rope_dimension_count(head_dim), w.add_layer_norm_rms_eps(epsilon))]


def tokenizer_keys(name, pre, special):
    """The keys that describe tests/golden/tokenizer/NAME, and how many tokens there are. An unused id is added."""
    spec = json.loads((ROOT / "tests/golden/tokenizer" / name / "tokenizer.json").read_text())
    vocabulary = {id: (token, gguf.TokenType.NORMAL) for token, id in spec["model"]["vocab"].items()}
    for added in spec["added_tokens"]:
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        vocabulary[added["id"]] = (added["content"], kind)
    count = max(vocabulary) + 2
    entries = [vocabulary.get(id, (f"[PAD{id}]", gguf.TokenType.UNUSED)) for id in range(count)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in spec["model"]["merges"]]
    ids = {token: id for id, (token, _) in vocabulary.items()}

    def add(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list([token for token, _ in entries])
        writer.add_token_types([kind for _, kind in entries])
        writer.add_token_merges(merges)
        writer.add_bos_token_id(ids[special[0]])
        writer.add_eos_token_id(ids[special[1]])
        writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}")
    return [add], count


def llama3_factors(head_dim, theta, factor):
    """rope_freqs.weight as converters write it."""
    frequencies = 1 / theta ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    lengths = 2 * np.pi / frequencies
    smooth = (8192 / lengths - 1) / (4 - 1)
    between = 1 / ((1 - smooth) / factor + smooth)
    return np.where(lengths < 8192 / 4, 1, np.where(lengths > 8192, factor, between)).astype(np.float32)


def write_llama(out):
    """Q8_0 and F16: all matrices become bf16. Embeddings are tied."""
    tokens, count = tokenizer_keys("llama", "llama-bpe", ("<|begin_of_text|>", "<|eot_id|>"))
    model = Model(2, "llama", True)
    model.matrix("token_embd.weight", count, 64, T.Q8_0)
    model.vector("output_norm.weight", 64)
    for i in range(LAYERS):
        model.layer(i, 64, 40, 4, 2, 64, [T.Q8_0, T.Q5_1, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_0, T.F16])
    model.tensors.append(("rope_freqs.weight", llama3_factors(64, 500000.0, 32.0), T.F32))
    model.write(out, shape_keys(64, 40, 4, 2, 64, 131072, 500000.0, 1e-5) + tokens,
                {"family": "llama", "hidden_size": 64, "intermediate_size": 40, "query_heads": 4, "kv_heads": 2,
                 "head_dim": 64, "vocab_size": count, "context_length": 131072, "tied": True, "epsilon": 1e-5,
                 "rope": {"type": "llama3", "theta": 500000.0, "factor": 32.0, "original": 8192}})


def write_qwen2(out):
    """K-quants, in two files, with YaRN."""
    tokens, count = tokenizer_keys("qwen", "qwen2", ("<|endoftext|>", "<|im_end|>"))
    model = Model(3, "qwen2", True)
    model.matrix("token_embd.weight", count, 256, T.Q2_K)
    model.vector("output_norm.weight", 256)
    for i in range(LAYERS):
        model.layer(i, 256, 256, 2, 1, 64, [T.Q3_K, T.Q4_K, T.Q5_K, T.Q4_0, T.Q6_K, T.Q4_K, T.Q6_K])
    yarn = [lambda w: (w.add_rope_scaling_type(gguf.RopeScalingType.YARN), w.add_rope_scaling_factor(4.0),
                       w.add_rope_scaling_orig_ctx_len(32768))]
    model.write(out, shape_keys(256, 256, 2, 1, 64, 32768, 1000000.0, 1e-6) + yarn + tokens,
                {"family": "qwen2", "hidden_size": 256, "intermediate_size": 256, "query_heads": 2, "kv_heads": 1,
                 "head_dim": 64, "vocab_size": count, "context_length": 131072, "tied": True, "epsilon": 1e-6,
                 "rope": {"type": "yarn", "theta": 1000000.0, "factor": 4.0, "original": 32768}},
                split_max_tensors=14)


def write_qwen3(out):
    """F16 alone, which stays what it is; an output projection of its own; no tokenizer."""
    model = Model(4, "qwen3", False)
    for name in "token_embd", "output":
        model.matrix(f"{name}.weight", 97, 24, T.F16)
    model.vector("output_norm.weight", 24)
    for i in range(LAYERS):
        model.layer(i, 24, 40, 3, 1, 128, [T.F16] * 7)
    model.write(out, shape_keys(24, 40, 3, 1, 128, 40960, 1000000.0, 1e-6),
                {"family": "qwen3", "hidden_size": 24, "intermediate_size": 40, "query_heads": 3, "kv_heads": 1,
                 "head_dim": 128, "vocab_size": 97, "context_length": 40960, "tied": False, "epsilon": 1e-6,
                 "rope": {"type": "default", "theta": 1000000.0, "factor": 1.0, "original": 0}})


def write_qwen3moe(out):
    """Q8_0 and Q4_0; routers are F32, as converters write them, and become bf16."""
    model = Model(5, "qwen3moe", True)
    for name in "token_embd", "output":
        model.matrix(f"{name}.weight", 97, 64, T.Q8_0)
    model.vector("output_norm.weight", 64)
    for i in range(LAYERS):
        model.layer(i, 64, 32, 2, 1, 64, [T.Q8_0, T.Q5_0, T.Q8_0, T.Q4_0, T.Q4_0, T.Q5_1, T.Q8_0], 3)
    keys = [lambda w: (w.add_expert_count(3), w.add_expert_used_count(2), w.add_expert_feed_forward_length(32))]
    model.write(out, shape_keys(64, 96, 2, 1, 64, 40960, 1000000.0, 1e-6) + keys,
                {"family": "qwen3_moe", "hidden_size": 64, "intermediate_size": 32, "query_heads": 2, "kv_heads": 1,
                 "head_dim": 64, "vocab_size": 97, "context_length": 40960, "tied": False, "epsilon": 1e-6,
                 "rope": {"type": "default", "theta": 1000000.0, "factor": 1.0, "original": 0}})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/golden/gguf")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for write in write_blocks, write_llama, write_qwen2, write_qwen3, write_qwen3moe:
        write(out)


if __name__ == "__main__":
    main()
