"""Rules of others that choose for a whole prompt, by what its last rows attend to.

* vertical-slash (MInference, Jiang et al. 2024, arXiv:2407.02490): the attention of the last 64 rows
  is summed over columns and over diagonals; the heaviest of each are attended to by every row, a
  diagonal by 64 rows at once as 64 keys. `threshold` is the share of the prompt's tokens that
  columns and diagonals may be, a fifth of them columns; the first 30 columns and the nearest 100
  diagonals are always among them.
* flexprefill (Lai et al. 2025, arXiv:2502.20766): where blocks' mean keys tell the weight that the
  last 128 rows give to blocks (Jensen-Shannon distance below 0.1), a head's pairs of blocks are taken
  by the softmax of mean query and mean key until they hold `threshold` of all; other heads attend to
  blocks of columns and of diagonals that hold `threshold` of the last rows' weight. At least 1,024
  tokens of each.

Both have the floor of block_choice.py beside their own. They look at rows behind those that they
choose for: what comes later in a prompt changes how what came before attends.
"""

import torch

from .block_choice import BLOCK, Choice, Units, block_means, floor, scores, weights

LAST = 64             # rows that MInference looks at
COLUMN_SHARE = 0.2    # of what vertical-slash may attend to
LEAST_COLUMNS, LEAST_DIAGONALS = 30, 100
FAR = 0.1             # Jensen-Shannon distance from which on pooled keys do not tell
LEAST_BLOCKS = 1024 // BLOCK


def last_rows(q: torch.Tensor, k: torch.Tensor, rows: int) -> torch.Tensor:
    """Returns the weights [h, rows, n] that the last rows of a prompt give to keys."""
    n = k.shape[1]
    found = scores(q[:, n - rows:], k).mul_(q.shape[-1] ** -0.5)
    at = torch.arange(n, device=q.device)
    return found.masked_fill_(at > at[n - rows:, None], -torch.inf).softmax(-1)


def diagonals(weight: torch.Tensor) -> torch.Tensor:
    """Returns the sums [h, n] of the last rows' weights [h, rows, n] over keys so far before."""
    _, rows, n = weight.shape
    at = torch.arange(n, device=weight.device)
    key = at[n - rows:, None] - at
    found = weight.gather(-1, key.clamp(min=0).expand_as(weight))
    return found.masked_fill_(key < 0, 0).sum(1)


def _heaviest(weight: torch.Tensor, count: int) -> torch.Tensor:
    """Returns bool like weight [h, n]: the `count` largest of each row."""
    best = weight.topk(min(count, weight.shape[-1]), dim=-1).indices
    return torch.zeros_like(weight, dtype=torch.bool).scatter_(-1, best, True)


class VerticalSlash:
    """MInference's columns and diagonals, key by key."""

    keys_a_group = 1

    def __init__(self, choice: Choice, q: torch.Tensor, k: torch.Tensor):
        self._heads, n = len(q), k.shape[1]
        weight = last_rows(q, k, LAST)
        columns, along = weight.sum(1), diagonals(weight)
        columns[:, :LEAST_COLUMNS] = torch.inf
        along[:, :LEAST_DIAGONALS] = torch.inf
        budget = int(choice.threshold * n)
        own = int(COLUMN_SHARE * budget)
        self._columns = _heaviest(columns, max(LEAST_COLUMNS, own))
        taken = _heaviest(along, max(LEAST_DIAGONALS, budget - own))
        # Rows [b, b + unit) meet a diagonal s at keys [b - s, b - s + unit): whether any is taken,
        # by distance b - key, which is 1 - unit for the unit's last key.
        before = torch.nn.functional.pad(taken.int().cumsum(-1), (1, 0))
        distance = torch.arange(1 - choice.unit, n, device=q.device)
        ends = (distance + choice.unit).clamp(max=n)
        self._near = before[:, ends] > before[:, distance.clamp(min=0)]
        self._unit = choice.unit

    def elements(self) -> int:
        """Returns how many numbers a unit's choice takes."""
        return self._heads * self._columns.shape[-1] * 3

    def keep(self, units: Units) -> torch.Tensor:
        """Returns which keys [h, u, n] are attended to."""
        key = torch.arange(units.end, device=self._columns.device)
        distance = units.begins(key.device)[:, None] - key
        least, _ = floor(units, -(-units.end // BLOCK), key.device)
        least = least.repeat_interleave(BLOCK, -1)[:, :units.end]
        slash = self._near[:, (distance + self._unit - 1).clamp(min=0)]
        return (slash | self._columns[:, None, :units.end] | least) & (distance > -self._unit)


def _covering(weight: torch.Tensor, share: float) -> torch.Tensor:
    """Returns how many of the largest numbers of each row [h, n] hold `share` of it: [h]."""
    ordered = weight.sort(-1, descending=True).values.cumsum(-1)
    return (ordered <= share * weight.sum(-1, keepdim=True)).sum(-1) + 1


def distance_of(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Returns the square root of the Jensen-Shannon divergence of distributions [h, b]: [h]."""
    middle = (p + q) / 2
    found = sum((torch.special.xlogy(x, x) - torch.special.xlogy(x, middle)).sum(-1) for x in (p, q))
    return (found / 2).clamp(min=0).sqrt()


class FlexPrefill:
    """FlexPrefill's two patterns, block by block."""

    keys_a_group = BLOCK

    def __init__(self, choice: Choice, q: torch.Tensor, k: torch.Tensor):
        self._heads, n = len(q), k.shape[1]
        self._units, self._blocks = Units.of(choice, n), -(-n // BLOCK)
        weight = last_rows(q, k, min(BLOCK, n))
        columns, along = weight.mean(1), diagonals(weight) / weight.shape[1]
        by_block = _by_block(columns)
        pooled = scores(q[:, -weight.shape[1]:].float().mean(1, keepdim=True), block_means(k))
        pooled = pooled[:, 0].mul(q.shape[-1] ** -0.5).softmax(-1)
        self.aware = distance_of(pooled, by_block) < FAR
        by_block[:, 0] = torch.inf
        near = _by_block(along)
        near[:, 0] = torch.inf
        self._columns = _first(by_block, self._counted(columns, choice.threshold))
        self._along = _first(near, self._counted(along, choice.threshold))
        self._map = self._pairs(choice, q, k) if self.aware.any() else None

    def _counted(self, weight, share):
        """Blocks of the tokens that hold the share; in heads of the other pattern the least."""
        count = (_covering(weight, share) // BLOCK + 1).clamp(min=LEAST_BLOCKS)
        return count.masked_fill(self.aware, LEAST_BLOCKS)

    def _pairs(self, choice, q, k):
        """Pairs of unit and block [h, u, b] that hold the share of a head's whole map."""
        units = self._units
        pooled = Choice("pooled", unit=choice.unit, dense=choice.dense)
        mass = weights(pooled, q[:, units.first:units.end], k[:, :units.end], units)
        flat = torch.nn.functional.pad(mass, (0, self._blocks - mass.shape[-1])).flatten(1)
        return _first(flat, _covering(flat, choice.threshold)).unflatten(1, (units.count, -1))

    def elements(self) -> int:
        """Returns how many numbers a unit's choice takes."""
        return self._heads * self._blocks * 4

    def keep(self, units: Units) -> torch.Tensor:
        """Returns which blocks [h, u, b] are attended to."""
        blocks = -(-units.end // BLOCK)
        least, seen = floor(units, blocks, self._columns.device)
        behind = units.begins(least.device)[:, None] // BLOCK - torch.arange(
            blocks, device=least.device)
        slash = self._along[:, behind.clamp(min=0)] & (behind >= 0)
        found = least | slash | self._columns[:, None, :blocks]
        if self._map is not None:
            first = (units.first - self._units.first) // units.rows
            mapped = self._map[:, first:first + units.count, :blocks]
            found = found | (mapped & self.aware[:, None, None])
        return found & seen


def _by_block(weight):
    """Sums [h, n] over blocks [h, b]."""
    short = -weight.shape[-1] % BLOCK
    return torch.nn.functional.pad(weight, (0, short)).unflatten(-1, (-1, BLOCK)).sum(-1)


def _first(weight, count):
    """Returns bool like weight [h, n]: the count[h] largest of each row."""
    order = weight.argsort(dim=-1, descending=True, stable=True)
    place = torch.arange(weight.shape[-1], device=weight.device)
    return torch.zeros_like(weight, dtype=torch.bool).scatter_(
        -1, order, (place < count[:, None]).expand_as(weight))
