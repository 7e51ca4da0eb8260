"""Quest (Tang et al., 2024): pages of 16 tokens, ranked by a bound from their keys' extremes."""

import torch

from ..system import (VALUE_BYTES, Budget, Choice, Step, System, page_bytes, read_of, steady)

PAGE = 16


def extremes(keys: torch.Tensor, page: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the least and largest element of each page of keys [h, t, d]: twice [h, c, d].

    A last page that is not full counts what it has.
    """
    short = -keys.shape[1] % page
    if short:
        keys = torch.cat([keys, keys[:, -1:].expand(-1, short, -1)], 1)
    pages = keys.unflatten(1, (-1, page))
    return pages.amin(2), pages.amax(2)


def bounds(queries: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Returns the largest logit that any key inside the extremes could have: [b, h, g, c]."""
    b, h, g, d = queries.shape
    flat = queries.transpose(0, 1).reshape(h, b * g, d)
    # The larger of q*low and q*high is q*high where q is positive and q*low elsewhere.
    bound = flat.clamp(min=0) @ high.transpose(1, 2) + flat.clamp(max=0) @ low.transpose(1, 2)
    return bound.mul_(d ** -0.5).view(h, b, g, -1).transpose(0, 1)


class Quest(System):
    """The pages with the largest bounds. Query heads that share a KV head choose together, by the
    largest of their softmaxes of the bounds. The paper leaves its first two layers dense; here no
    layer is, as these models have five."""
    name = "Quest"

    def __init__(self, budget: Budget, page: int = PAGE):
        self._budget = budget
        self._page = page

    def key(self):
        return "quest", self._page

    def build(self, layer, keys, values, queries, grown=0):
        return keys.shape, *extremes(keys, self._page)

    def choose(self, index, step: Step) -> Choice:
        (heads, tokens, width), low, high = index
        ranking = bounds(step.queries, low, high).softmax(-1).amax(2)
        pages = -(-self._budget.tokens(tokens) // self._page)
        best = ranking.topk(min(pages, ranking.shape[-1]), dim=-1).indices
        chosen = torch.zeros_like(ranking, dtype=torch.bool).scatter_(-1, best, True)
        exact = chosen.repeat_interleave(self._page, -1)[..., :tokens]
        read = page_bytes(exact.sum((1, 2)), width)
        exact = exact | steady(tokens, exact.device)
        return Choice(exact[:, :, None], read_of(2.0 * low.numel() * VALUE_BYTES, read))
