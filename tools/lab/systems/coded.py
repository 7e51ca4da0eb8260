"""The wave index with codes of tokens: clusters are candidates, pages are chosen by their tokens.

The best clusters by the index are candidates. Each of their tokens has a code: the residual of its
key to the centroid, turned by a random rotation, one bit (or a few) a channel, and a scale that
makes the inner product with a query unbiased (RaBitQ, Gao and Long 2024, arXiv 2405.12497). Codes
give each token a logit; pages are chosen by the mass of their tokens. What a candidate holds
beside the chosen pages is estimated from the same logits and the cluster's mean value.
"""

import dataclasses
import math

import torch

from tools.needle import wave

from ..system import Choice, Estimate, Step, page_bytes, read_of
from .wave import Options, Wave, few_bits


@dataclasses.dataclass(frozen=True)
class Codes:
    """How tokens are coded and chosen.

    unit: "token", or "page": then a page has one code, of the mean of its keys. bits: of a channel of
    a residual. candidates: share of the clusters whose codes are read.
    pages: share of the tokens that is attended exactly, in pages. ordered: tokens of a cluster lie
    in its pages along their main direction, instead of by position. remainder: what a candidate
    holds beside its chosen pages is estimated by "codes", or by the "centroid".
    """
    unit: str = "token"
    bits: int = 1
    candidates: float = 0.12
    pages: float = 0.018
    least_pages: int = 256
    ordered: bool = False
    remainder: str = "codes"


class Coded(Wave):
    """Wave's clusters as candidates, and pages by codes."""

    def __init__(self, name: str, settings: wave.Settings, codes: Codes,
                 options: Options = Options()):
        super().__init__(name, settings, options=options)
        self.codes = codes

    def key(self):
        return super().key() + ("coded", self.codes.unit, self.codes.bits, self.codes.ordered,
                                self.options.page_tokens)

    def build(self, layer, keys, values, queries, grown=0):
        index = super().build(layer, keys, values, queries, grown)
        h, t, d = keys.shape
        clusters = index.sizes.shape[1]
        centres = torch.cat([index.centroids, torch.zeros(h, 1, d, device=keys.device)], 1)
        residual = keys - centres.gather(1, index.owner[..., None].expand(-1, -1, d))
        index.rotation = _rotation(d, keys.device)
        along = _along(residual, index.owner, clusters) if self.codes.ordered else None
        index.page, index.pages = _pages_of(index.owner, clusters, self.options.page_tokens, along)
        counts = torch.zeros(h, index.pages + 1, device=keys.device).scatter_add_(
            1, index.page, torch.ones_like(index.page, dtype=torch.float))
        index.page_sizes = counts[:, :-1]
        index.page_owner = torch.full((h, index.pages + 1), clusters, device=keys.device)
        index.page_owner.scatter_(1, index.page, index.owner)
        index.page_owner = index.page_owner[:, :-1].contiguous()
        if self.codes.unit == "page":
            sums = torch.zeros(h, index.pages + 1, d, device=keys.device).scatter_add_(
                1, index.page[..., None].expand(-1, -1, d), residual)
            residual = (sums / counts.clamp(min=1)[..., None])[:, :-1]
        turned = residual @ index.rotation
        index.codes = _coded(turned, self.codes.bits)
        index.errors = (turned - index.codes).norm(dim=-1)
        return index

    def choose(self, index: wave.Index, step: Step) -> Choice:
        logits, ranking = wave.rank(index, step.queries, self.settings)
        b, h, g, c = logits.shape
        count = max(1, math.ceil(self.codes.candidates * c))
        order = ranking.argsort(-1, descending=True)
        place = torch.empty_like(order).scatter_(
            -1, order, torch.arange(c, device=order.device).expand_as(order))
        alive = index.sizes > 0
        candidate = (place < count) & alive
        _, estimated = self._budgets(index, step.layer)
        others = (place >= count) & (place < estimated + self._budgets(index, step.layer)[0]) & alive
        if self.codes.unit == "page":
            return self._by_pages(index, step, logits, candidate, others)
        tokens = self._tokens_of_clusters(index, candidate)
        guessed = self._guessed(index, step, logits).masked_fill(~tokens[:, :, None], -math.inf)
        chosen_pages = self._chosen(index, guessed)
        taken = torch.cat([chosen_pages, torch.ones_like(chosen_pages[..., :1])], -1).gather(
            -1, index.page.expand(b, -1, -1))
        estimates = [Estimate(logits.masked_fill(~others[:, :, None], -math.inf),
                              index.value_sums, index.sizes)]
        if self.codes.remainder != "none":
            estimates.append(self._rest(index, step, logits, guessed, candidate, taken))
        return Choice(taken[:, :, None], self._bytes(index, step, candidate, others, taken),
                      estimates)

    def _by_pages(self, index, step, logits, candidate, others):
        """Pages by the mass of their own centroids; what is left is estimated page by page."""
        b, h, g, _ = logits.shape
        d = step.queries.shape[-1]
        own = torch.cat([logits, torch.full_like(logits[..., :1], -math.inf)], -1)
        own = own.gather(-1, index.page_owner[None, :, None].expand(b, -1, g, -1))
        flat = (step.queries @ index.rotation).transpose(0, 1).reshape(h, b * g, d)
        inner = (flat @ index.codes.transpose(1, 2)).view(h, b, g, -1).transpose(0, 1)
        guessed = own + inner * d ** -0.5
        none = torch.zeros_like(candidate[..., :1])
        within = torch.cat([candidate, none], -1).gather(-1, index.page_owner.expand(b, -1, -1))
        mass = (guessed + index.page_sizes.clamp(min=1).log()[:, None]).masked_fill(
            ~within[:, :, None], -math.inf)
        share = mass.softmax(-1).nan_to_num(0.0).amax(2)
        count = self._page_count(index)
        best = share.topk(min(count, share.shape[-1]), -1).indices
        chosen = torch.zeros_like(within).scatter(-1, best, True) & within
        taken = torch.cat([chosen, torch.ones_like(chosen[..., :1])], -1).gather(
            -1, index.page.expand(b, -1, -1))
        estimates = [Estimate(logits.masked_fill(~others[:, :, None], -math.inf),
                              index.value_sums, index.sizes)]
        left = mass.masked_fill(chosen[:, :, None], -math.inf)
        means = index.value_sums / index.sizes.clamp(min=1)[..., None]
        values = torch.cat([means, torch.zeros_like(means[:, :1])], 1).gather(
            1, index.page_owner[..., None].expand(-1, -1, d))
        estimates.append(Estimate(left, values, None))
        return Choice(taken[:, :, None], self._bytes(index, step, candidate, others, taken, within),
                      estimates)

    def _page_count(self, index):
        tokens = int((index.owner[0] < index.sizes.shape[1]).sum())
        return max(self.codes.least_pages,
                   round(self.codes.pages * tokens / self.options.page_tokens))

    def _tokens_of_clusters(self, index, clusters):
        none = torch.zeros_like(clusters[..., :1])
        return torch.cat([clusters, none], -1).gather(
            -1, index.owner.expand(len(clusters), -1, -1))

    def _guessed(self, index, step, logits):
        """Logits of tokens by centroid and code: [b, h, g, t]."""
        d = step.queries.shape[-1]
        turned = step.queries @ index.rotation
        own = torch.cat([logits, torch.zeros_like(logits[..., :1])], -1)
        own = own.gather(-1, index.owner[None, :, None].expand(*logits.shape[:3], -1))
        b, h, g, _ = turned.shape
        flat = turned.transpose(0, 1).reshape(h, b * g, d) @ index.codes.transpose(1, 2)
        return own + flat.view(h, b, g, -1).transpose(0, 1) * d ** -0.5

    def _chosen(self, index, guessed):
        """Pages with the largest mass by any head of the group: bool [b, h, p]."""
        weights = guessed.softmax(-1).nan_to_num(0.0)
        b, h, g, _ = weights.shape
        mass = torch.zeros(b, h, g, index.pages + 1, device=weights.device)
        mass.scatter_add_(-1, index.page[None, :, None].expand(b, -1, g, -1), weights)
        mass = mass[..., :-1].amax(2)
        count = self._page_count(index)
        best = mass.topk(min(count, mass.shape[-1]), -1).indices
        chosen = torch.zeros_like(mass, dtype=torch.bool).scatter_(-1, best, True)
        return chosen & (mass > 0)

    def _rest(self, index, step, logits, guessed, candidate, taken):
        """What candidates hold beside chosen pages, as mass and mean value."""
        means = index.value_sums / index.sizes.clamp(min=1)[..., None]
        owner = index.owner[None, :, None].expand(*guessed.shape)
        left = torch.zeros(*logits.shape[:3], logits.shape[-1] + 1, device=logits.device)
        if self.codes.remainder == "centroid":
            count = torch.zeros(*taken.shape[:2], left.shape[-1], device=left.device).scatter_add_(
                -1, index.owner.expand(*taken.shape), (~taken).float())[..., :-1]
            mass = logits + count.log()[:, :, None]
            return Estimate(mass.masked_fill(~candidate[:, :, None], -math.inf), means, None)
        # The error of a code makes exp(logit) too large on average: by half its variance.
        spread = (step.queries.norm(dim=-1) / step.queries.shape[-1])[..., None] * index.errors[:, None]
        guessed = guessed - spread.square() / 2
        top = guessed.amax(-1, keepdim=True)
        weights = (guessed - top).exp().masked_fill(taken[:, :, None], 0.0)
        left.scatter_add_(-1, owner, weights)
        mass = left[..., :-1].log() + top
        return Estimate(mass.masked_fill(~candidate[:, :, None], -math.inf), means, None)

    def _bytes(self, index, step, candidate, others, taken, within=None):
        d = index.centroids.shape[-1]
        vector, sums = (d * bits // 8 + (2 if bits < 16 else 0)
                        for bits in (self.options.index_bits, self._sum_bits))
        scalars = 4 + 4 * bool(self.settings.radius)
        units = (candidate * index.sizes if within is None else within).sum((1, 2))
        codes = units * (d * self.codes.bits / 8 + 4)
        read_sums = (others | candidate).sum((1, 2)) * float(sums)
        real = index.owner < index.sizes.shape[1]
        touched = torch.zeros(len(taken), taken.shape[1], index.pages + 1, device=taken.device)
        touched.scatter_reduce_(-1, index.page.expand(*taken.shape), (taken & real).float(), "amax")
        count = touched[..., :-1].sum((1, 2))
        tokens = self.options.page_tokens
        pages = (page_bytes(count * tokens, d) if self.options.kv_bits == 16 else
                 count * (2 * (tokens * d + -(-2 * tokens // 16) * 16)))
        return read_of(float(index.sizes.numel() * (vector + scalars)) + codes, pages, read_sums)


def _rotation(d: int, device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(17)
    return torch.linalg.qr(torch.randn(d, d, generator=generator))[0].to(device)


# Levels of Lloyd's quantiser of a normal distribution, by bits.
LEVELS = {1: (0.7979,), 2: (0.4528, 1.5104), 3: (0.2451, 0.7560, 1.3439, 2.1520)}


def _coded(turned: torch.Tensor, bits: int) -> torch.Tensor:
    """Returns residuals [..., d] as their codes give them back, unbiased along the residual."""
    norm = turned.norm(dim=-1, keepdim=True)
    if bits in LEVELS:
        levels = torch.tensor(LEVELS[bits], device=turned.device)
        scaled = turned * (turned.shape[-1] ** 0.5 / norm.clamp(min=1e-9))
        edges = (levels[1:] + levels[:-1]) / 2
        found = levels[torch.bucketize(scaled.abs().contiguous(), edges)] * scaled.sign()
    else:
        found = few_bits(turned, bits)
    inner = (found * turned).sum(-1, keepdim=True)
    return found * (norm.square() / inner.clamp(min=1e-9))


def _along(residual, owner, clusters):
    """Each token's place along the main direction of its cluster's residuals: [h, t]."""
    h, _, d = residual.shape
    wide = owner[..., None].expand(-1, -1, d)
    direction = torch.zeros(h, clusters + 1, d, device=residual.device)
    direction.scatter_(1, wide, residual)
    for _ in range(6):
        inner = (residual * direction.gather(1, wide)).sum(-1, keepdim=True)
        direction = torch.zeros_like(direction).scatter_add_(1, wide, residual * inner)
        direction = direction / direction.norm(dim=-1, keepdim=True).clamp(min=1e-9)
    return (residual * direction.gather(1, wide)).sum(-1)


def _pages_of(owner, clusters, page_tokens, along):
    """Returns the page of each token [h, t] (`pages` for the steady zone's), and how many pages."""
    h, t = owner.shape
    if along is None:
        along = torch.arange(t, device=owner.device).expand(h, -1).float()
    first = along.argsort(dim=-1, stable=True)
    order = first.gather(-1, owner.gather(-1, first).argsort(dim=-1, stable=True))
    sizes = torch.zeros(h, clusters + 1, dtype=torch.long, device=owner.device).scatter_add_(
        1, owner, torch.ones_like(owner))
    begins = sizes.cumsum(-1) - sizes
    pages = -(-sizes[:, :-1] // page_tokens)
    page_begin = pages.cumsum(-1) - pages
    total = int(pages.sum(-1).max())
    rank = torch.empty_like(owner).scatter_(1, order, torch.arange(t, device=owner.device)
                                            .expand(h, -1)) - begins.gather(1, owner)
    page = torch.cat([page_begin, page_begin[:, :1]], 1).gather(1, owner) + rank // page_tokens
    return torch.where(owner < clusters, page, torch.full_like(page, total)), total
