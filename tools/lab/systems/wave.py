"""The wave index: RetroInfer's as in the paper, the product's, and candidates for a better one.

Clustering and ranking are those of tools/needle/wave.py, the reference of the product. What a
candidate changes is a field of `Options`; all compose.
"""

import dataclasses
import math

import torch

from tools.needle import wave

from ..system import (LOCAL, SINK, Budget, Choice, Estimate, Step, System, page_bytes, read_of,
                      scores)

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
    page_tokens: of a page.
    packed: clusters follow each other without gaps, so a page may hold parts of two.
    kv_bits: 16, or 8 with an f16 scale for each key and value behind its page's.
    high_halves: share of the page budget for what reads only the high four bits of 8-bit keys and
        values: twice as many tokens for it.
    rest: clusters in neither zone count by their own mass and the mean value of so many neighbours
        (a multiple of which a segment has); 0 leaves them out.
    index_bits: 8 or 4 keep centroids and value sums in so many with a scale each; 16 as the product.
    sum_bits: the same for value sums; 0: as index_bits.
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
    sum_bits: int = 0
    page_tokens: int = PAGE_TOKENS
    packed: bool = False
    kv_bits: int = 16
    high_halves: float = 0.0
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
                self.options.segment, self.options.index_bits, self._sum_bits,
                bool(self.options.high_halves))

    @property
    def _sum_bits(self):
        return self.options.sum_bits or self.options.index_bits

    def build(self, layer, keys, values, queries, grown=0):
        sizes = segments(keys.shape[1] - grown, self.options.segment)
        sizes += [wave.REST_SEGMENT] * (grown // wave.REST_SEGMENT)
        index = wave.build_index(keys, values, sizes, self.settings)
        if self.options.index_bits < 16:
            index.centroids = few_bits(index.centroids, self.options.index_bits)
        if self._sum_bits < 16:
            index.value_sums = few_bits(index.value_sums, self._sum_bits)
        if self.options.high_halves:
            index.high_keys, index.high_values = high_half(keys), high_half(values)
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
            budget = self._page_budget(retrieved)
            choose = _jointly_by_pages if self.options.joint else _by_pages
            zone = choose(self._pages(index), ranking, budget)
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

    def _page_budget(self, retrieved):
        tokens = retrieved * self.settings.cluster_tokens * (1 - self.options.high_halves)
        return tokens / self.options.page_tokens

    def _pages(self, index):
        """Pages of each cluster; where they are packed, what it takes up of them."""
        pages = index.sizes / self.options.page_tokens
        return pages if self.options.packed else pages.ceil()

    def _tokens_of(self, index, zone, step):
        steady = torch.ones_like(zone[..., :1])
        return torch.cat([zone, steady], -1).gather(-1, index.owner.expand(step.rows, -1, -1))

    def _halves(self, index, step, zone, ranking):
        """Chooses what is read by high halves behind the zone; returns it and its estimate."""
        retrieved, _ = self._budgets(index, step.layer)
        tokens = 2 * retrieved * self.settings.cluster_tokens * self.options.high_halves
        choose = _jointly_by_pages if self.options.joint else _by_pages
        halves = choose(self._pages(index), ranking.masked_fill(zone, -math.inf),
                        tokens / self.options.page_tokens) & ~zone
        within = self._tokens_of(index, halves, step)
        within[..., index.owner[0] == index.sizes.shape[1]] = False
        logits = scores(step.queries, index.high_keys)
        return halves, Estimate(logits.masked_fill(~within[:, :, None], -math.inf),
                                index.high_values, None)

    def choose(self, index: wave.Index, step: Step) -> Choice:
        logits, zone, others = self.zones(index, step)
        exact = self._tokens_of(index, zone, step)
        estimates, halves = [], None
        if self.options.high_halves:
            _, ranking = wave.rank(index, step.queries, self.settings)
            halves, estimate = self._halves(index, step, zone, ranking)
            others &= ~halves
            estimates.append(estimate)
        estimates += [Estimate(logits.masked_fill(~others[:, :, None], -math.inf),
                              index.value_sums, index.sizes)]
        coarse_bytes = 0.0
        if self.options.rest:
            left = ~(zone | others) & (index.sizes > 0)
            if halves is not None:
                left &= ~halves
            estimate, coarse_bytes = self._coarse(index, logits, left)
            estimates.append(estimate)
        read = self._read(index, zone, others, coarse_bytes)
        if halves is not None:
            read["pages"] = read["pages"] + self._page_bytes(index, halves) / 2
        return Choice(exact[:, :, None], read, estimates)

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
        return Estimate(grouped, means, None), means.numel() * self._sum_bits / 8

    def _read(self, index, zone, others, coarse_bytes):
        d, s = index.centroids.shape[-1], self.settings
        vector, sums = (d * bits // 8 + (2 if bits < 16 else 0)
                        for bits in (self.options.index_bits, self._sum_bits))
        scalars = 4 + 4 * bool(s.radius or s.deviation or s.moment) + 2 * self.options.value_norm
        return read_of(float(index.sizes.numel() * (vector + scalars)),
                       self._page_bytes(index, zone), others.sum((1, 2)) * float(sums)
                       + coarse_bytes)

    def _page_bytes(self, index, zone):
        """Bytes of the pages of a zone [b, h, c]: [b]."""
        if self.options.packed:
            count = _touched(index, zone, self.options.page_tokens)
        else:
            count = (zone * self._pages(index)).sum((1, 2))
        tokens, d = self.options.page_tokens, index.centroids.shape[-1]
        if self.options.kv_bits == 16:
            return page_bytes(count * tokens, d)
        return count * (2 * (tokens * d + -(-2 * tokens // 16) * 16))

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


def few_bits(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Returns vectors [..., d] as integers of so many bits with a scale each give them back."""
    most = 2 ** (bits - 1) - 1
    scale = (x.abs().amax(-1, keepdim=True) / most).clamp(min=1e-12)
    return (x / scale).round() * scale


def high_half(x: torch.Tensor) -> torch.Tensor:
    """Returns vectors [..., d] as the high four bits of their 8-bit form give them back."""
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-12)
    return (16 * ((x / scale).round() / 16).floor() + 7.5) * scale


def _touched(index, zone, page_tokens):
    """Pages that the clusters of a zone [b, h, c] lie in, packed by number: [b]."""
    end = index.sizes.cumsum(-1).long()
    begin = end - index.sizes.long()
    first, last = begin // page_tokens, (end - 1).clamp(min=0) // page_tokens + 1
    marks = torch.zeros(*zone.shape[:2], int(end.max()) // page_tokens + 2, device=zone.device)
    here = (zone & (index.sizes > 0)).float()
    marks.scatter_add_(-1, first.expand(zone.shape), here)
    marks.scatter_add_(-1, last.expand(zone.shape), -here)
    return (marks.cumsum(-1) > 0.5).sum((1, 2)).float()


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


def _by_pages(sizes, ranking, budget):
    """The best clusters until their pages, [h, c], reach the budget."""
    order = ranking.argsort(-1, descending=True)
    pages = sizes.expand_as(ranking).gather(-1, order)
    taken = pages.cumsum(-1) <= budget
    return torch.zeros_like(taken).scatter_(-1, order, taken)


def _jointly_by_pages(sizes, ranking, budget):
    """The best of all heads together until their pages reach the heads' budgets."""
    order = ranking.flatten(1).argsort(-1, descending=True)
    pages = sizes.flatten().expand_as(order).gather(-1, order)
    taken = pages.cumsum(-1) <= budget * ranking.shape[1]
    return torch.zeros_like(taken).scatter_(-1, order, taken).unflatten(1, ranking.shape[1:])
