"""vAttention's rule (Desai et al., 2025): top keys, and a random sample whose size is verified.

The largest keys are attended as they are. Of the rest a few are drawn; their spread tells how many
must be drawn so that the weights' sum errs by more than epsilon with a chance below delta.
"""

import torch

from ..system import (VALUE_BYTES, Budget, Choice, Step, System, group_weights, page_bytes,
                      read_of, steady, top_tokens)

EPSILON, DELTA = 0.1, 0.1
NORMAL_QUANTILE = 1.645  # of a chance of DELTA, on both sides
FIRST_SAMPLE = 0.01      # of the rest


class VAttention(System):
    """Top keys are an oracle's, as in the paper's study of the rule; the bytes of its index are
    those of all keys. A KV head draws one sample for its group, as large as its neediest query
    head wants, at most a quarter of the rest."""
    name = "vAttention's rule"

    def __init__(self, budget: Budget, epsilon: float = EPSILON, seed: int = 1):
        self._budget, self._epsilon, self._seed = budget, epsilon, seed

    def build(self, layer, keys, values, queries, grown=0):
        return keys.shape

    def choose(self, index, step: Step) -> Choice:
        heads, tokens, width = index
        device = step.logits.device
        chosen = top_tokens(group_weights(step.logits), self._budget.tokens(tokens))
        chosen |= steady(tokens, device)
        generator = torch.Generator(device).manual_seed(self._seed + step.layer)
        # Keys in the order of these are a random sample, of whatever size.
        order = torch.rand(chosen.shape, generator=generator, device=device)
        rest = (~chosen).sum(-1, keepdim=True)
        first = (order < FIRST_SAMPLE) & ~chosen
        share = self._needed(step.logits, chosen, first, rest)
        sampled = (order < share) & ~chosen
        log_weights = torch.where(sampled, -share.log(), torch.zeros(())
                                  .to(device))[:, :, None].expand_as(step.logits)
        exact = chosen | sampled
        read = page_bytes((exact & ~steady(tokens, device)).sum((1, 2)), width)
        return Choice(exact[:, :, None], read_of(heads * tokens * width * VALUE_BYTES, read),
                      log_weights=log_weights)

    def _needed(self, logits, chosen, first, rest):
        """Returns the share of the rest that must be drawn: [b, h, 1]."""
        top = logits.amax(-1, keepdim=True)
        weights = (logits - top).exp()
        known = (weights * chosen[:, :, None]).sum(-1)
        inside = first[:, :, None]
        count = inside.sum(-1).clamp(min=2)
        mean = (weights * inside).sum(-1) / count
        spread = ((weights - mean[..., None]).square() * inside).sum(-1) / (count - 1)
        total = known + rest * mean
        # The sum over the rest from n draws has the variance rest^2 spread / n.
        draws = (NORMAL_QUANTILE * rest / (self._epsilon * total)).square() * spread
        share = (draws.amax(2, keepdim=True) / rest[..., :1].clamp(min=1)).clamp(
            FIRST_SAMPLE, 0.25)
        return share
