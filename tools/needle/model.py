"""The model: a Llama decoder with the parameter names of transformers' LlamaForCausalLM.

Written out so that training can compile it and the index study can replace its attention.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from . import tasks

# attend(layer, q, k, v) -> output; q [batch, heads, n, d], k and v [batch, kv_heads, n, d].
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes that config.json states."""
    vocab_size: int
    hidden_size: int = 320
    num_hidden_layers: int = 5
    intermediate_size: int = 640
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 128
    rope_theta: float = 1e8
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = tasks.MAX_LENGTH

    @classmethod
    def load(cls, folder: pathlib.Path) -> "Shape":
        """Reads config.json."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return cls(**{f.name: config[f.name] for f in dataclasses.fields(cls)})


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attends to all earlier tokens of the same call."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def rope_tables(shape: Shape, positions: torch.Tensor):
    """Returns cos and sin, fp32 [batch, 1, n, d/2], for positions [batch, n]."""
    exponents = torch.arange(0, shape.head_dim, 2, device=positions.device) / shape.head_dim
    frequencies = 1.0 / (shape.rope_theta ** exponents.double())
    angles = (positions.double()[:, None, :, None] * frequencies).float()
    return angles.cos(), angles.sin()


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


class RmsNorm(nn.Module):
    """Root mean square norm, computed in fp32."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)
        return self.weight * wide.to(x.dtype)


class Attention(nn.Module):
    """Projections and RoPE; the attention itself is the caller's."""

    def __init__(self, shape: Shape):
        super().__init__()
        self._head_dim = shape.head_dim
        wide, narrow = (heads * shape.head_dim
                        for heads in (shape.num_attention_heads, shape.num_key_value_heads))
        self.q_proj = nn.Linear(shape.hidden_size, wide, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, narrow, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, narrow, bias=False)
        self.o_proj = nn.Linear(wide, shape.hidden_size, bias=False)

    def forward(self, x, cos, sin, attend) -> torch.Tensor:
        q, k, v = (proj(x).unflatten(-1, (-1, self._head_dim)).transpose(1, 2)
                   for proj in (self.q_proj, self.k_proj, self.v_proj))
        out = attend(_rotate(q, cos, sin), _rotate(k, cos, sin), v)
        return self.o_proj(out.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x, cos, sin, attend=causal_attention) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)


class Llama(nn.Module):
    """The decoder; the output projection is the embedding."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor,
                attend: Attend | None = None) -> torch.Tensor:
        """Returns the normed hidden states [batch, n, hidden] of ids [batch, n].

        Without `attend` every layer is causal over `ids`.
        """
        cos, sin = rope_tables(self.shape, positions)
        x = self.model.embed_tokens(ids)
        for index, layer in enumerate(self.model.layers):
            if attend:
                x = layer(x, cos, sin, functools.partial(attend, index))
            else:
                x = layer(x, cos, sin)
        return self.model.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits of hidden states."""
        return F.linear(hidden, self.model.embed_tokens.weight)


def optimizers(model: Llama, rate: float) -> list[torch.optim.Optimizer]:
    """Returns Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "layers" in name]
    rest = [p for name, p in model.named_parameters() if p.dim() < 2 or "layers" not in name]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, momentum=0.95,
                         adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)]


def load(folder: pathlib.Path, device: str = "cpu", dtype=torch.bfloat16) -> Llama:
    """Loads a model folder."""
    from safetensors.torch import load_file
    model = Llama(Shape.load(folder))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.to(device=device, dtype=dtype).eval()


def save(model: Llama, folder: pathlib.Path, begin: int, end: int) -> None:
    """Writes config.json, generation_config.json and model.safetensors (bf16)."""
    from safetensors.torch import save_file
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
        "initializer_range": 0.02, "bos_token_id": begin, "eos_token_id": end,
        **dataclasses.asdict(model.shape)}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json",
                {"bos_token_id": begin, "eos_token_id": end, "do_sample": False})
    weights = {name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
               for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def _write_json(path: pathlib.Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
