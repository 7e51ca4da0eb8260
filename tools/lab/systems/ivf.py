"""IVF-Flat over keys: lists around centroids of the whole document, the nearest ones searched."""

import math

import torch
import torch.nn.functional as F

from ..system import (VALUE_BYTES, Budget, Choice, Step, System, group_weights, page_bytes,
                      read_of, steady, top_tokens)

ROUNDS = 10


def lists_of(tokens: int) -> int:
    """Returns the number of lists that faiss recommends: 4 sqrt(n)."""
    return max(1, int(4 * math.sqrt(tokens)))


def train(keys: torch.Tensor, count: int, rounds: int = ROUNDS):
    """Clusters keys [h, t, d] by direction; returns centroids [h, c, d] and lists [h, t]."""
    stride = keys.shape[1] / count
    at = (torch.arange(count, device=keys.device) * stride).long()
    centres = F.normalize(keys[:, at], dim=-1)
    for _ in range(rounds):
        owner = _nearest(keys, centres)
        sums = torch.zeros_like(centres).scatter_add_(1, owner[..., None].expand_as(keys), keys)
        moved = F.normalize(sums, dim=-1)
        centres = torch.where(sums.square().sum(-1, keepdim=True) > 0, moved, centres)
    return centres, _nearest(keys, centres)


def _nearest(keys, centres):
    return torch.cat([(part @ centres.transpose(1, 2)).argmax(-1)
                      for part in keys.split(16384, dim=1)], 1)


class Ivf(System):
    """Searches the best lists of each KV head (a share of all), and takes the best keys of those.

    To choose among the keys of a list it reads them: they count as bytes of the index, and the
    keys that are attended are counted with their values.
    """
    name = "IVF-Flat"

    def __init__(self, budget: Budget, probes: float = 0.05):
        self._budget, self._probes = budget, probes

    def key(self):
        return "ivf"

    def build(self, layer, keys, values, queries, grown=0):
        centres, owner = train(keys, lists_of(keys.shape[1]))
        sizes = torch.zeros(centres.shape[:2], device=keys.device)
        sizes.scatter_add_(1, owner, torch.ones_like(owner, dtype=torch.float32))
        return keys.shape, centres, owner, sizes

    def choose(self, index, step: Step) -> Choice:
        (heads, tokens, width), centres, owner, sizes = index
        ranking = (step.queries @ centres.transpose(1, 2)).amax(2)
        probed = top_tokens(ranking, math.ceil(self._probes * self._budget.factor
                                               * centres.shape[1]))
        inside = probed.gather(-1, owner.expand(step.rows, -1, -1))
        weights = group_weights(step.logits.masked_fill(~inside[:, :, None], -1e30))
        chosen = top_tokens(weights, self._budget.tokens(tokens)) & inside
        searched = (probed * sizes).sum((1, 2))
        index_bytes = (centres.numel() + searched * width) * VALUE_BYTES
        exact = chosen | steady(tokens, chosen.device)
        return Choice(exact[:, :, None],
                      read_of(index_bytes, page_bytes(chosen.sum((1, 2)), width)))
