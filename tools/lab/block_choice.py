"""Which blocks of keys a unit of a prompt's rows attends to, by estimates of one unit's weight.

Keys are in blocks of 128 positions. Queries are in units of `unit` rows, the first of which begins
behind the sink (position 4), so that a unit is a block of what a prefix cache keeps. A unit of a
query head attends to a floor (the block of the sink, the blocks that hold the unit and the 128
tokens before it) and to the blocks that an estimate finds heaviest, until they hold `threshold` of
the estimated weight. Estimates:

* antidiagonal (XAttention, Xu et al. 2025): groups of `stride` queries and keys; the score of a
  pair of groups is the sum over its antidiagonal, a softmax over groups gives the weight;
* pooled (the block estimate of MInference, Jiang et al. 2024, and FlexPrefill, Lai et al. 2025):
  the mean query of the unit with the mean key of a block;
* true: what attention gives, the best that any estimate can do;
* all: every block, which shows what rounding alone changes.

Rules that look at the end of the prompt first are in rival_choice.py. Rows before `dense`, and rows
of a unit that the prompt does not fill, attend to everything.

Shapes: h query heads, u units, b blocks, n tokens, d head_dim; keys [kv_heads, n, d] serve h /
kv_heads query heads each.
"""

import dataclasses

import torch
import torch.nn.functional as F

SINK = 4
BLOCK = 128


@dataclasses.dataclass(frozen=True)
class Choice:
    """How blocks are chosen."""
    estimate: str = "antidiagonal"  # pooled, true, all, vertical-slash, flexprefill
    threshold: float = 0.95
    unit: int = 64
    stride: int = 16
    dense: int = 4096

    def name(self) -> str:
        """Returns a name for tables."""
        stride = f" {self.stride}" if self.estimate == "antidiagonal" else ""
        level = {"vertical-slash": f", {self.threshold:g} of the tokens", "all": ""}.get(
            self.estimate, f", threshold {self.threshold:g}")
        return f"{self.estimate}{stride}, units of {self.unit}{level}"


@dataclasses.dataclass(frozen=True)
class Units:
    """Where the units of a prompt lie that choose."""
    first: int   # row of the first
    count: int   # whole ones
    rows: int    # of a unit

    @staticmethod
    def of(choice: Choice, tokens: int) -> "Units":
        """Returns the units of a prompt."""
        first = SINK + -(-max(0, choice.dense - SINK) // choice.unit) * choice.unit
        return Units(first, max(0, tokens - first) // choice.unit, choice.unit)

    @property
    def end(self) -> int:
        """Behind the last row."""
        return self.first + self.count * self.rows

    def part(self, begin: int, end: int) -> "Units":
        """Returns the units from `begin` to `end`."""
        return Units(self.first + begin * self.rows, end - begin, self.rows)

    def begins(self, device) -> torch.Tensor:
        """Returns the first row of each unit [u]."""
        return self.first + self.rows * torch.arange(self.count, device=device)


def scores(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Returns products [h, r, n] in fp32 of queries [h, r, w] and keys [kv_heads, n, w]."""
    group = len(queries) // len(keys)
    wide = queries.float().unflatten(0, (-1, group)).flatten(1, 2)
    return (wide @ keys.float().mT).unflatten(1, (group, -1)).flatten(0, 1)


def block_means(keys: torch.Tensor) -> torch.Tensor:
    """Returns the mean key of each block [kv_heads, b, d]; the last may be short."""
    blocks = -(-keys.shape[1] // BLOCK)
    padded = F.pad(keys.float(), (0, 0, 0, blocks * BLOCK - keys.shape[1]))
    sums = padded.unflatten(1, (blocks, BLOCK)).sum(2)
    sums[:, :-1] /= BLOCK
    sums[:, -1] /= keys.shape[1] - (blocks - 1) * BLOCK
    return sums


def weights(choice: Choice, q: torch.Tensor, k: torch.Tensor, units: Units) -> torch.Tensor:
    """Returns the estimated weight [h, u, b] of each block for queries q [h, u * unit, d] of
    `units`; k [kv_heads, n, d] ends with the last unit. A block that a unit does not see has 0."""
    estimate = {"true": _true, "pooled": _pooled, "antidiagonal": _antidiagonal}[choice.estimate]
    mass, width = estimate(choice, q, k, units)
    blocks = -(-k.shape[1] // BLOCK)
    short = blocks * width - mass.shape[-1]
    return F.pad(mass, (0, short)).unflatten(-1, (blocks, width)).sum(-1)


def _true(choice, q, k, units):
    found = scores(q, k).mul_(q.shape[-1] ** -0.5)
    rows = torch.arange(units.first, units.end, device=q.device)
    found.masked_fill_(torch.arange(k.shape[1], device=q.device) > rows[:, None], -torch.inf)
    return found.softmax(-1).unflatten(1, (-1, choice.unit)).sum(2), BLOCK


def _pooled(choice, q, k, units):
    """The block in which a unit ends counts by its keys before the unit's end."""
    means, scale = block_means(k), q.shape[-1] ** -0.5
    queries = q.float().unflatten(1, (-1, choice.unit)).mean(2)
    found = scores(queries, means).mul_(scale)
    begins = units.begins(q.device)
    last = (begins + choice.unit - 1) // BLOCK
    place = begins + choice.unit - 1 - last * BLOCK  # of a unit's last key in that block
    sums = F.pad(k.float(), (0, 0, 0, -k.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK)).cumsum(2)
    own = sums[:, last, place] / (place + 1)[:, None]
    own = own.repeat_interleave(len(q) // len(k), 0)
    found.scatter_(-1, last.expand(len(q), -1)[..., None],
                   ((queries * own).sum(-1, keepdim=True) * scale))
    found.masked_fill_(torch.arange(found.shape[-1], device=q.device) > last[:, None], -torch.inf)
    return found.softmax(-1), 1


def _antidiagonal(choice, q, k, units):
    stride = choice.stride
    whole = k.shape[1] // stride
    keys = k[:, :whole * stride].unflatten(1, (whole, stride)).flatten(2)
    queries = q.unflatten(1, (-1, stride)).flip(2).flatten(2)
    found = scores(queries, keys).mul_(q.shape[-1] ** -0.5 / stride)
    ends = torch.arange(1, whole + 1, device=q.device) * stride
    last = units.first + stride * torch.arange(1, queries.shape[1] + 1, device=q.device)
    found.masked_fill_(ends > last[:, None], -torch.inf)
    return found.softmax(-1).unflatten(1, (-1, choice.unit // stride)).sum(2), BLOCK // stride


def floor(units: Units, blocks: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns which blocks [u, b] a unit attends to in any case, and which it sees."""
    block, begins = torch.arange(blocks, device=device), units.begins(device)[:, None]
    seen = block <= (begins + units.rows - 1) // BLOCK
    return seen & ((block == 0) | (block >= (begins - BLOCK).clamp(min=0) // BLOCK)), seen


def chosen(choice: Choice, mass: torch.Tensor, units: Units) -> torch.Tensor:
    """Returns which blocks [h, u, b] are attended to."""
    least, seen = floor(units, mass.shape[-1], mass.device)
    keep = least.expand_as(mass)
    order = mass.masked_fill(keep, torch.inf).argsort(dim=-1, descending=True, stable=True)
    ordered = mass.gather(-1, order)
    before = ordered.cumsum(-1) - ordered
    needed = before < choice.threshold * mass.sum(-1, keepdim=True)
    return (keep | torch.zeros_like(keep).scatter(-1, order, needed)) & seen


class ByUnit:
    """A rule that looks at a unit and the keys before its end, at nothing else."""

    keys_a_group = BLOCK

    def __init__(self, choice: Choice, q: torch.Tensor, k: torch.Tensor):
        self._choice, self._q, self._k = choice, q, k

    def elements(self) -> int:
        """Returns how many numbers a unit's estimate takes."""
        n, unit = self._k.shape[1], self._choice.unit
        each = {"true": unit * n, "antidiagonal": unit * n // self._choice.stride ** 2}
        return len(self._q) * each.get(self._choice.estimate, n // BLOCK + 1)

    def keep(self, units: Units) -> torch.Tensor:
        """Returns which blocks [h, u, b] are attended to."""
        blocks = -(-units.end // BLOCK)
        if self._choice.estimate == "all":
            _, seen = floor(units, blocks, self._q.device)
            return seen.expand(len(self._q), -1, -1)
        queries, keys = self._q[:, units.first:units.end], self._k[:, :units.end]
        return chosen(self._choice, weights(self._choice, queries, keys, units), units)
