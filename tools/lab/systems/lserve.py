"""LServe's page sparsity (Yang et al., 2025): pages of 64 tokens, ranked by their best part."""

import torch

from ..system import (VALUE_BYTES, Budget, Choice, Step, System, page_bytes, read_of, steady)
from .quest import bounds, extremes

PAGE = 64
PART = 16
REUSE = 4


class LServe(System):
    """A page is as good as the best of its four parts of 16 tokens, each ranked as Quest does. Four
    tokens in a row use one choice. LServe also makes half of the heads static; that is not here."""
    name = "LServe pages"

    def __init__(self, budget: Budget):
        self._budget = budget
        self._calls: dict[int, int] = {}
        self._last: dict[int, torch.Tensor] = {}

    def build(self, layer, keys, values, queries, grown=0):
        # What a page lacks at the end takes part as copies of the last token.
        return keys.shape, *extremes(_fill(keys), PART)

    def choose(self, index, step: Step) -> Choice:
        (heads, tokens, width), low, high = index
        if step.sequential:
            first = torch.arange(step.rows, device=low.device) // REUSE * REUSE
            chosen = self._rank(step.queries[::REUSE], low, high, tokens)[first // REUSE]
        else:
            call = self._calls.get(step.layer, 0)
            self._calls[step.layer] = call + 1
            kept = self._last.get(step.layer)
            # Another batch, or another document, begins anew.
            shape = (step.rows, heads, low.shape[1] * PART // PAGE)
            if call % REUSE == 0 or kept is None or kept.shape != shape:
                kept = self._last[step.layer] = self._rank(step.queries, low, high, tokens)
            chosen = kept
        exact = chosen.repeat_interleave(PAGE, -1)[..., :tokens]
        read = page_bytes(exact.sum((1, 2)), width)
        exact = exact | steady(tokens, exact.device)
        index_bytes = 2.0 * low.numel() * VALUE_BYTES / REUSE
        return Choice(exact[:, :, None], read_of(index_bytes, read))

    def _rank(self, queries, low, high, tokens):
        parts = bounds(queries, low, high).softmax(-1).amax(2)
        ranking = parts.unflatten(-1, (-1, PAGE // PART)).amax(-1)
        pages = -(-self._budget.tokens(tokens) // PAGE)
        best = ranking.topk(min(pages, ranking.shape[-1]), dim=-1).indices
        return torch.zeros_like(ranking, dtype=torch.bool).scatter_(-1, best, True)


def _fill(keys):
    short = -keys.shape[1] % PAGE
    return torch.cat([keys, keys[:, -1:].expand(-1, short, -1)], 1) if short else keys
