"""StreamingLLM (Xiao et al., 2023): the first tokens and a window of the newest ones."""

import torch

from ..system import SINK, Budget, Choice, Step, System, page_bytes, read_of


class Streaming(System):
    """Sink and window. The window is as large as the other systems' budget, and moves."""
    name = "StreamingLLM"

    def __init__(self, budget: Budget):
        self._budget = budget

    def build(self, layer, keys, values, queries, grown=0):
        return keys.shape

    def choose(self, index, step: Step) -> Choice:
        heads, tokens, width = index
        place = torch.arange(tokens, device=step.queries.device)
        window = self._budget.tokens(tokens)
        near = tokens - place[None] + step.behind[:, None] <= window
        exact = (near | (place < SINK))[:, None, None].expand(-1, heads, -1, -1)
        return Choice(exact, read_of(0.0, page_bytes(exact.sum((1, 2, 3)), width)))
