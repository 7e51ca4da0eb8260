"""Attention over random keys as the hardest models have them: large biases, outlier channels.

Keys are made as a layer makes them: random channels, some of them far larger, plus the constant
bias of the projection, then RoPE. Queries are smaller where keys are larger, so that logits stay
in the range of trained models and only what is stored is hard. Reference is fp32.
"""

import dataclasses
import pathlib

import torch

from tools.needle import model as llama

from .formats import FORMS, Form, balance_of
from .jobs import Job

SEGMENT = 8192  # tokens: one group
QUERIES = 64
HEADS = 4
SHARPNESS = 3.0  # standard deviation of the logits
THETA = 1e6


@dataclasses.dataclass(frozen=True)
class Case:
    """What is hard about the keys: `outliers` pairs of channels `times` larger, `bias` in four."""
    name: str
    outliers: int = 0
    times: float = 1.0
    bias: float = 0.0


CASES = (Case("ordinary"), Case("outliers 20 times", 2, 20.0), Case("outliers 100 times", 2, 100.0),
         Case("bias 30", bias=30.0), Case("bias 300", bias=300.0),
         Case("outliers 100 times, bias 300", 2, 100.0, 300.0))


def make(case: Case, width: int, seed: int = 11):
    """Returns queries [h, n, d], keys and values [h, t, d], and the balance [h, d] that weights
    and bias would give."""
    random = torch.Generator().manual_seed(seed)
    half = width // 2
    size, bias = torch.ones(HEADS, width), torch.zeros(HEADS, width)
    for head in range(HEADS):
        places = torch.randperm(half, generator=random)
        for at in places[:case.outliers]:
            size[head, [at, at + half]] = case.times
        # Pairs that RoPE turns slowly keep a bias constant, others spread it over a circle.
        for at in (half - 1 - head, half - 5 - head, int(places[-1]), int(places[-2])):
            bias[head, [at, at + half]] = torch.tensor([case.bias, -case.bias / 2])
    keys = torch.randn(HEADS, SEGMENT, width, generator=random) * size[:, None] + bias[:, None]
    values = torch.randn(HEADS, SEGMENT, width, generator=random)
    large = torch.maximum(size, bias.abs().unflatten(-1, (2, half)).amax(1).repeat(1, 2))
    queries = torch.randn(HEADS, QUERIES, width, generator=random) / large[:, None]
    shape = llama.Shape(vocab_size=1, head_dim=width, rope_theta=THETA)
    cos, sin = llama.rope_tables(shape, torch.arange(SEGMENT)[None])
    keys = llama._rotate(keys[None], cos, sin)[0]
    at_end = [x[:, :, -QUERIES:] for x in (cos, sin)]
    queries = llama._rotate(queries[None], *at_end)[0]
    logits = queries @ keys.transpose(1, 2)
    queries = queries * (SHARPNESS / logits.std(-1, keepdim=True))
    # Weights whose rows have these norms, with inputs of unit variance.
    row = torch.full((1, width), width ** -0.5)
    balance = balance_of(size.flatten()[:, None] * row, row / large.flatten()[:, None],
                         torch.ones(width), width, bias.flatten())
    return queries, keys, values, balance


def attend(queries, keys, values):
    """Returns softmax(q k) v, in fp64."""
    logits = queries.double() @ keys.double().transpose(1, 2)
    return logits.softmax(-1) @ values.double()


def error(form: Form, case: Case, width: int) -> dict[str, float]:
    """Returns the relative error of attention's output, by keys, by values, and by both."""
    queries, keys, values, balance = make(case, width)
    wanted = attend(queries, keys, values)
    read_keys, read_values = form.keys(keys, balance), form.values(values)

    def of(k, v):
        off = (attend(queries, k, v) - wanted).norm(dim=-1) / wanted.norm(dim=-1)
        return round(float(off.mean()), 5)
    return {"keys": of(read_keys, values), "values": of(keys, read_values),
            "both": of(read_keys, read_values)}


class HardKeys(Job):
    """Every form on every case, for both widths; on the CPU."""

    def __init__(self, folder: pathlib.Path):
        del folder  # no model
        self._what = [(form, case, width) for width in (64, 128) for form in FORMS
                      for case in CASES]
        super().__init__("random keys that are hard", [
            ["hard keys", width, form.name, case.name] for form, case, width in self._what])

    def run(self, lab, results) -> int:
        return sum(self.attempt(lab, results, key, lambda: error(*what))
                   for what, key in zip(self._what, self.keys))
