"""Block-sparse causal attention of a prompt: which blocks of keys a unit of queries attends to.

Keys are in blocks of 128 positions. Queries are in units of `unit` rows, the first of which begins
behind the sink (position 4), so that a unit is a block of what a prefix cache keeps. A unit of a
query head attends to a floor (the block of the sink, the blocks that hold the unit and the 128
tokens before it) and to the blocks that an estimate finds heaviest, until they hold `threshold` of
the estimated weight. Estimates:

* antidiagonal (XAttention, Xu et al. 2025): groups of `stride` queries and keys; the score of a
  pair of groups is the sum over its antidiagonal, a softmax over groups gives the weight;
* pooled (the block estimate of MInference, Jiang et al. 2024, and FlexPrefill, Lai et al. 2025):
  the mean query of the unit with the mean key of a block;
* true: what attention gives, the best that any estimate can do.

Rows before `dense`, and rows of a unit that the prompt does not fill, attend to everything.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F

SINK = 4
BLOCK = 128


@dataclasses.dataclass(frozen=True)
class Choice:
    """How blocks are chosen."""
    estimate: str = "antidiagonal"  # pooled, true
    threshold: float = 0.95
    unit: int = 64
    stride: int = 16
    dense: int = 4096

    def name(self) -> str:
        """Returns a name for tables."""
        stride = f" {self.stride}" if self.estimate == "antidiagonal" else ""
        return f"{self.estimate}{stride}, units of {self.unit}, threshold {self.threshold:g}"


@dataclasses.dataclass
class Counts:
    """Blocks of keys that sparse units attended to, of those that they could see."""
    attended: int = 0
    seen: int = 0


def weights(choice: Choice, q: torch.Tensor, k: torch.Tensor, begin: int) -> torch.Tensor:
    """Returns the estimated weight [heads, blocks] of each block for queries q [heads, unit, d] at
    positions from `begin` on; k [heads, keys, d] ends with the unit."""
    blocks = -(-k.shape[1] // BLOCK)
    scale = q.shape[-1] ** -0.5
    rows = torch.arange(begin, begin + q.shape[1])
    if choice.estimate == "true":
        scores = q @ k.mT * scale
        scores.masked_fill_(torch.arange(k.shape[1]) > rows[:, None], -torch.inf)
        mass, width = scores.softmax(-1).sum(1), BLOCK
    elif choice.estimate == "pooled":
        means = F.pad(k, (0, 0, 0, blocks * BLOCK - k.shape[1])).unflatten(1, (blocks, BLOCK)).mean(2)
        means[:, -1] *= BLOCK / (k.shape[1] - (blocks - 1) * BLOCK)
        mass, width = (q.mean(1, keepdim=True) @ means.mT * scale).softmax(-1).sum(1), 1
    else:
        stride = choice.stride
        whole = k.shape[1] // stride
        keys = k[:, :whole * stride].unflatten(1, (whole, stride)).flatten(2)
        queries = q.unflatten(1, (-1, stride)).flip(2).flatten(2)
        scores = queries @ keys.mT * (scale / stride)
        ends = torch.arange(1, whole + 1) * stride
        last = rows.view(-1, stride)[:, -1:] + 1
        scores.masked_fill_(ends > last, -torch.inf)
        mass, width = scores.softmax(-1).sum(1), BLOCK // stride
    short = blocks * width - mass.shape[1]
    return F.pad(mass, (0, short)).unflatten(1, (blocks, width)).sum(-1)


def chosen(choice: Choice, mass: torch.Tensor, begin: int) -> torch.Tensor:
    """Returns which blocks [heads, blocks] are attended to."""
    keep = torch.zeros_like(mass, dtype=torch.bool)
    keep[:, 0] = True
    keep[:, max(0, begin - BLOCK) // BLOCK:] = True
    order = mass.masked_fill(keep, torch.inf).argsort(dim=-1, descending=True, stable=True)
    ordered = mass.gather(-1, order)
    before = ordered.cumsum(-1) - ordered
    needed = before < choice.threshold * mass.sum(-1, keepdim=True)
    return keep | torch.zeros_like(keep).scatter(-1, order, needed)


def attention(choice: Choice, counts: Counts, q, k, v) -> torch.Tensor:
    """Attends q [1, heads, n, d] to k, v [1, kv_heads, n, d], causally."""
    (_, heads, n, d), group = q.shape, q.shape[1] // k.shape[1]
    k, v = (x[0].repeat_interleave(group, 0) for x in (k, v))
    q, out = q[0], torch.empty_like(q[0])
    first = SINK + -(-(choice.dense - SINK) // choice.unit) * choice.unit
    end = first + max(0, n - first) // choice.unit * choice.unit

    def dense(begin, stop):
        for at in range(begin, stop, 512):
            to = min(at + 512, stop)
            mask = torch.arange(to) <= torch.arange(at, to)[:, None]
            out[:, at:to] = F.scaled_dot_product_attention(
                q[None, :, at:to], k[None, :, :to], v[None, :, :to], mask)[0]
    dense(0, min(first, n))
    for begin in range(first, end, choice.unit):
        stop = begin + choice.unit
        queries = q[:, begin:stop]
        keep = chosen(choice, weights(choice, queries, k[:, :stop], begin), begin)
        counts.attended += int(keep.sum())
        counts.seen += keep.numel()
        rows = torch.arange(begin, stop)[:, None]
        for head in range(heads):
            at = (keep[head].nonzero() * BLOCK + torch.arange(BLOCK)).flatten()
            at = at[at < stop]
            scores = queries[head] @ k[head, at].T / math.sqrt(d)
            scores.masked_fill_(at > rows, -torch.inf)
            out[head, begin:stop] = scores.softmax(-1) @ v[head, at]
    dense(max(first, end), n)
    return out[None]
