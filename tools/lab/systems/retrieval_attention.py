"""RetrievalAttention (Liu et al., 2024): a graph over keys whose edges come from queries.

Queries and keys are distributed differently, so neighbours among keys say little about what a query
wants. The graph is RoarGraph's: keys that are near the same query of the prompt are linked. Links
among keys of a neighbourhood keep it connected.
"""

import torch

from ..system import VALUE_BYTES, Choice, Step, System, page_bytes, read_of
from .graph_search import from_edges, search

KEYS = 100         # that a query head retrieves, as the paper has it
SINK, WINDOW = 128, 512  # attended in any case, as the paper has it
DEGREE = 32
NEAR_A_QUERY = 32  # keys that a query of the prompt links
NEAR_A_KEY = 8     # links of a key to others of its block
BLOCK = 8192
EDGE_BYTES = 4


class RetrievalAttention(System):
    """The search keeps twice as many keys as are wanted."""
    name = "RetrievalAttention"

    def __init__(self, keys: int = KEYS):
        self._keys = keys

    def key(self):
        return "retrieval attention"

    def build(self, layer, keys, values, queries, grown=0):
        graphs = [build_graph(k, q.flatten(0, 1)) for k, q in zip(keys, queries)]
        return keys, graphs

    def choose(self, index, step: Step) -> Choice:
        keys, graphs = index
        heads, tokens, width = keys.shape
        place = torch.arange(tokens, device=keys.device)
        kept = (place < SINK) | (tokens - place <= WINDOW)
        exact = kept.expand(*step.queries.shape[:3], -1).clone()
        scored = torch.zeros(step.rows, device=keys.device)
        for head in range(heads):
            asked = step.queries[:, head]
            graph, entry = graphs[head]
            ids, count = search(keys[head], graph, entry, asked.flatten(0, 1), 2 * self._keys)
            ids = ids[:, :self._keys].unflatten(0, asked.shape[:2])
            # What was not found points at a key that is attended anyway.
            exact[:, head].scatter_(-1, ids.clamp(min=0), True)
            scored += count.unflatten(0, asked.shape[:2]).sum(1)
        read = page_bytes((exact.any(2) & ~kept).sum((1, 2)), width)
        return Choice(exact, read_of(scored * (width * VALUE_BYTES + DEGREE * EDGE_BYTES), read))


def build_graph(keys: torch.Tensor, queries: torch.Tensor):
    """Returns the graph over keys [t, d] by queries [s, d], and the keys where a search begins."""
    tokens = len(keys)
    near = torch.cat([(part @ keys.T).topk(min(NEAR_A_QUERY, tokens), dim=1).indices
                      for part in queries.split(512)])
    pivot = near[:, :1].expand(-1, near.shape[1] - 1)
    rest = near[:, 1:]
    # A query's nearest key to its others and back, and each to the next.
    sources = torch.cat([pivot, rest, near[:, 1:-1]], 1).flatten()
    targets = torch.cat([rest, pivot, near[:, 2:]], 1).flatten()
    weights = (keys[sources] * keys[targets]).sum(-1)
    local_sources, local_targets = _local_links(keys)
    # They come after the queries' links.
    local_weights = torch.full((len(local_sources),), -1e30, device=keys.device)
    graph = from_edges(torch.cat([sources, local_sources]), torch.cat([targets, local_targets]),
                       torch.cat([weights, local_weights]), tokens, DEGREE)
    entry = near.flatten().bincount(minlength=tokens).topk(min(8, tokens)).indices
    return graph, entry


def _local_links(keys):
    """Links each key with its nearest others in its block, and with the first key of the next."""
    sources, targets = [], []
    for begin in range(0, len(keys), BLOCK):
        block = keys[begin:begin + BLOCK]
        count = min(NEAR_A_KEY + 1, len(block))
        near = torch.cat([_distances(part, block).topk(count, largest=False).indices
                          for part in block.split(2048)])
        own = torch.arange(len(block), device=keys.device)[:, None].expand_as(near)
        chain = torch.arange(len(block), device=keys.device)
        sources += [begin + own.flatten(), begin + near.flatten(), begin + chain]
        targets += [begin + near.flatten(), begin + own.flatten(),
                    (begin + chain + 1) % len(keys)]
    return torch.cat(sources), torch.cat(targets)


def _distances(a, b):
    return b.square().sum(-1)[None] - 2 * a @ b.T
