"""Best-first search in a graph over keys, for many queries at once.

A graph is a table of neighbours, int64 [t, m]; a node without enough of them repeats itself.
"""

import torch

EXPANDED_AT_ONCE = 4  # nodes of each query: fewer and larger steps


def search(keys: torch.Tensor, graph: torch.Tensor, entry: torch.Tensor, queries: torch.Tensor,
           width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Finds keys [t, d] with a large inner product with queries [r, d], beginning at `entry` [e].

    Keeps the `width` best of what it has seen and expands them best first, until all that are kept
    are expanded. Returns ids [r, width] by descending product (-1: none), and the number of keys
    that each query has scored [r].
    """
    rows, device = len(queries), queries.device
    everyone = torch.arange(rows, device=device)[:, None]
    seen = torch.zeros(rows, len(keys), dtype=torch.bool, device=device)
    ids = entry[None].expand(rows, -1)
    seen.scatter_(1, ids, True)
    found = torch.full((rows, width), -1, dtype=torch.long, device=device)
    score = torch.full((rows, width), float("-inf"), device=device)
    done = torch.ones(rows, width, dtype=torch.bool, device=device)
    scored = torch.full((rows,), len(entry), device=device)
    new = (queries @ keys[entry].T)
    while True:
        both = torch.cat([score, new], 1)
        score, at = both.topk(width, dim=1)
        found = torch.cat([found, ids], 1).gather(1, at)
        done = torch.cat([done, torch.zeros_like(ids, dtype=torch.bool)], 1).gather(1, at)
        done |= score == float("-inf")
        if bool(done.all()):
            return torch.where(score > float("-inf"), found, -1), scored
        # Those that are kept are sorted, so the first that are not done are the best.
        first = torch.where(done, width, torch.arange(width, device=device))
        chosen = first.topk(min(EXPANDED_AT_ONCE, width), dim=1, largest=False).values
        real = chosen < width
        chosen = chosen.clamp(max=width - 1)
        done.scatter_(1, chosen, True)
        ids = graph[found.gather(1, chosen).clamp(min=0)]
        ids = torch.where(real[..., None], ids, found[:, :1, None].clamp(min=0)).flatten(1)
        # A key counts once, also where two of the expanded share it.
        ids = ids.sort(1).values
        fresh = ~seen.gather(1, ids)
        fresh[:, 1:] &= ids[:, 1:] != ids[:, :-1]
        seen[everyone, ids] = True
        scored = scored + fresh.sum(1)
        new = torch.einsum("rd,rmd->rm", queries, keys[ids])
        new = new.masked_fill(~fresh, float("-inf"))


def from_edges(sources: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, nodes: int,
               degree: int) -> torch.Tensor:
    """Returns the graph of the `degree` edges of each node with the largest weights."""
    edge, inverse = torch.unique(sources * nodes + targets, return_inverse=True)
    best = torch.full((len(edge),), float("-inf"), device=weights.device)
    best.scatter_reduce_(0, inverse, weights, "amax")
    order = best.argsort(descending=True)
    edge = edge[order]
    order = (edge // nodes).argsort(stable=True)
    source, target = edge[order] // nodes, edge[order] % nodes
    first = torch.searchsorted(source, source)
    place = torch.arange(len(source), device=source.device) - first
    kept = place < degree
    graph = torch.arange(nodes, device=source.device)[:, None].repeat(1, degree)
    graph[source[kept], place[kept]] = target[kept]
    return graph
