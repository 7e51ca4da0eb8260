#!/usr/bin/env python3
"""Makes the Hugging Face folder that a GGUF file stands for, to compare what is served from both.

Matrices that are quantised become bf16, vectors stay f32, as the server has them: log-probabilities must be the
same to the last bit (`retroinfer score --policy full --json`). Llama, Qwen2 and Qwen3 without RoPE scaling.

Needs gguf and numpy. Run: tools/gguf/make_folder.py MODEL.gguf FOLDER [--tokenizer FOLDER_WITH_TOKENIZER_JSON]
"""
import argparse
import json
import pathlib
import shutil
import struct

import gguf
import numpy as np
from gguf.quants import dequantize

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
OF_MODEL = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
            "output.weight": "lm_head.weight"}
OF_LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
            "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def hugging_face_name(name):
    if name in OF_MODEL:
        return OF_MODEL[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{OF_LAYER[part]}.{kind}"


def taken_apart(rows, heads):
    """Rows of q or k of architecture llama, of which a file has those side by side that RoPE turns together."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def stored(numbers):
    """A tensor's type and bytes in safetensors."""
    numbers = np.ascontiguousarray(numbers, dtype=np.float32)
    if numbers.ndim == 1:
        return "F32", numbers.tobytes()
    bits = numbers.view(np.uint32)
    return "BF16", ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


def write_safetensors(path, tensors):
    """`tensors`: name -> function that returns its numbers; one is in memory at a time."""
    header, data, at = {}, [], 0
    for name, numbers_of in sorted(tensors.items()):
        numbers = numbers_of()
        kind, content = stored(numbers)
        header[name] = {"dtype": kind, "shape": list(numbers.shape), "data_offsets": [at, at + len(content)]}
        data.append(content)
        at += len(content)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(data)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path)
    options = parser.parse_args()
    reader = gguf.GGUFReader(options.model)
    arch = reader.fields["general.architecture"].contents()

    def key(name, absent=None):
        field = reader.fields.get(f"{arch}.{name}")
        return absent if field is None else field.contents()

    heads = {"q": key("attention.head_count"), "k": key("attention.head_count_kv")}

    def numbers_of(tensor):
        def numbers():
            shape = tuple(reversed(tensor.shape.tolist()))
            rows = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
            part = tensor.name.rsplit(".", 2)[-2]
            is_turned = arch == "llama" and part in ("attn_q", "attn_k")
            return taken_apart(rows, heads[part[-1]]) if is_turned else rows
        return numbers

    names = [tensor.name for tensor in reader.tensors]
    embedding = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    options.folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(options.folder / "model.safetensors",
                      {hugging_face_name(tensor.name): numbers_of(tensor) for tensor in reader.tensors})
    config = {"architectures": [ARCHITECTURES[arch]], "model_type": arch, "hidden_act": "silu",
              "hidden_size": key("embedding_length"), "intermediate_size": key("feed_forward_length"),
              "num_hidden_layers": key("block_count"), "num_attention_heads": heads["q"],
              "num_key_value_heads": heads["k"],
              "head_dim": key("attention.key_length", key("embedding_length") // heads["q"]),
              "vocab_size": int(embedding.shape[1]), "max_position_embeddings": key("context_length"),
              "rms_norm_eps": float(key("attention.layer_norm_rms_epsilon")),
              "rope_theta": float(key("rope.freq_base", 10000.0)), "torch_dtype": "bfloat16",
              "tie_word_embeddings": "output.weight" not in names}
    (options.folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if options.tokenizer and (options.tokenizer / name).exists():
            shutil.copy(options.tokenizer / name, options.folder / name)


if __name__ == "__main__":
    main()
