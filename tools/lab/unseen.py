"""What an index promises: the mass that it predicts outside of what is attended exactly, against
the mass that is there, the error of attention's output, and the change of the token's probability.
"""

import math

import torch

from .document import Seen
from .systems.wave import Wave

GROUPS = 10  # rows are sorted by the prediction and cut into so many groups


class Promise:
    """Observes a wave system and collects, for every row, layer and query head."""

    def __init__(self, system: Wave):
        self._system = system
        self._parts: dict[int, list[torch.Tensor]] = {}  # by layer: [3, b, h, g]

    def __call__(self, seen: Seen) -> None:
        logits, zone, _ = self._system.zones(seen.index, seen.step)
        exact = seen.step.logits.masked_fill(~seen.choice.exact, -math.inf).logsumexp(-1)
        exact = torch.logaddexp(exact, seen.own_logits.logsumexp(-1))
        left = logits + seen.index.sizes.clamp(min=1).log()[:, None]
        left = left.masked_fill(zone[:, :, None], -math.inf).logsumexp(-1)
        true_left = seen.step.logits.masked_fill(seen.choice.exact, -math.inf).logsumexp(-1)
        # The share of a total that is e^left + e^exact.
        predicted, true = torch.sigmoid(left - exact), torch.sigmoid(true_left - exact)
        error = (seen.out - _full(seen)).norm(dim=-1) / _full(seen).norm(dim=-1).clamp(min=1e-9)
        self._parts.setdefault(seen.step.layer, []).append(torch.stack([predicted, true, error]))

    def result(self, change: torch.Tensor) -> dict:
        """Summarises; change is the change of each row's log-probability [n]."""
        found = torch.stack([torch.cat(self._parts[layer], 1) for layer in sorted(self._parts)], 2)
        predicted, true, error = found.cpu().double()  # [n, layers, h, g]
        rows = [x.flatten(1) for x in (predicted, true, error)]
        change = change.abs().cpu().double()
        groups = []
        for at in rows[0].flatten().argsort().tensor_split(GROUPS):
            groups.append([round(float(x.flatten()[at].mean()), 5) for x in rows])
        by_row = []
        mean = rows[0].mean(1)
        for at in mean.argsort().tensor_split(GROUPS):
            by_row.append([round(float(x[at].mean()), 5) for x in (*(r.mean(1) for r in rows),
                                                                   change)])
        return {
            "predicted": float(rows[0].mean()), "true": float(rows[1].mean()),
            "error": float(rows[2].mean()), "change": float(change.mean()),
            "rank_correlation": {
                "true_mass": spearman(rows[0].flatten(), rows[1].flatten()),
                "output_error": spearman(rows[0].flatten(), rows[2].flatten()),
                "change_of_the_token": spearman(mean, change)},
            "by_layer": [[round(float(x[:, layer].mean()), 5) for x in (predicted, true, error)]
                         for layer in range(predicted.shape[1])],
            "groups": groups, "groups_by_token": by_row}


def _full(seen: Seen) -> torch.Tensor:
    """Returns the output of full attention for the same queries."""
    top = torch.maximum(seen.step.logits.amax(-1), seen.own_logits.amax(-1))[..., None]
    total = mixed = 0.0
    for logits, values in ((seen.step.logits, seen.values), (seen.own_logits, seen.own_values)):
        weights = (logits - top).exp_()
        total = total + weights.sum(-1)
        mixed = mixed + torch.einsum("bhgt,htd->bhgd", weights, values)
    return mixed / total[..., None]


def spearman(a: torch.Tensor, b: torch.Tensor) -> float:
    """Returns the rank correlation."""
    ranks = [x.argsort().argsort().double() for x in (a, b)]
    ranks = [r - r.mean() for r in ranks]
    norm = ranks[0].norm() * ranks[1].norm()
    return round(float((ranks[0] * ranks[1]).sum() / norm), 4) if norm > 0 else 0.0
