"""Twilight (Lin et al., 2025): top-p instead of top-k.

A selector proposes many keys (Quest's pages, a quarter of the context); their weights are estimated
from keys of 4 bits; the fewest of them that together weigh p are attended.
"""

import torch

from ..system import (VALUE_BYTES, Choice, Step, System, page_bytes, read_of, scores, steady)
from .quest import PAGE, bounds, extremes

PROPOSED = 0.25
MASS = 0.95
BITS = 4


def quantise(keys: torch.Tensor, bits: int = BITS) -> torch.Tensor:
    """Returns keys [..., d] as they come back from `bits` bits with a scale and an offset each."""
    low, high = keys.amin(-1, keepdim=True), keys.amax(-1, keepdim=True)
    scale = ((high - low) / (2 ** bits - 1)).clamp(min=1e-12)
    return ((keys - low) / scale).round() * scale + low


class Twilight(System):
    """Prunes by query head; a key that any head of the group keeps is read."""
    name = "Twilight"

    def __init__(self, mass: float = MASS, proposed: float = PROPOSED):
        self._mass, self._proposed = mass, proposed

    def key(self):
        return "twilight"

    def build(self, layer, keys, values, queries, grown=0):
        return keys.shape, *extremes(keys, PAGE), quantise(keys)

    def choose(self, index, step: Step) -> Choice:
        (heads, tokens, width), low, high, coarse = index
        ranking = bounds(step.queries, low, high).softmax(-1).amax(2)
        pages = max(1, round(self._proposed * ranking.shape[-1]))
        best = ranking.topk(pages, dim=-1).indices
        proposed = torch.zeros_like(ranking, dtype=torch.bool).scatter_(-1, best, True)
        kept = steady(tokens, ranking.device)
        proposed = proposed.repeat_interleave(PAGE, -1)[..., :tokens] | kept
        logits = scores(step.queries, coarse).masked_fill(~proposed[:, :, None], -1e30)
        weights = logits.softmax(-1)
        sorted_weights, order = weights.sort(-1, descending=True)
        taken = sorted_weights.cumsum(-1) - sorted_weights < self._mass
        chosen = torch.zeros_like(taken).scatter_(-1, order, taken).any(2)
        read = page_bytes((chosen & ~kept).sum((1, 2)), width)
        index_bytes = (2.0 * low.numel() * VALUE_BYTES
                       + proposed.sum((1, 2)) * (width * BITS / 8 + 4))
        return Choice((chosen | kept)[:, :, None], read_of(index_bytes, read))
