"""How often the clusters of one step are wanted again: LRU stack distances of recorded retrievals.

An access is one cluster of one layer and head in one step, of as many pages as the cluster has. Its
stack distance is the pages of all other clusters that were touched since its last access, so an
LRU cache of P pages hits it exactly when distance + own pages <= P. One pass gives every size.
"""

import torch

from .document import Seen
from .systems.wave import PAGE_TOKENS, Wave

SHARES = (0.05, 0.1, 0.2, 0.4)
# Upper ends of the histogram's ranges, as shares of all pages: powers of two.
EDGES = tuple(2.0 ** -power for power in range(14, -1, -1))


class Recorder:
    """Collects which clusters every step retrieves."""

    def __init__(self, system: Wave):
        self._system = system
        self.zones: dict[int, list[torch.Tensor]] = {}  # by layer: bool [b, h, c]
        self.pages: dict[int, torch.Tensor] = {}        # by layer: [h, c]

    def __call__(self, seen: Seen) -> None:
        _, zone, _ = self._system.zones(seen.index, seen.step)
        layer = seen.step.layer
        self.zones.setdefault(layer, []).append(zone & (seen.index.sizes > 0))
        self.pages[layer] = (seen.index.sizes / PAGE_TOKENS).ceil()

    def retrieved(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns bool [steps, layers, h, c] and pages [layers, h, c]."""
        layers = sorted(self.zones)
        return (torch.stack([torch.cat(self.zones[layer]) for layer in layers], 1),
                torch.stack([self.pages[layer] for layer in layers]))


def stack_distances(zones: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    """Returns the distance of each access of zones [n, layers, h, c]: float, like zones.

    Infinite at a first access, NaN where there is no access. Layers follow each other within a
    step; the clusters of one layer are touched in the order of head and number.
    """
    steps, layers = zones.shape[:2]
    clusters = pages[0].numel()
    weight = pages.flatten().double()
    last = torch.full((layers * clusters,), -1.0, dtype=torch.double, device=zones.device)
    found = torch.full(zones.shape, float("nan"), device=zones.device)
    flat = found.view(steps, layers, clusters)
    for step in range(steps):
        for layer in range(layers):
            at = zones[step, layer].flatten().nonzero()[:, 0]
            own = layer * clusters + at
            flat[step, layer, at] = _distances(last, weight, own).float()
            now = float(step * layers + layer)
            # Within a layer's turn, later clusters are the more recent ones.
            last[own] = now + torch.arange(1, len(own) + 1, device=own.device).double() / (len(own) + 2)
    return found


def _distances(last, weight, own):
    """Distances of clusters `own` that are touched one after the other, given last accesses."""
    order = last.argsort(descending=True)
    before = weight[order].cumsum(0) - weight[order]  # pages of all that are more recent
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    distance = before[place[own]]
    # What this turn has touched already is more recent, too, unless it was before the turn.
    mine = last[own]
    earlier = torch.ones(len(own), len(own), dtype=torch.bool, device=own.device).tril(-1)
    moved = earlier & (mine[None, :] <= mine[:, None])
    distance = distance + (moved * weight[own][None, :]).sum(1)
    return torch.where(mine < 0, float("inf"), distance)


def summary(zones: torch.Tensor, pages: torch.Tensor) -> dict:
    """Returns hit ratios by the cache's share of all pages, and distances by layer and head.

    Ratios count pages, in the second half of the steps; the first half fills the cache.
    """
    distances = stack_distances(zones, pages)
    total = float(pages.sum())
    late = distances[len(distances) // 2:]
    touched = ~late.isnan()
    weight = pages.expand_as(late)
    reach = late + weight

    def ratio(part, share):
        here = part & touched
        return float((weight * (here & (reach <= share * total))).sum()
                     / (weight * here).sum().clamp(min=1))
    everything = torch.ones_like(touched)
    layers, heads = pages.shape[:2]
    by_head = []
    for layer in range(layers):
        for head in range(heads):
            part = torch.zeros_like(touched)
            part[:, layer, head] = True
            by_head.append({
                "layer": layer, "head": head,
                "pages_a_step": float((weight * (part & touched)).sum() / len(late)),
                "first_touches": ratio_of(part & touched, late.isinf(), weight),
                "reach": [round(ratio(part, edge), 4) for edge in EDGES]})
    again = zones[1:] & zones[:-1]
    return {
        "steps": len(zones), "pages": int(total),
        "pages_a_step": float((weight * touched).sum() / len(late)),
        "hits": {str(share): round(ratio(everything, share), 4) for share in SHARES},
        "first_touches": ratio_of(touched, late.isinf(), weight),
        "again_at_the_next_step": [round(float(again[:, layer].sum() / zones[1:, layer].sum()
                                               .clamp(min=1)), 3) for layer in range(layers)],
        "ever_touched": float((pages * zones.any(0)).sum() / total),
        "edges": [round(edge, 6) for edge in EDGES], "by_head": by_head}


def ratio_of(part: torch.Tensor, condition: torch.Tensor, weight: torch.Tensor) -> float:
    """Returns the share of a part's pages for which a condition holds."""
    return round(float((weight * (part & condition)).sum()
                       / (weight * part).sum().clamp(min=1)), 4)
