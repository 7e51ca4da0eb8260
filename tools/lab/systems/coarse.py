"""The wave index whose clusters are scored in two turns: a first pass over little, then the best.

The index is the product's (clusters, centroids and sums in int8, weight of the radius 0.25). A
first pass gives every cluster a score from few bytes; the clusters that it puts first are the
candidates, which are scored by their centroids as all clusters are otherwise. Retrieval and
estimation zone are chosen among the candidates alone. Without a second turn the first scores
stand for the logits, too.

Shapes: b rows, h KV heads, g query heads that share one, c clusters, n groups, d head_dim.
"""

import dataclasses
import math

import torch

from tools.needle import wave

from ..system import Estimate, Step
from .coded import LEVELS
from .wave import Options, Wave, few_bits, segments

INT8 = dataclasses.replace(wave.INT8, least_clusters=1)  # 3.5 %, however short the document
EIGHT_BITS = Options(index_bits=8)


@dataclasses.dataclass(frozen=True)
class First:
    """A first pass. Its subclasses say what is read, and what that makes of a query.

    candidates: share of the clusters that are scored by their centroids behind it; 0: none are, and
        the first scores are the logits. by_segment: every segment gives its share of candidates,
        so that nothing must be chosen among all. keeps: clusters that are no candidates keep their
        first scores, so that they may be estimated. again: candidates are scored by their
        centroids. retrieved_of: share of each segment's clusters of which some are retrieved. part:
        clusters of what chooses by itself instead of a segment; 0: a segment.
    """
    candidates: float = 0.25
    by_segment: bool = False
    keeps: bool = False
    again: bool = True
    retrieved_of: float = 1.0
    part: int = 0
    of_clusters = False  # whether clusters have scores of their own, to which the radius is added

    def parts(self, counts: list[int]) -> list[int] | None:
        """Returns the clusters of each part that chooses by itself; None where all are one."""
        if not self.by_segment:
            return None
        if not self.part:
            return counts
        return [size for count in counts
                for size in [self.part] * (count // self.part) + [count % self.part] if size]

    def key(self) -> "First":
        """Returns what decides the bytes that are read."""
        return dataclasses.replace(self, candidates=1.0, by_segment=False, keeps=False, again=True,
                                   retrieved_of=1.0, part=0)

    def build(self, index: wave.Index, counts: list[int]):
        """Returns what is read; counts are the clusters of each segment. Of an empty cluster
        index.filled has what changes nothing, the segment's mean."""
        raise NotImplementedError

    def score(self, made, index: wave.Index, step: Step) -> torch.Tensor:
        """Returns a logit for every cluster [b, h, g, c], which members of a group share."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Groups(First):
    """Groups of clusters, by their mean centroid and how far members are from it.

    size: clusters of a group, on average. clustered: by k-means over a segment's centroids, or
    neighbours by number. weight: of |q| times the largest distance of a member's centroid, its own
    radius' share included. estimates: groups that have no candidate count by their mean centroid
    and the sum of their members' values, all of them.
    """
    size: int = 16
    clustered: bool = True
    weight: float = 0.0
    estimates: bool = False

    def key(self):
        return dataclasses.replace(super().key(), weight=0.0, estimates=False)

    def rest(self, made, index: wave.Index, step: Step, candidate: torch.Tensor) -> Estimate:
        """Returns what stands for the groups without a candidate."""
        group, means, _ = made
        count = means.shape[1]
        sums = torch.zeros_like(means).scatter_add_(
            1, group[..., None].expand_as(index.value_sums), index.value_sums)
        sizes = means.new_zeros(means.shape[:2]).scatter_add_(1, group, index.sizes)
        taken = means.new_zeros(*candidate.shape[:2], count).scatter_reduce_(
            -1, group.expand(candidate.shape), candidate.float(), "amax") > 0
        logits = _products(step.queries, means) * step.queries.shape[-1] ** -0.5
        return Estimate(logits.masked_fill((taken | (sizes == 0))[:, :, None], -math.inf),
                        few_bits(sums, 8), sizes)

    def build(self, index, counts):
        group = groups_of(index.filled, counts, self.size, self.clustered)
        means, spread = _means(index.filled, group)
        reach = spread + INT8.radius * index.radii
        far = means.new_zeros(means.shape[:2]).scatter_reduce(1, group, reach, "amax")
        return group, few_bits(means, 8), far

    def score(self, made, index, step):
        group, means, far = made
        scale = step.queries.shape[-1] ** -0.5
        found = _products(step.queries, means)
        if self.weight:
            norms = step.queries.norm(dim=-1, keepdim=True)
            found = found + self.weight * norms * far[:, None]
        return _spread(found * scale, group)


@dataclasses.dataclass(frozen=True)
class Boxes(First):
    """Groups of clusters, by the least and largest number of every channel of their centroids.

    weight: of the half width: 1 is an upper bound of the members' scores, 0 the box's middle. top:
    share of the channels that is read, those where the query is largest. turned: channels are
    turned by a Hadamard transform first. deviations: mean and deviation of every channel instead;
    the weight is then of the deviation of the members' scores, were channels independent.
    """
    size: int = 16
    clustered: bool = True
    weight: float = 1.0
    top: float = 1.0
    turned: bool = False
    deviations: bool = False

    def key(self):
        return dataclasses.replace(super().key(), weight=0.0, top=1.0)

    def build(self, index, counts):
        group = groups_of(index.filled, counts, self.size, self.clustered)
        x = turn(index.filled) if self.turned else index.filled
        wide, count = group[..., None].expand_as(x), int(group.max()) + 1
        if self.deviations:
            mean = _means(x, group)[0]
            return group, mean, _means((x - mean.gather(1, wide)).square(), group)[0]
        shape = (x.shape[0], count, x.shape[2])
        low, high = (x.new_zeros(shape).scatter_reduce(1, wide, x, kind, include_self=False)
                     for kind in ("amin", "amax"))
        return group, (low + high) / 2, (high - low) / 2

    def score(self, made, index, step):
        group, middle, half = made
        q = turn(step.queries) if self.turned else step.queries
        if self.top < 1:
            kept = q.abs().topk(max(1, round(self.top * q.shape[-1])), dim=-1).indices
            q = torch.zeros_like(q).scatter(-1, kept, q.gather(-1, kept))
        found = _products(q, middle) + self.weight * (
            _products(q.square(), half).sqrt() if self.deviations else _products(q.abs(), half))
        return _spread(found * q.shape[-1] ** -0.5, group)


@dataclasses.dataclass(frozen=True)
class Projected(First):
    """Centroids in fewer channels: the main directions of a head's centroids, or a fixed turn's."""
    share: float = 0.25
    fitted: bool = True
    bits: int = 8
    of_clusters = True

    def build(self, index, counts):
        x, means = _centred(index.filled, counts)
        width = x.shape[-1]
        basis = (torch.linalg.eigh(x.transpose(1, 2) @ x)[1].flip(-1) if self.fitted
                 else turn(torch.eye(width, device=x.device)).expand(len(x), -1, -1))
        basis = basis[..., :max(1, round(self.share * width))].contiguous()
        return means, basis, few_bits(x @ basis, self.bits)

    def score(self, made, index, step):
        means, basis, x = made
        q = step.queries
        found = _products(q @ basis, x) + _products(q, means)
        return found * q.shape[-1] ** -0.5


@dataclasses.dataclass(frozen=True)
class Bits(First):
    """Centroids in few bits a channel with a scale each.

    centred: the segment's mean is taken away first, and added to scores. turned: by a Hadamard
    transform with fixed signs. Codes of 1 and 2 bits have the levels of a normal distribution.
    """
    bits: int = 4
    turned: bool = True
    centred: bool = True
    of_clusters = True

    def build(self, index, counts):
        x, means = _centred(index.filled, counts)
        if not self.centred:
            x, means = index.filled, torch.zeros_like(means)
        return means, coded(turn(x) if self.turned else x, self.bits)

    def score(self, made, index, step):
        means, x = made
        q = step.queries
        found = _products(turn(q) if self.turned else q, x) + _products(q, means)
        return found * q.shape[-1] ** -0.5


@dataclasses.dataclass(frozen=True)
class History(First):
    """What ranked high when it was last scored: groups of neighbours, best of the last `steps`.

    Every step scores the groups that are remembered as the best, and `turning` of all others, one
    after the other. The first row of a call scores everything.
    """
    size: int = 16
    turning: float = 1 / 16
    steps: int = 1

    def build(self, index, counts):
        return None  # nothing is read but ranks of steps before


class Coarse(Wave):
    """Wave with first passes, each over the candidates of the one before."""

    def __init__(self, name: str, *passes: First, settings: wave.Settings = INT8,
                 options: Options = EIGHT_BITS):
        super().__init__(name, settings, options=options)
        self.passes = passes

    def build(self, layer, keys, values, queries, grown=0):
        index = super().build(layer, keys, values, queries, grown)
        self.prepare(index, keys.shape[1] - grown, grown)
        return index

    def prepare(self, index: wave.Index, tokens: int, grown: int = 0) -> None:
        """Adds what this system's first pass reads to an index of a document of `tokens`."""
        sizes = segments(tokens, self.options.segment) + [wave.REST_SEGMENT] * (
            grown // wave.REST_SEGMENT)
        counts = [size // self.settings.cluster_tokens for size in sizes]
        if not hasattr(index, "made"):
            index.made, index.counts = {}, counts
            index.filled = _filled(index, counts)
        for one in self.passes:
            if one.key() not in index.made:
                index.made[one.key()] = one.build(index, counts)

    def zones(self, index, step):
        logits, ranking = wave.rank(index, step.queries, self.settings)
        if self.passes:
            logits, ranking = self._in_turns(index, step, logits, ranking)
        retrieved, estimated = self._budgets(index, step.layer)
        order = ranking.argsort(-1, descending=True)
        alive = (ranking > 0) & (index.sizes > 0)
        zone, both = (torch.zeros_like(alive).scatter_(-1, order[..., :count], True)
                      for count in (retrieved, retrieved + estimated))
        return logits, zone & alive, both & ~zone & alive

    def choose(self, index, step):
        choice = super().choose(index, step)
        for one in self.passes:
            if isinstance(one, Groups) and one.estimates:
                candidate = self.zones(index, step)[0].isfinite().any(2)
                choice.estimates.append(one.rest(index.made[one.key()], index, step, candidate))
        return choice

    def _in_turns(self, index, step, logits, ranking):
        candidate = (index.sizes > 0).expand_as(ranking)
        for one in self.passes:
            if isinstance(one, History):
                candidate = remembered(one, ranking)
                continue
            first = one.score(index.made[one.key()], index, step)
            first = first.masked_fill(~candidate[:, :, None], -math.inf)
            rough = first + _reach(index, step) if one.of_clusters else first
            if not one.candidates:
                return first, rough.softmax(-1).amax(2)
            parts = one.parts(index.counts)
            candidate = best(weights(rough, parts), one.candidates, parts)
        if self.passes[-1].keeps:
            logits = torch.where(candidate[:, :, None], logits, first)
            return logits, weights(logits + _reach(index, step)) + candidate
        if not self.passes[-1].again:
            logits = first
        # Weights among the candidates, as a kernel that has seen no others knows them.
        logits = logits.masked_fill(~candidate[:, :, None], -math.inf)
        ranking = weights(logits + _reach(index, step))
        share = self.passes[-1].retrieved_of
        if share < 1:
            parts = self.passes[-1].parts(index.counts)
            local = weights(logits + _reach(index, step), parts)
            ranking = ranking + best(local, share, parts)
        return logits, ranking


def _reach(index, step):
    """Returns what the radius adds to a cluster's rank: [b, h, g, c]."""
    norms = step.queries.norm(dim=-1, keepdim=True) * step.queries.shape[-1] ** -0.5
    return INT8.radius * norms * index.radii[:, None]


def weights(logits: torch.Tensor, counts: list[int] | None = None) -> torch.Tensor:
    """Returns ranks [b, h, c] of logits [b, h, g, c]: the largest of the heads' weights, among all
    clusters or those of the same segment, as whoever sees no other segment knows them."""
    parts = logits.split(counts, -1) if counts else [logits]
    return torch.cat([part.softmax(-1).nan_to_num(0.0).amax(2) for part in parts], -1)


def best(ranking: torch.Tensor, share: float, counts: list[int] | None = None) -> torch.Tensor:
    """Returns bool [b, h, c]: the share of the clusters that ranks first, of all or of each of
    consecutive `counts` clusters. Equals are taken in their order until the share is full."""
    if counts is not None:
        return torch.cat([best(part, share) for part in ranking.split(counts, -1)], -1)
    order = ranking.argsort(dim=-1, descending=True, stable=True)
    count = max(1, math.ceil(share * ranking.shape[-1]))
    return torch.zeros_like(ranking, dtype=torch.bool).scatter_(-1, order[..., :count], True)


def remembered(first: History, ranking: torch.Tensor) -> torch.Tensor:
    """Returns the candidates [b, h, c] of rows that follow each other, by what was scored before."""
    rows, heads, clusters = ranking.shape
    groups = clusters // first.size  # clusters behind the last whole group are always scored
    grouped = ranking[..., :groups * first.size].unflatten(-1, (groups, first.size)).amax(-1)
    turning = max(1, math.ceil(first.turning * groups))
    kept = min(groups - turning, max(1, math.ceil(first.candidates * groups) - turning))
    recent = [grouped[0].clone() for _ in range(first.steps)]
    found = torch.ones_like(ranking, dtype=torch.bool)
    place = torch.arange(turning, device=ranking.device)
    for row in range(1, rows):
        known = torch.stack(recent).amax(0)
        known[:, (row * turning + place) % groups] = -1.0  # scored in any case
        scored = known < 0
        scored.scatter_(-1, known.topk(kept, -1).indices, True)
        found[row, :, :groups * first.size] = scored.repeat_interleave(first.size, -1)
        # What was not scored is remembered as it was.
        recent = recent[1:] + [torch.where(scored, grouped[row], recent[-1])]
    return found


def groups_of(centroids: torch.Tensor, counts: list[int], size: int, clustered: bool):
    """Returns the group of each cluster [h, c]; groups lie within a segment."""
    parts, begin = [], 0
    for part in centroids.split(counts, 1):
        c = part.shape[1]
        count = max(1, c // size)
        if clustered:
            settings = wave.Settings(centre=True, euclidean=True, iterations=6)
            assigned = wave.cluster(part, count, settings)[0]
        else:
            assigned = (torch.arange(c, device=part.device) // size).clamp(
                max=count - 1).expand(len(part), -1)
        parts.append(assigned + begin)
        begin += count
    return torch.cat(parts, 1)


def turn(x: torch.Tensor) -> torch.Tensor:
    """Returns vectors [..., d] turned by random signs and a Hadamard transform: products stay."""
    d = x.shape[-1]
    if d & (d - 1):
        raise ValueError(f"head_dim {d}: a Hadamard transform needs a power of two")
    generator = torch.Generator().manual_seed(17)
    signs = 2.0 * torch.randint(0, 2, (d,), generator=generator) - 1
    x = x * signs.to(x.device)
    width = 1
    while width < d:
        pairs = x.unflatten(-1, (-1, 2, width))
        x = torch.stack([pairs[..., 0, :] + pairs[..., 1, :],
                         pairs[..., 0, :] - pairs[..., 1, :]], -2).flatten(-3)
        width *= 2
    return x * d ** -0.5


def coded(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Returns vectors [..., d] as codes of so many bits and a scale give them back, of the right
    length along the vector."""
    if bits >= 4:
        found = few_bits(x, bits)
    else:
        levels = torch.tensor(LEVELS[bits], device=x.device)
        norm = x.norm(dim=-1, keepdim=True).clamp(min=1e-9)
        edges = (levels[1:] + levels[:-1]) / 2
        scaled = (x * (x.shape[-1] ** 0.5 / norm)).contiguous()
        found = levels[torch.bucketize(scaled.abs(), edges)] * scaled.sign()
    inner = (found * x).sum(-1, keepdim=True)
    return found * (x.square().sum(-1, keepdim=True) / inner.clamp(min=1e-9))


def _filled(index, counts):
    """Returns the centroids, those of empty clusters replaced by their segment's mean."""
    parts = []
    for x, sizes in zip(index.centroids.split(counts, 1), index.sizes.split(counts, 1)):
        live = (sizes > 0)[..., None]
        mean = (x * live).sum(1, keepdim=True) / live.sum(1, keepdim=True).clamp(min=1)
        parts.append(torch.where(live, x, mean))
    return torch.cat(parts, 1)


def _centred(x, counts):
    """Returns centroids less their segment's mean, and that mean for each of them."""
    parts = x.split(counts, 1)
    means = torch.cat([part.mean(1, keepdim=True).expand_as(part) for part in parts], 1)
    return x - means, means


def _means(x, group):
    """Returns the mean of each group [h, n, d], and each vector's distance to its own [h, c]."""
    count, wide = int(group.max()) + 1, group[..., None].expand_as(x)
    sums = x.new_zeros(x.shape[0], count, x.shape[2]).scatter_add_(1, wide, x)
    sizes = x.new_zeros(x.shape[0], count).scatter_add_(1, group, x.new_ones(group.shape))
    means = sums / sizes.clamp(min=1)[..., None]
    return means, (x - means.gather(1, wide)).norm(dim=-1)


def _products(queries, x):
    return queries @ x.transpose(1, 2)


def _spread(found, group):
    return found.gather(-1, group[None, :, None].expand(*found.shape[:3], -1))
