"""A PyTorch reference of tripartite attention: index, ranking and the three zones.

It follows design section 3 step by step and favours plain code over speed: the exact zone is
dense attention under a mask. Every change to the index that the study tries is a field of
`Settings`; the defaults of `PAPER` are the paper's.

Shapes: b questions, h KV heads, g query heads in a group, t tokens, c clusters, d head_dim.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F

SINK = 4
LOCAL = 64
DENSE_BELOW = 8192
PREFILL_SEGMENT = 8192
REST_SEGMENT = 1024
PAGE_TOKENS = 4


@dataclasses.dataclass(frozen=True)
class Settings:
    """How the index is built and how clusters are ranked.

    centre: subtract the segment's mean key before clustering.
    euclidean: assign to the nearest centroid instead of the largest inner product.
    start: "stride" takes keys at a uniform stride; "spread" picks keys far from each other, one by
        one; "sampled" in eight turns, each at even steps of the squared distance to what there is.
    rank: combines the group's softmaxes by their "sum" or their "max".
    radius: weight of |q| r in the score, with r the largest distance of a member to its centroid.
    deviation: weight of |q| rms in the score, with rms the root mean square distance.
    moment: weight of |q|^2 rms^2 / 2d in the score, the second-order term of the mean weight.
    size: add log s to the score.
    layer_shares: factor of the retrieval budget, by layer.
    """
    retrieval_ratio: float = 0.018
    estimation_ratio: float = 0.232
    least_clusters: int = 64
    cluster_tokens: int = 16
    iterations: int = 10
    centre: bool = False
    euclidean: bool = False
    start: str = "stride"
    rank: str = "sum"
    radius: float = 0.0
    deviation: float = 0.0
    moment: float = 0.0
    size: bool = False
    largest: int | None = None
    layer_shares: tuple[float, ...] = ()


PAPER = Settings()
# The product's with an index in bf16, and with one in int8 (decision 0057), but for the rounding.
DEFAULT = Settings(centre=True, rank="max", radius=0.5)
INT8 = dataclasses.replace(DEFAULT, radius=0.25, retrieval_ratio=0.035, least_clusters=96)


@dataclasses.dataclass
class Index:
    """The clusters of one layer of one document."""
    centroids: torch.Tensor   # [h, c, d]
    value_sums: torch.Tensor  # [h, c, d]
    sizes: torch.Tensor       # [h, c]; 0 is an empty cluster
    radii: torch.Tensor       # [h, c]
    deviations: torch.Tensor  # [h, c]
    owner: torch.Tensor       # [h, t]: cluster of a token; c for the steady zone


def segment_sizes(prompt_tokens: int) -> list[int]:
    """Returns the sizes of a prompt's segments; they lie between the sink and the local window."""
    if prompt_tokens < DENSE_BELOW:
        return []
    left = prompt_tokens - SINK - LOCAL
    whole, rest = divmod(left, PREFILL_SEGMENT)
    return [PREFILL_SEGMENT] * whole + [REST_SEGMENT] * (rest // REST_SEGMENT)


def build_index(keys: torch.Tensor, values: torch.Tensor, sizes: list[int],
                settings: Settings) -> Index:
    """Clusters each segment of keys [h, t, d] on its own."""
    heads, tokens, _ = keys.shape
    parts, owner, first = [], torch.full((heads, tokens), -1, device=keys.device), 0
    at = SINK
    for size in sorted(set(sizes), reverse=True):
        count = sizes.count(size)
        span = slice(at, at + size * count)
        k, v = (x[:, span].unflatten(1, (count, size)).flatten(0, 1) for x in (keys, values))
        assigned, clusters = cluster(k, size // settings.cluster_tokens, settings)
        parts.append([x.unflatten(0, (heads, count)).flatten(1, 2)
                      for x in _summarise(k, v, assigned, clusters)])
        shift = torch.arange(count, device=keys.device)[None, :, None] * clusters + first
        owner[:, span] = (assigned.unflatten(0, (heads, count)) + shift).flatten(1)
        first += count * clusters
        at = span.stop
    owner[owner < 0] = first
    return Index(*(torch.cat(columns, dim=1) for columns in zip(*parts)), owner)


def cluster(keys: torch.Tensor, count: int, settings: Settings) -> tuple[torch.Tensor, int]:
    """Assigns keys [n, t, d] to `count` clusters each; returns [n, t] and the cluster count."""
    x = keys - keys.mean(1, keepdim=True) if settings.centre else keys
    centres = _start(x, count, settings)
    for _ in range(settings.iterations):
        sums, sizes = _sums(x, _assign(x, centres, settings), count)
        moved = (sums / sizes.clamp(min=1)[..., None] if settings.euclidean
                 else F.normalize(sums, dim=-1))
        centres = torch.where(sizes[..., None] > 0, moved, centres)
    assigned = _assign(x, centres, settings)
    if settings.largest:
        assigned, count = _split_large(x, centres, assigned, count, settings.largest)
    return assigned, count


def _start(x, count, settings):
    stride = x.shape[1] // count
    if settings.start == "stride":
        chosen = x[:, ::stride][:, :count]
    elif settings.start == "sampled":
        chosen = _sampled(x, count)
    else:
        chosen = _spread(x, count)
    return chosen if settings.euclidean else F.normalize(chosen, dim=-1)


def _spread(x, count):
    """Picks keys one by one, each the farthest from those picked before."""
    nearest = torch.full(x.shape[:2], math.inf, device=x.device)
    picked = [x[:, 0]]
    for _ in range(count - 1):
        nearest = torch.minimum(nearest, (x - picked[-1][:, None]).square().sum(-1))
        far = nearest.argmax(1)
        picked.append(x[torch.arange(len(x), device=x.device), far])
    return torch.stack(picked, 1)


def _sampled(x, count):
    """Picks an eighth at a uniform stride, and in seven turns the keys at even steps of the
    cumulated squared distance to the nearest that is picked. One assignment's products in all."""
    turn = max(1, count // 8)
    picked = x[:, ::x.shape[1] // turn][:, :turn]
    squares = x.square().sum(-1)
    nearest = torch.full(x.shape[:2], math.inf, device=x.device)
    fresh = picked
    while picked.shape[1] < count:
        products = fresh.square().sum(-1)[:, None] - 2 * x @ fresh.transpose(1, 2)
        nearest = torch.minimum(nearest, (squares + products.amin(-1)).clamp(min=0))
        reached = nearest.cumsum(1)
        size = min(turn, count - picked.shape[1])
        steps = (torch.arange(size, device=x.device) + 0.5) / size
        at = torch.searchsorted(reached, reached[:, -1:] * steps).clamp(max=x.shape[1] - 1)
        fresh = torch.take_along_dim(x, at[..., None], 1)
        picked = torch.cat([picked, fresh], 1)
    return picked


def _assign(x, centres, settings):
    scores = x @ centres.transpose(1, 2)
    if settings.euclidean:
        scores -= 0.5 * centres.square().sum(-1)[:, None]
    return scores.argmax(-1)


def _sums(x, assigned, count):
    sums = torch.zeros(len(x), count, x.shape[2], device=x.device)
    sums.scatter_add_(1, assigned[..., None].expand_as(x), x)
    sizes = torch.zeros(len(x), count, device=x.device)
    return sums, sizes.scatter_add_(1, assigned, torch.ones_like(assigned, dtype=torch.float))


def _split_large(x, centres, assigned, count, largest):
    """Cuts clusters into runs of at most `largest` members, the most central ones first."""
    closeness = x.mul(torch.take_along_dim(centres, assigned[..., None], 1)).sum(-1)
    order = closeness.argsort(1, descending=True)
    order = order.gather(1, assigned.gather(1, order).argsort(dim=1, stable=True))
    sorted_ids = assigned.gather(1, order)
    places = torch.arange(x.shape[1], device=x.device)[None].expand_as(sorted_ids)
    starts = torch.searchsorted(sorted_ids.contiguous(), sorted_ids.contiguous())
    cut = ((places - starts) % largest == 0).long().cumsum(1) - 1
    split = torch.empty_like(assigned).scatter_(1, order, cut)
    return split, int(split.max()) + 1


def _summarise(keys, values, assigned, count):
    sums, sizes = _sums(keys, assigned, count)
    value_sums, _ = _sums(values, assigned, count)
    centroids = sums / sizes.clamp(min=1)[..., None]
    own = torch.take_along_dim(centroids, assigned[..., None], 1)
    squares = (keys - own).square().sum(-1)
    zero = torch.zeros_like(sizes)
    radii = zero.scatter_reduce(1, assigned, squares, "amax").sqrt()
    deviations = (zero.scatter_add(1, assigned, squares) / sizes.clamp(min=1)).sqrt()
    return centroids, value_sums, sizes, radii, deviations


def rank(index: Index, queries: torch.Tensor, settings: Settings):
    """Scores the clusters for queries [b, h, g, d].

    Returns the logits q.C/sqrt(d) [b, h, g, c] and the ranking score [b, h, c].
    """
    scale = queries.shape[-1] ** -0.5
    logits = (queries @ index.centroids.transpose(1, 2)) * scale
    empty = (index.sizes == 0)[:, None]
    logits = logits.masked_fill(empty, -math.inf)
    norms = queries.norm(dim=-1, keepdim=True) * scale
    score = logits
    if settings.radius:
        score = score + settings.radius * norms * index.radii[:, None]
    if settings.deviation:
        score = score + settings.deviation * norms * index.deviations[:, None]
    if settings.moment:
        spread = index.deviations[:, None].square() / queries.shape[-1]
        score = score + settings.moment * norms.square() * spread / 2
    if settings.size:
        score = score + index.sizes.clamp(min=1).log()[:, None]
    weights = score.softmax(-1)
    return logits, weights.sum(2) if settings.rank == "sum" else weights.amax(2)


def budgets(clusters: int, settings: Settings, layer: int = 0) -> tuple[int, int]:
    """Returns how many clusters are retrieved and how many estimated."""
    share = settings.layer_shares[layer] if settings.layer_shares else 1.0
    least = settings.least_clusters * 16 // settings.cluster_tokens
    retrieved = min(clusters, math.ceil(
        share * max(least, math.ceil(clusters * settings.retrieval_ratio))))
    estimated = max(retrieved, math.ceil(clusters * settings.estimation_ratio))
    return retrieved, min(estimated, clusters - retrieved)


def select(ranking: torch.Tensor, retrieved: int, estimated: int):
    """Returns masks [b, h, c] of the retrieval and the estimation zone."""
    best = ranking.topk(retrieved + estimated, dim=-1).indices
    none = torch.zeros_like(ranking, dtype=torch.bool)
    return (none.scatter(-1, best[..., :retrieved], True),
            none.scatter(-1, best[..., retrieved:], True))


def bytes_read(index: Index, retrieved: torch.Tensor, estimated: torch.Tensor,
               settings: Settings) -> torch.Tensor:
    """Returns the bytes that one question reads of one layer's context: scores, sums, pages."""
    d = index.centroids.shape[-1]
    pages = (index.sizes / PAGE_TOKENS).ceil()
    scalars = bool(settings.radius or settings.deviation or settings.moment)
    scores = index.sizes.numel() * (2 * d + 4 + 4 * scalars)
    sums = estimated.sum((1, 2)).float().mean() * 2 * d
    exact = (retrieved * pages).sum((1, 2)).mean() * PAGE_TOKENS * 4 * d
    return scores + sums + exact
