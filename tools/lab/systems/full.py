"""Full attention: every key, exactly."""

import torch

from ..system import Choice, Step, System, page_bytes, read_of


class Full(System):
    """Attends everything."""
    name = "full"

    def build(self, layer, keys, values, queries, grown=0):
        return keys.shape

    def choose(self, index, step: Step) -> Choice:
        heads, tokens, width = index
        exact = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=step.queries.device)
        pages = torch.full((step.rows,), float(page_bytes(heads * tokens, width)),
                           device=step.queries.device)
        return Choice(exact.expand(step.rows, heads, 1, tokens), read_of(0.0, pages))
