"""A GGUF file of architecture llama or qwen2 as a Hugging Face folder, its numbers in bf16.

    python3 -m tools.models.to_folder model.gguf FOLDER [--as-served]

For the laboratory and for tests that lay both forms beside each other. Needs numpy and gguf. With
--as-served the numbers are those that the server has of the file itself: vectors in f32, and two
matrices where the file has two. Scores of file and folder are the same then, to the last bit.
"""

import json
import pathlib
import sys

import gguf
import numpy
from gguf.quants import dequantize

ARCHITECTURES = {"llama": ("LlamaForCausalLM", "LlamaTokenizerFast"),
                 "qwen2": ("Qwen2ForCausalLM", "Qwen2Tokenizer")}
# GGUF's names of a layer's tensors, Hugging Face's.
LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # types of tokens
SAME_MATRIX = 0.1  # relative difference below which two matrices are one in two quantisations
QWEN2_PIECES = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")
# Control tokens that Qwen2's own folder does not call special.
QWEN2_PLAIN = {"<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
               "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}


class Model:
    """A GGUF file: its metadata and its tensors as numbers."""

    def __init__(self, path: pathlib.Path):
        reader = gguf.GGUFReader(str(path))
        self.fields = {name: field.contents() for name, field in reader.fields.items()}
        self.architecture = self.fields["general.architecture"]
        if self.architecture not in ARCHITECTURES:
            raise ValueError(f"architecture {self.architecture}: known are "
                             f"{', '.join(ARCHITECTURES)}")
        self._stored = {tensor.name: tensor for tensor in reader.tensors}

    def __getitem__(self, key: str):
        """Returns a field of the architecture; None if there is none."""
        return self.fields.get(f"{self.architecture}.{key}")

    def tensors(self, as_served: bool = False) -> dict[str, numpy.ndarray]:
        """Returns all tensors by Hugging Face's names, in f32. One matrix in two quantisations is
        the finer one, unless they are to be as they are served."""
        found = {}
        for name, stored in self._stored.items():
            shape = tuple(reversed(stored.shape.tolist()))
            numbers = dequantize(stored.data, stored.tensor_type).astype(numpy.float32)
            found[self._renamed(name)] = self._ordered(name, numbers.reshape(shape))
        own, tied = found.get("lm_head.weight"), found["model.embed_tokens.weight"]
        if own is not None and not as_served and (numpy.linalg.norm(own - tied)
                                < SAME_MATRIX * numpy.linalg.norm(own)):
            found["model.embed_tokens.weight"] = found.pop("lm_head.weight")
        return found

    def _renamed(self, name: str) -> str:
        base, kind = name.rsplit(".", 1)
        if base in OUTER:
            return f"{OUTER[base]}.{kind}"
        block, number, inner = base.split(".", 2)
        if block != "blk" or inner not in LAYER:
            raise ValueError(f"tensor {name} is not known")
        return f"model.layers.{number}.{LAYER[inner]}.{kind}"

    def _ordered(self, name: str, numbers: numpy.ndarray) -> numpy.ndarray:
        """Undoes what GGUF does to the rows of llama's queries and keys: pairs stand side by side."""
        inner = name.split(".")[-2]
        if self.architecture != "llama" or inner not in ("attn_q", "attn_k"):
            return numbers
        heads = self["attention.head_count" + ("" if inner == "attn_q" else "_kv")]
        split = numbers.reshape(heads, -1, 2, *numbers.shape[1:])
        return split.swapaxes(1, 2).reshape(numbers.shape)


def config_of(model: Model, tensors: dict) -> dict:
    """Returns config.json."""
    heads, tied = model["attention.head_count"], "lm_head.weight" not in tensors
    found = {
        "architectures": [ARCHITECTURES[model.architecture][0]], "hidden_act": "silu",
        "model_type": model.architecture, "hidden_size": model["embedding_length"],
        "intermediate_size": model["feed_forward_length"], "num_attention_heads": heads,
        "max_position_embeddings": model["context_length"],
        "num_hidden_layers": model["block_count"],
        "num_key_value_heads": model["attention.head_count_kv"] or heads,
        "rms_norm_eps": float(f"{model['attention.layer_norm_rms_epsilon']:.3g}"),
        "rope_theta": model["rope.freq_base"], "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16", "use_sliding_window": False,
        "vocab_size": len(tensors["model.embed_tokens.weight"])}
    if model["attention.key_length"]:
        found["head_dim"] = model["attention.key_length"]
    for name in ("bos", "eos"):
        if f"tokenizer.ggml.{name}_token_id" in model.fields:
            found[f"{name}_token_id"] = model.fields[f"tokenizer.ggml.{name}_token_id"]
    return found


def tokenizer_of(model: Model) -> tuple[dict, dict]:
    """Returns tokenizer.json and tokenizer_config.json."""
    fields = model.fields
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    pieces = fields["tokenizer.ggml.pre"]

    def byte_level(regex):
        return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                "use_regex": regex}
    if pieces == "qwen2":
        normal = {"type": "NFC"}
        split = {"type": "Split", "pattern": {"Regex": QWEN2_PIECES}, "behavior": "Isolated",
                 "invert": False}
        before = [split, byte_level(False)]
    elif pieces == "smollm":
        normal = None
        before = [{"type": "Digits", "individual_digits": True}, byte_level(True)]
    else:
        raise ValueError(f"tokenizer.ggml.pre {pieces}: known are qwen2 and smollm")
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False,
              "special": kind == CONTROL and not (pieces == "qwen2" and token in QWEN2_PLAIN)}
             for i, (token, kind) in enumerate(zip(tokens, types))
             if kind in (CONTROL, USER_DEFINED)]
    apart = {one["content"] for one in added} if pieces == "qwen2" else set()
    vocabulary = {token: i for i, (token, kind) in enumerate(zip(tokens, types))
                  if kind != UNUSED and token not in apart}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": normal, "pre_tokenizer": {"type": "Sequence", "pretokenizers": before},
        "post_processor": None, "decoder": byte_level(True),
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary,
                  "merges": fields["tokenizer.ggml.merges"]}}
    config = {"tokenizer_class": ARCHITECTURES[model.architecture][1],
              "chat_template": fields.get("tokenizer.chat_template"),
              "model_max_length": model["context_length"]}
    for name in ("bos", "eos"):
        number = fields.get(f"tokenizer.ggml.{name}_token_id")
        uses = name == "eos" or fields.get("tokenizer.ggml.add_bos_token", False)
        config[f"{name}_token"] = tokens[number] if number is not None and uses else None
    return tokenizer, config


def save_tensors(path: pathlib.Path, tensors: dict[str, numpy.ndarray],
                 vectors_in_f32: bool = False) -> None:
    """Writes tensors in bf16, rounded to the nearest, as a .safetensors file."""
    def in_f32(name):
        return vectors_in_f32 and tensors[name].ndim == 1

    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        end = at + (4 if in_f32(name) else 2) * tensors[name].size
        header[name] = {"dtype": "F32" if in_f32(name) else "BF16", "shape": list(tensors[name].shape),
                        "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(tensors):
            bits = numpy.ascontiguousarray(tensors[name]).view(numpy.uint32)
            if in_f32(name):
                file.write(bits.tobytes())
                continue
            file.write(((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(numpy.uint16).tobytes())


def convert(path: pathlib.Path, folder: pathlib.Path, as_served: bool = False) -> pathlib.Path:
    """Writes the folder and returns it."""
    model = Model(path)
    tensors = model.tensors(as_served)
    tokenizer, tokenizer_config = tokenizer_of(model)
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / "model.safetensors", tensors, vectors_in_f32=as_served)
    for name, content in (("config", config_of(model, tensors)), ("tokenizer", tokenizer),
                          ("tokenizer_config", tokenizer_config)):
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False, indent=1),
                                             encoding="utf-8")
    return folder


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--as-served"]
    if len(arguments) != 2:
        sys.exit("usage: python3 -m tools.models.to_folder model.gguf FOLDER [--as-served]")
    try:
        print(convert(*map(pathlib.Path, arguments), as_served="--as-served" in sys.argv))
    except (ValueError, OSError) as error:
        sys.exit(f"to_folder: {error}")


if __name__ == "__main__":
    main()
