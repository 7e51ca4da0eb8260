"""MagicPIG (Chen et al., 2024): keys are sampled by locality-sensitive hashing.

L tables hash a key by the signs of K random projections. A key is sampled when the query falls
into its bucket in at least two tables, and counts by the inverse of the chance of that.
"""

import math

import torch

from ..system import Choice, Step, System, page_bytes, read_of, steady

BITS = 10    # K of the paper
TABLES = 150  # L of the paper
LEAST = 2    # tables in which a sampled key has met the query
BUCKET_ENTRY_BYTES = 4  # an id


class MagicPig(System):
    """SimHash over centred keys, for every query head by itself; bytes count a key once for its KV
    head. The budget is set by the number of tables, as in the paper."""
    name = "MagicPIG"

    def __init__(self, tables: int = TABLES, bits: int = BITS, seed: int = 1):
        self._tables, self._bits, self._seed = tables, bits, seed

    def key(self):
        return "magicpig", self._tables, self._bits, self._seed

    def build(self, layer, keys, values, queries, grown=0):
        generator = torch.Generator().manual_seed(self._seed + layer)
        planes = torch.randn(keys.shape[-1], self._tables * self._bits, generator=generator)
        planes = planes.to(keys.device)
        mean = keys.mean(1, keepdim=True)
        centred = keys - mean
        codes = torch.stack([self._codes(head, planes) for head in centred])
        return keys.shape, planes, mean, centred, codes

    def _codes(self, vectors, planes):
        """Returns the bucket of vectors [n, d] in each table: int16 [L, n]."""
        powers = 2 ** torch.arange(self._bits, device=vectors.device)
        parts = []
        for part in vectors.split(16384):
            signs = (part @ planes > 0).unflatten(-1, (self._tables, self._bits))
            parts.append((signs * powers).sum(-1).to(torch.int16).T)
        return torch.cat(parts, 1).contiguous()

    def choose(self, index, step: Step) -> Choice:
        (heads, tokens, width), planes, mean, centred, codes = index
        rows, group = step.rows, step.queries.shape[2]
        met = torch.zeros_like(step.logits, dtype=torch.uint8)
        for head in range(heads):
            asked = self._codes(step.queries[:, head].flatten(0, 1), planes)
            for table in range(self._tables):
                same = asked[table][:, None] == codes[head, table][None]
                met[:, head] += same.view(rows, group, tokens)
        sampled = met >= LEAST
        # The chance that one bit agrees is 1 - angle / pi, of the query and the centred key.
        shift = (step.queries @ mean.transpose(1, 2)) * width ** -0.5
        norms = step.queries.norm(dim=-1, keepdim=True) * width ** -0.5
        cosine = (step.logits - shift) / (norms * centred.norm(dim=-1)[None, :, None]).clamp(1e-12)
        chance = meeting_chance(cosine, self._bits, self._tables)
        kept = steady(tokens, step.logits.device)
        log_weights = torch.where(kept, 0.0, -chance.log())
        read = page_bytes((sampled.any(2) & ~kept).sum((1, 2)), width)
        looked_up = met.sum((1, 2, 3), dtype=torch.float32) * BUCKET_ENTRY_BYTES
        return Choice(sampled | kept, read_of(looked_up, read), log_weights=log_weights)


def meeting_chance(cosine: torch.Tensor, bits: int, tables: int) -> torch.Tensor:
    """Returns the chance that vectors of this cosine share a bucket in LEAST tables or more."""
    one = (1 - cosine.clamp(-1, 1).acos() / math.pi) ** bits
    none = (1 - one) ** tables
    single = tables * one * (1 - one) ** (tables - 1)
    return (1 - none - single).clamp(min=1e-6)
