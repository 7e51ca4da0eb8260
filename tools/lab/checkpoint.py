"""A checkpoint of others in the laboratory: a Hugging Face folder of a supported family.

Llama, Qwen2 and Qwen3: biases of q, k and v, norms of q and k, tied or own output matrix, any
head_dim, RoPE as it is, scaled linearly, as Llama 3 does or by YaRN. What else a configuration
says is refused, since it would change the words.
"""

import json
import math
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

from tools.needle import model as llama

FAMILIES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}


def shape_of(config: dict) -> llama.Shape:
    """Returns the sizes that a config.json states."""
    heads = config["num_attention_heads"]
    return llama.Shape(
        vocab_size=config["vocab_size"], hidden_size=config["hidden_size"],
        num_hidden_layers=config["num_hidden_layers"],
        intermediate_size=config["intermediate_size"], num_attention_heads=heads,
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        rope_theta=float(_rope(config).get("rope_theta", 10000.0)),
        rms_norm_eps=config["rms_norm_eps"],
        max_position_embeddings=config["max_position_embeddings"])


def _rope(config: dict) -> dict:
    """Returns RoPE's keys, wherever this version of a configuration keeps them."""
    found = {"rope_theta": config["rope_theta"]} if "rope_theta" in config else {}
    found.update(config.get("rope_scaling") or {})
    found.update(config.get("rope_parameters") or {})
    return found


def with_yarn(config: dict, text: str) -> dict:
    """Returns a configuration with YaRN set by `yarn:FACTOR[:ORIGINAL]`, as the server does."""
    kind, factor, *original = text.split(":")
    if kind != "yarn" or len(original) > 1 or not float(factor) >= 1:
        raise ValueError(f"--rope-scaling {text}: needs yarn:FACTOR or yarn:FACTOR:ORIGINAL")
    before = int(original[0]) if original else config["max_position_embeddings"]
    rope = {"rope_theta": _rope(config).get("rope_theta", 10000.0), "rope_type": "yarn",
            "factor": float(factor), "original_max_position_embeddings": before}
    return {**{k: v for k, v in config.items() if k not in ("rope_theta", "rope_scaling")},
            "rope_parameters": rope, "max_position_embeddings": int(before * float(factor))}


class Rope:
    """Frequencies [d/2] of RoPE, and the factor of its cosines and sines."""

    def __init__(self, config: dict, head_dim: int):
        rope = _rope(config)
        theta = float(rope.get("rope_theta", 10000.0))
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
        plain = theta ** -exponents
        kind = rope.get("rope_type") or rope.get("type") or "default"
        self.factor = 1.0
        if kind == "default":
            self.frequencies = plain
        elif kind == "linear":
            self.frequencies = plain / rope["factor"]
        elif kind == "yarn":
            self.frequencies, self.factor = _yarn(rope, plain, theta, head_dim, config)
        elif kind == "llama3":
            self.frequencies = _llama3(rope, plain)
        else:
            raise ValueError(f"RoPE of type {kind}: default, linear, yarn and llama3 are known")

    def tables(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cos and sin, fp32 [batch, 1, n, d/2], for positions [batch, n]."""
        frequencies = self.frequencies.to(positions.device)
        angles = (positions.double()[:, None, :, None] * frequencies).float()
        return angles.cos() * self.factor, angles.sin() * self.factor


def _yarn(rope, plain, theta, head_dim, config):
    original = rope.get("original_max_position_embeddings") or config["max_position_embeddings"]
    factor = float(rope["factor"])

    def channel(rotations):
        return (head_dim * math.log(original / (rotations * 2 * math.pi))
                / (2 * math.log(theta)))
    low = max(math.floor(channel(rope.get("beta_fast", 32.0))), 0)
    high = min(math.ceil(channel(rope.get("beta_slow", 1.0))), head_dim - 1)
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float64) - low)
            / max(high - low, 0.001)).clamp(0, 1)
    scale = rope.get("attention_factor") or 0.1 * math.log(factor) + 1.0
    return plain / factor * ramp + plain * (1 - ramp), scale


def _llama3(rope, plain):
    original, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    rotations = original * plain / (2 * math.pi)
    smooth = ((rotations - low) / (high - low)).clamp(0, 1)
    return plain / factor * (1 - smooth) + plain * smooth


class Attention(llama.Attention):
    """Projections with biases and norms where the family has them."""

    def __init__(self, shape: llama.Shape, bias: bool, normed: bool):
        super().__init__(shape)
        for name in ("q_proj", "k_proj", "v_proj"):
            plain = getattr(self, name)
            setattr(self, name, nn.Linear(plain.in_features, plain.out_features, bias=bias))
        if normed:
            self.q_norm = llama.RmsNorm(shape.head_dim, shape.rms_norm_eps)
            self.k_norm = llama.RmsNorm(shape.head_dim, shape.rms_norm_eps)
        self._normed = normed

    def forward(self, x, cos, sin, attend) -> torch.Tensor:
        q, k, v = (proj(x).unflatten(-1, (-1, self._head_dim)).transpose(1, 2)
                   for proj in (self.q_proj, self.k_proj, self.v_proj))
        if self._normed:
            q, k = self.q_norm(q), self.k_norm(k)
        out = attend(llama._rotate(q, cos, sin), llama._rotate(k, cos, sin), v)
        return self.o_proj(out.transpose(1, 2).flatten(-2))


class Checkpoint(llama.Llama):
    """A decoder with the interface of the laboratory's own models."""

    def __init__(self, config: dict):
        family = FAMILIES.get((config.get("architectures") or ["?"])[0])
        if family is None:
            raise ValueError(f"architectures {config.get('architectures')}: the laboratory knows "
                             f"{', '.join(FAMILIES)}")
        if config.get("use_sliding_window"):
            raise ValueError("use_sliding_window: the laboratory attends to all tokens")
        with torch.device("meta"):
            super().__init__(shape_of(config))
            bias = family == "qwen2" or bool(config.get("attention_bias"))
            for layer in self.model.layers:
                layer.self_attn = Attention(self.shape, bias, family == "qwen3")
            if not config.get("tie_word_embeddings", False):
                self.lm_head = nn.Linear(self.shape.hidden_size, self.shape.vocab_size, bias=False)
        self._tied = bool(config.get("tie_word_embeddings", False))
        self.rope = Rope(config, self.shape.head_dim)

    def forward(self, ids, positions, attend=None) -> torch.Tensor:
        cos, sin = self.rope.tables(positions)
        x = self.model.embed_tokens(ids)
        for number, layer in enumerate(self.model.layers):
            def attend_here(q, k, v, number=number):
                return attend(number, q, k, v) if attend else llama.causal_attention(q, k, v)
            x = layer(x, cos, sin, attend_here)
        return self.model.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        weight = self.model.embed_tokens.weight if self._tied else self.lm_head.weight
        return F.linear(hidden, weight)


def load(folder: pathlib.Path, device: str = "cpu", dtype=torch.bfloat16,
         rope_scaling: str = "") -> Checkpoint:
    """Loads a folder with config.json and one or more .safetensors."""
    from safetensors.torch import load_file
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if rope_scaling:
        config = with_yarn(config, rope_scaling)
    model = Checkpoint(config)
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(path))
    if model._tied:
        tensors.pop("lm_head.weight", None)
    model.load_state_dict(tensors, assign=True)
    return model.to(device=device, dtype=dtype).eval()
