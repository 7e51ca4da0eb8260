"""Candidates for rows of a prompt's end, which decode steps take many at a time.

Rows of one step read a page once for all of them (decision 0098), so that a row may attend to what
its neighbours retrieve without another byte; and what retrieval alone lacks is seen beside a ranking
that knows the true weights.
"""

import torch

from tools.needle import wave

from .wave import Wave, _best


class Together(Wave):
    """Wave whose rows attend to what any of their step's rows retrieves.

    rows: tokens of a tail that a step takes, counted from the tail's first. chosen: the rows choose
    as one, the clusters that weigh most in their mean; otherwise each row chooses for itself.
    refills: what is shared leaves the estimation zone to the clusters that are next in rank;
    otherwise, as in the product (decision 0112), to nobody.
    """

    def __init__(self, name, settings, options, rows: int = 64, chosen: bool = False,
                 refills: bool = True):
        super().__init__(name, settings, options=options)
        self._rows, self._chosen, self._refills = rows, chosen, refills

    def zones(self, index, step):
        logits, ranking = wave.rank(index, step.queries, self.settings)
        retrieved, estimated = self._budgets(index, step.layer)
        alike = ranking.clone()
        steps = list(self._steps(step.behind))
        if self._chosen:
            for begin, end in steps:
                alike[begin:end] = ranking[begin:end].mean(0)
        zone = _best(alike, retrieved)
        own = zone.clone()
        for begin, end in steps:
            zone[begin:end] = zone[begin:end].any(0)
        rest = ranking.masked_fill(zone if self._refills else own, -1.0)
        others = _best(rest, min(estimated, rest.shape[-1])) & ~zone & (index.sizes > 0)
        return logits, zone, others

    def _steps(self, behind: torch.Tensor):
        """Yields the first row of each step and the one behind its last."""
        first = int(behind[0]) - 1
        if first % self._rows:
            raise ValueError(f"row {first} of a tail begins a call; steps have {self._rows} rows, so "
                             "that a call must begin at a multiple")
        for begin in range(0, len(behind), self._rows):
            yield begin, min(len(behind), begin + self._rows)


class TrueWeights(Wave):
    """Wave whose clusters are ranked by the weight that their tokens have."""

    def zones(self, index, step):
        logits, _ = wave.rank(index, step.queries, self.settings)
        weights = (step.logits - step.logits.amax(-1, keepdim=True)).exp()
        sums = torch.zeros(*weights.shape[:3], index.sizes.shape[1] + 1, device=weights.device)
        sums.scatter_add_(-1, index.owner[None, :, None].expand_as(weights), weights)
        sums = sums[..., :-1]
        ranking = (sums / sums.sum(-1, keepdim=True)).amax(2)
        retrieved, estimated = self._budgets(index, step.layer)
        zone = _best(ranking, retrieved)
        rest = ranking.masked_fill(zone, -1.0)
        return logits, zone, _best(rest, estimated) & ~zone & (index.sizes > 0)
