"""Exact top-k: an oracle that knows every weight and attends the largest ones."""

from ..system import (VALUE_BYTES, Budget, Choice, Step, System, group_weights, page_bytes,
                      read_of, steady, top_tokens)


class TopK(System):
    """The keys with the largest weights of a KV head, by the largest of its query heads.

    What it would have to read to know them is every key: those are the bytes of its index.
    """
    name = "exact top-k"

    def __init__(self, budget: Budget):
        self._budget = budget

    def build(self, layer, keys, values, queries, grown=0):
        return keys.shape

    def choose(self, index, step: Step) -> Choice:
        heads, tokens, width = index
        chosen = top_tokens(group_weights(step.logits), self._budget.tokens(tokens))
        pages = page_bytes(chosen.sum((1, 2)), width)
        exact = chosen | steady(tokens, chosen.device)
        return Choice(exact[:, :, None], read_of(heads * tokens * width * VALUE_BYTES, pages))
