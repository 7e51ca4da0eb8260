"""8-bit (and other) forms of stored keys and values: what is left of them when they are read back.

A form says how a vector is written: its element type, what has a scale of its own, and whether keys
are changed before (centred, balanced, turned). Here they are rounded and given back in fp32, in
the space that they came from, so that any attention can be run over them.

Groups are runs of tokens that share a scale or a mean: the segments of a document, and the dense
blocks of 64 tokens in front of and behind them.
"""

import dataclasses

import torch

from tools.needle import model as llama

from .system import LOCAL, SINK
from .systems.wave import segments
from tools.needle import wave

E4M3_MOST = 448.0
BLOCK = 64  # tokens of a dense block
LEAST_DOCUMENT = SINK + LOCAL + wave.DENSE_BELOW


@dataclasses.dataclass(frozen=True)
class Form:
    """How keys and values are stored.

    element: "bf16", "e4m3", "int8" or "int4". scale: "none"; "token" is a scale for each vector,
    "segment" one for all vectors of a head in a group, "channel" one for each channel of a head in
    a group. power: the scale is a power of two, else an f16 ("segment" and "channel": fp32).
    centred: the group's mean key is subtracted before and known apart. balanced: each pair of
    channels that RoPE turns together is divided by a power of two that comes from the weights, and
    a constant part of all keys is left away (`Stored`). turned: by a Hadamard matrix. Values are neither centred nor balanced.
    """
    name: str
    element: str
    scale: str = "none"
    power: bool = False
    centred: bool = False
    balanced: bool = False
    turned: bool = False

    def keys(self, x: torch.Tensor, balance: torch.Tensor | None = None) -> torch.Tensor:
        """Returns keys [..., h, t, d] as they are read back, fp32; balance is [h, d]."""
        x = x.float()
        if self.balanced and balance is not None:
            x = x / balance[:, None]
        if self.turned:
            x = _turn(x)
        parts = []
        for part in x.split(groups(x.shape[-2]), dim=-2):
            mean = part.mean(-2, keepdim=True) if self.centred else 0.0
            parts.append(_round(part - mean, self.element, self.scale, self.power) + mean)
        x = torch.cat(parts, -2)
        if self.turned:
            x = _turn(x)  # the matrix is its own inverse
        return x * balance[:, None] if self.balanced and balance is not None else x

    def values(self, x: torch.Tensor) -> torch.Tensor:
        """Returns values [..., h, t, d] as they are read back, fp32."""
        x = x.float()
        if self.turned:
            x = _turn(x)
        x = torch.cat([_round(part, self.element, self.scale, self.power)
                       for part in x.split(groups(x.shape[-2]), dim=-2)], -2)
        return _turn(x) if self.turned else x


BF16 = Form("bf16", "bf16")
CHOSEN = Form("int8 by token, scale a power of two", "int8", "token", power=True)
BALANCED = Form("int8 by token, power of two, channels balanced", "int8", "token", power=True,
                balanced=True)
FORMS = (
    BF16,
    Form("e4m3, no scale", "e4m3"),
    Form("e4m3, a scale a head and segment", "e4m3", "segment"),
    Form("e4m3, that, keys centred", "e4m3", "segment", centred=True),
    Form("e4m3 by token", "e4m3", "token"),
    Form("int8 by token", "int8", "token"),
    CHOSEN,
    Form("int8 by token, keys centred", "int8", "token", centred=True),
    BALANCED,
    Form("int8 by token, turned", "int8", "token", turned=True),
    Form("int8, a scale a head and segment", "int8", "segment"),
    Form("int8 by channel and segment, keys centred", "int8", "channel", centred=True),
    Form("int4 by token", "int4", "token"),
)


def form_named(name: str) -> Form:
    """Returns the form of this name."""
    return next(form for form in FORMS if form.name == name)


def groups(tokens: int) -> list[int]:
    """Returns the runs of tokens that share a scale: a document's segments, or dense blocks."""
    if tokens < LEAST_DOCUMENT:
        return [min(BLOCK, tokens - at) for at in range(0, tokens, BLOCK)]
    inner = segments(tokens, wave.PREFILL_SEGMENT)
    rest = tokens - SINK - sum(inner)
    return [SINK, *inner, *(min(BLOCK, rest - at) for at in range(0, rest, BLOCK))]


def _round(x, element, scale, power):
    if element == "bf16":
        return x.bfloat16().float()
    most = {"e4m3": E4M3_MOST, "int8": 127.0, "int4": 7.0}[element]
    if scale == "none":
        factor = torch.ones_like(x[..., :1, :1])
    else:
        over = {"token": -1, "segment": (-2, -1), "channel": -2}[scale]
        factor = (x.abs().amax(over, keepdim=True) / most).clamp(min=2.0 ** -24)
        if power:
            factor = torch.exp2(torch.ceil(torch.log2(factor)))
        elif scale == "token":
            factor = factor.half().float()
    scaled = (x / factor).clamp(-most, most)
    if element == "e4m3":
        return scaled.to(torch.float8_e4m3fn).float() * factor
    return scaled.round() * factor


def _turn(x):
    """Multiplies vectors by the Hadamard matrix of their width over its root."""
    width = x.shape[-1]
    if width & (width - 1):
        raise ValueError(f"vectors of {width}: a Hadamard matrix needs a power of two")
    step = 1
    while step < width:
        pairs = x.unflatten(-1, (-1, 2, step))
        x = torch.stack([pairs[..., 0, :] + pairs[..., 1, :],
                         pairs[..., 0, :] - pairs[..., 1, :]], -2).flatten(-3)
        step *= 2
    return x * width ** -0.5


def balance_of(keys: torch.Tensor, queries: torch.Tensor, norm: torch.Tensor, width: int,
               bias: torch.Tensor | None = None) -> torch.Tensor:
    """Returns powers of two [h, d] that keys are divided and queries multiplied by.

    keys and queries are the weights of k_proj [h d, hidden] and q_proj, norm the weights [hidden] of
    the norm before them, bias k_proj's [h d]. Keys and queries get the same profile over channels:
    the root of what is larger in keys by what is larger in queries. The two channels that RoPE
    turns together get the same, so no product changes.
    """
    large = _pairs(keys, norm, width)
    if bias is not None:
        large = large + bias.float().square().unflatten(0, (-1, 2, width // 2)).sum(1)
    asked = _pairs(queries, norm, width).unflatten(0, (len(large), -1)).mean(1)
    ratio = (large / asked.clamp(min=1e-12)).clamp(min=1e-12).sqrt().sqrt()
    middle = ratio.median(-1, keepdim=True).values
    return torch.exp2(torch.log2(ratio / middle).round()).repeat(1, 2)


def _pairs(weights, norm, width):
    """Squares of what a pair of channels has: [heads, d/2]."""
    squares = (weights.float() * norm.float()).square().sum(-1)
    return squares.unflatten(0, (-1, 2, width // 2)).sum(1)


@torch.no_grad()
def balances(model: llama.Llama) -> list[torch.Tensor]:
    """Returns the balance of every layer."""
    return [balance_of(layer.self_attn.k_proj.weight, layer.self_attn.q_proj.weight,
                       layer.input_layernorm.weight, model.shape.head_dim)
            for layer in model.model.layers]


@dataclasses.dataclass(frozen=True)
class Twin:
    """The same function with harder keys: `outliers` pairs of channels of every head are `times`
    (a power of two) larger in keys and smaller in queries, and every key has a constant `bias` in
    two further channels, which no softmax sees. Which channels differ by layer and head.
    """
    name: str
    outliers: int = 0
    times: float = 1.0
    bias: float = 0.0

    def factors(self, layer: int, heads: int, width: int) -> torch.Tensor:
        """Returns what keys are multiplied by: [h, d]."""
        found = torch.ones(heads, width)
        for head in range(heads):
            for i in range(self.outliers):
                at = (7 * layer + 13 * head + 17 * i + 3) % (width // 2)
                found[head, [at, at + width // 2]] = self.times
        return found

    def added(self, layer: int, heads: int, width: int) -> torch.Tensor:
        """Returns what is added to every key: [h, d]."""
        found = torch.zeros(heads, width)
        for head in range(heads):
            at = (11 * layer + 5 * head) % (width // 2)
            found[head, [at, at + width // 2]] = torch.tensor([self.bias, -self.bias / 2])
        return found


PLAIN = Twin("as trained")
TWINS = (PLAIN, Twin("outliers 16 times", 3, 16.0), Twin("outliers 64 times", 3, 64.0),
         Twin("bias 30", bias=30.0), Twin("bias 300", bias=300.0),
         Twin("outliers 64 times, bias 300", 3, 64.0, 300.0))


class Stored:
    """A model whose attention sees keys and values as a form gives them back.

    Takes the model's place wherever it is called. Token by token: what is rounded does not depend
    on how many tokens a call has, but for forms with scales or means of groups.
    """

    def __init__(self, model: llama.Llama, form: Form, twin: Twin = PLAIN):
        self._inner, self.form, self.twin = model, form, twin
        self._balances = balances(model) if form.balanced else None

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def __call__(self, ids, positions, attend):
        def seen(layer, q, k, v):
            q, k = self.changed(layer, q, k)
            return attend(layer, q, self.form.keys(k), self.form.values(v))
        return self._inner(ids, positions, seen)

    def changed(self, layer: int, q: torch.Tensor | None, k: torch.Tensor):
        """Returns queries [..., heads, n, d] and keys [..., h, n, d] of the twin; balanced ones if
        the form says so, and then everything that is built over keys is, too."""
        heads, width = k.shape[-3], k.shape[-1]
        if self.twin is PLAIN and self._balances is None:
            return q, k
        divided = torch.ones(heads, width)
        if self.twin is not PLAIN:
            divided = self.twin.factors(layer, heads, width)
            # The same for every key, so no softmax sees whether it is there. It is known before
            # any key is (the weights' bias says it), and a form that balances leaves it away.
            added = self.twin.added(layer, heads, width) * (not self.form.balanced)
            k = k.float() * divided.to(k.device)[:, None] + added.to(k.device)[:, None]
        if self._balances is not None:
            # A twin's weights say its factors: larger in keys, smaller in queries.
            balance = self._balances[layer].to(k.device) * divided.to(k.device)
            k = k.float() / balance[:, None]
            divided = divided.to(k.device) / balance
        if q is not None:
            divided = divided.to(q.device).repeat_interleave(q.shape[-3] // heads, 0)
            q = q / divided[:, None].to(q.dtype)
        return q, k
