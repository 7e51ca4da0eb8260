"""InfiniGen (Lee et al., 2024): a few dimensions of a predicted query tell which keys to fetch.

The query of a layer is predicted from the input of the layer before. Queries and keys are turned
so that few dimensions hold most of their product, and those are what is read to rank.
"""

import torch

from ..system import (VALUE_BYTES, Budget, Choice, Step, System, page_bytes, read_of, steady)

KEPT_DIMENSIONS = 0.3  # partial weight ratio of the paper
ALPHA = 4.0            # keys within this of the largest logit are fetched, as the paper has it


class InfiniGen(System):
    """The first layer has none before it, and ranks with its own query. So does every layer where
    `predicts` is false: the guess needs layers whose inputs resemble each other, which a model of
    five layers has not."""
    name = "InfiniGen"

    def __init__(self, budget: Budget, kept: float = KEPT_DIMENSIONS, alpha: float = ALPHA,
                 predicts: bool = True):
        self._budget, self._kept, self._alpha = budget, kept, alpha
        self._predicts = predicts

    def key(self):
        return "infinigen", self._kept

    def build(self, layer, keys, values, queries, grown=0):
        width = keys.shape[-1]
        asked = queries.flatten(1, 2)
        # The singular vectors of the queries, from their second moments.
        _, turn = torch.linalg.eigh(asked.transpose(1, 2) @ asked)
        weight = (asked @ turn).abs().sum(1) + (keys @ turn).abs().sum(1)
        best = weight.topk(max(1, round(self._kept * width)), dim=-1).indices
        turn = turn.gather(2, best[:, None].expand(-1, width, -1))
        return keys.shape, turn, keys @ turn

    def choose(self, index, step: Step) -> Choice:
        (heads, tokens, width), turn, partial = index
        guess = step.predicted if self._predicts else None
        queries = step.queries if guess is None else guess
        logits = (queries @ turn) @ partial.transpose(1, 2) * width ** -0.5
        # As many keys for all heads of a row, by the mean of what lies within alpha of the top.
        near = (logits > logits.amax(-1, keepdim=True) - self._alpha).sum(-1).float().mean((1, 2))
        most = self._budget.tokens(tokens)
        count = near.ceil().long().clamp(1, most)
        order = logits.softmax(-1).amax(2).topk(most, dim=-1).indices
        taken = torch.arange(most, device=order.device)[None] < count[:, None]
        chosen = torch.zeros(step.rows, heads, tokens, dtype=torch.bool, device=order.device)
        chosen.scatter_(-1, order, taken[:, None].expand(-1, heads, -1))
        pages = page_bytes(chosen.sum((1, 2)), width)
        exact = chosen | steady(tokens, chosen.device)
        return Choice(exact[:, :, None], read_of(float(partial.numel() * VALUE_BYTES), pages))
