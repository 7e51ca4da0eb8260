"""The wave index: RetroInfer's as in the paper, the product's, and candidates for a better one.

Clustering and ranking are those of tools/needle/wave.py, the reference of the product. What a
candidate changes is a field of `Options`; all compose.
"""

import dataclasses
import math

import torch

from tools.needle import wave

from ..system import LOCAL, SINK, Budget, Choice, Estimate, Step, System, page_bytes, read_of

PAGE_TOKENS = wave.PAGE_TOKENS
PAPER = wave.PAPER
PRODUCT = wave.DEFAULT


@dataclasses.dataclass(frozen=True)
class Options:
    """What a candidate changes.

    retrieval: factor of the retrieval budget, beside the row's.
    segment: tokens of a segment of the prompt; 0 clusters the whole document at once.
    joint: one budget for all KV heads of a layer, given to those whose clusters weigh most.
    value_norm: a cluster's rank counts the norm of its mean value, too.
    page_budget: the budget counts pages and not clusters; with `joint`, those of all heads.
    rest: clusters in neither zone count by their own mass and the mean value of so many neighbours
        (a multiple of which a segment has); 0 leaves them out.
    index_bits: 8 keeps centroids and value sums in 8 bits with a scale each; 16 as the product.
    unseen: 0, or the share of the mass that may be left out of the retrieval zone: it grows by
        head until less is predicted, up to `cap` times the budget.
    """
    retrieval: float = 1.0
    segment: int = wave.PREFILL_SEGMENT
    joint: bool = False
    value_norm: bool = False
    page_budget: bool = False
    rest: int = 0
    index_bits: int = 16
    unseen: float = 0.0
    cap: float = 8.0


class Wave(System):
    """Tripartite attention: steady, retrieval and estimation zone."""

    def __init__(self, name: str, settings: wave.Settings, budget: Budget | None = None,
                 options: Options = Options()):
        self.name = name
        self.settings, self.options = settings, options
        self._factor = (budget or Budget()).factor * options.retrieval

    def key(self):
        s = self.settings
        return ("wave", s.centre, s.euclidean, s.start, s.iterations, s.cluster_tokens, s.largest,
                self.options.segment, self.options.index_bits)

    def build(self, layer, keys, values, queries, grown=0):
        sizes = segments(keys.shape[1] - grown, self.options.segment)
        sizes += [wave.REST_SEGMENT] * (grown // wave.REST_SEGMENT)
        index = wave.build_index(keys, values, sizes, self.settings)
        if self.options.index_bits == 8:
            index.centroids = eight_bits(index.centroids)
            index.value_sums = eight_bits(index.value_sums)
        return index

    def zones(self, index: wave.Index, step: Step):
        """Returns logits [b, h, g, c], and bool [b, h, c] of the retrieval and estimation zone."""
        logits, ranking = wave.rank(index, step.queries, self.settings)
        if self.options.value_norm:
            means = index.value_sums / index.sizes.clamp(min=1)[..., None]
            ranking = ranking * means.norm(dim=-1)
        retrieved, estimated = self._budgets(index, step.layer)
        if self.options.unseen:
            zone = self._until_seen(index, logits, ranking, retrieved)
        elif self.options.page_budget:
            pages = retrieved * self.settings.cluster_tokens // PAGE_TOKENS
            zone = (_jointly_by_pages if self.options.joint else _by_pages)(index, ranking, pages)
        elif self.options.joint:
            zone = _jointly(ranking, retrieved)
        else:
            zone = _best(ranking, retrieved)
        rest = ranking.masked_fill(zone, -math.inf)
        others = _best(rest, min(estimated, rest.shape[-1])) & ~zone & (index.sizes > 0)
        return logits, zone, others

    def _budgets(self, index, layer):
        retrieved, estimated = wave.budgets(index.sizes.shape[1], self.settings, layer)
        wanted = min(index.sizes.shape[1], math.ceil(retrieved * self._factor))
        return wanted, estimated if self.settings.estimation_ratio > 0 else 0

    def choose(self, index: wave.Index, step: Step) -> Choice:
        logits, zone, others = self.zones(index, step)
        exact = torch.cat([zone, torch.ones_like(zone[..., :1])], -1).gather(
            -1, index.owner.expand(step.rows, -1, -1))
        estimates = [Estimate(logits.masked_fill(~others[:, :, None], -math.inf),
                              index.value_sums, index.sizes)]
        coarse_bytes = 0.0
        if self.options.rest:
            left = ~(zone | others) & (index.sizes > 0)
            estimate, coarse_bytes = self._coarse(index, logits, left)
            estimates.append(estimate)
        return Choice(exact[:, :, None], self._read(index, zone, others, coarse_bytes), estimates)

    def _coarse(self, index, logits, left):
        """Estimates what is left by each cluster's mass and its neighbourhood's mean value."""
        width = min(self.options.rest, index.sizes.shape[1])
        mass = (logits + index.sizes.clamp(min=1).log()[:, None]).masked_fill(
            ~left[:, :, None], -math.inf)
        if mass.shape[-1] % width:
            raise ValueError(f"{mass.shape[-1]} clusters in neighbourhoods of {width}: "
                             "needs a divisor")
        grouped = mass.unflatten(-1, (-1, width)).logsumexp(-1)
        sums = index.value_sums.unflatten(1, (-1, width)).sum(2)
        sizes = index.sizes.unflatten(1, (-1, width)).sum(2)
        means = sums / sizes.clamp(min=1)[..., None]
        return Estimate(grouped, means, None), means.numel() * self.options.index_bits / 8

    def _read(self, index, zone, others, coarse_bytes):
        d, s = index.centroids.shape[-1], self.settings
        vector = d * self.options.index_bits // 8 + (2 if self.options.index_bits == 8 else 0)
        scalars = 4 + 4 * bool(s.radius or s.deviation or s.moment) + 2 * self.options.value_norm
        pages = (index.sizes / PAGE_TOKENS).ceil()
        return read_of(float(index.sizes.numel() * (vector + scalars)),
                       page_bytes((zone * pages).sum((1, 2)) * PAGE_TOKENS, d),
                       others.sum((1, 2)) * float(vector) + coarse_bytes)

    def mass(self, index, logits, zone):
        """Returns the predicted share of the clusters' mass outside the zone: [b, h, g]."""
        weighed = logits + index.sizes.clamp(min=1).log()[:, None]
        return weighed.softmax(-1).masked_fill(zone[:, :, None], 0).sum(-1)

    def _until_seen(self, index, logits, ranking, least):
        share = (logits + index.sizes.clamp(min=1).log()[:, None]).softmax(-1).amax(2)
        share = share / share.sum(-1, keepdim=True)
        order = ranking.argsort(-1, descending=True)
        before = share.gather(-1, order).cumsum(-1) - share.gather(-1, order)
        place = torch.arange(order.shape[-1], device=order.device)
        taken = (before < 1 - self.options.unseen) & (place < self.options.cap * least)
        return torch.zeros_like(taken).scatter_(-1, order, taken)


def segments(tokens: int, size: int) -> list[int]:
    """Returns the sizes of the segments of a document: the product's plan for another size."""
    left = tokens - SINK - LOCAL
    rest = wave.REST_SEGMENT
    if left < rest:
        raise ValueError(f"a document of {tokens} tokens has no segment: needs at least "
                         f"{SINK + LOCAL + rest}")
    size = size or left // rest * rest
    whole, left = divmod(left, size)
    return [size] * whole + [rest] * (left // rest)


def eight_bits(x: torch.Tensor) -> torch.Tensor:
    """Returns vectors [..., d] as integers of 8 bits with a scale each would give them back."""
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-12)
    return (x / scale).round() * scale


def _best(ranking, count):
    best = ranking.topk(count, dim=-1, sorted=False).indices
    return torch.zeros_like(ranking, dtype=torch.bool).scatter_(-1, best, True)


def _jointly(ranking, count):
    """The best of all heads together, but at least a quarter of the budget for each."""
    heads = ranking.shape[1]
    sure = _best(ranking, max(1, count // 4))
    order = ranking.masked_fill(sure, -math.inf).flatten(1)
    left = heads * (count - max(1, count // 4))
    return sure | _best(order, left).unflatten(1, ranking.shape[1:])


def _by_pages(index, ranking, budget):
    """The best clusters until their pages reach the budget."""
    order = ranking.argsort(-1, descending=True)
    pages = (index.sizes / PAGE_TOKENS).ceil().expand_as(ranking).gather(-1, order)
    taken = pages.cumsum(-1) <= budget
    return torch.zeros_like(taken).scatter_(-1, order, taken)


def _jointly_by_pages(index, ranking, budget):
    """The best of all heads together until their pages reach the heads' budgets."""
    order = ranking.flatten(1).argsort(-1, descending=True)
    pages = (index.sizes / PAGE_TOKENS).ceil().flatten().expand_as(order).gather(-1, order)
    taken = pages.cumsum(-1) <= budget * ranking.shape[1]
    return torch.zeros_like(taken).scatter_(-1, order, taken).unflatten(1, ranking.shape[1:])
