"""HNSW over keys (Malkov and Yashunin, 2016), by the package hnswlib: in-distribution, on the CPU.

Inner products become distances by hnswlib's space "ip".
"""

import torch

from ..system import (VALUE_BYTES, Choice, Step, System, page_bytes, read_of, steady)

LINKS = 16
WIDTH_AT_BUILD = 200
KEYS = 100


def available() -> bool:
    """Whether hnswlib is installed."""
    try:
        import hnswlib  # noqa: F401
    except ImportError:
        return False
    return True


class Hnsw(System):
    """Retrieves so many keys a query head. hnswlib does not tell what a search reads: the bytes of
    the index are those of its search width times its links, a lower bound of the keys it scores."""
    name = "HNSW"

    def __init__(self, keys: int = KEYS):
        self._keys = keys

    def key(self):
        return "hnsw"

    def build(self, layer, keys, values, queries, grown=0):
        import hnswlib
        graphs = []
        for head in keys.cpu().float().numpy():
            graph = hnswlib.Index(space="ip", dim=head.shape[1])
            graph.init_index(max_elements=len(head), M=LINKS, ef_construction=WIDTH_AT_BUILD,
                             random_seed=1)
            graph.add_items(head)
            graphs.append(graph)
        return keys.shape, graphs

    def choose(self, index, step: Step) -> Choice:
        (_, tokens, width), graphs = index
        device = step.queries.device
        kept = steady(tokens, device)
        exact = kept.expand(*step.queries.shape[:3], -1).clone()
        for head, graph in enumerate(graphs):
            asked = step.queries[:, head].flatten(0, 1)
            graph.set_ef(2 * self._keys)
            ids, _ = graph.knn_query(asked.cpu().float().numpy(), k=min(self._keys, tokens))
            ids = torch.from_numpy(ids.astype("int64")).to(device)
            exact[:, head].scatter_(-1, ids.unflatten(0, step.queries[:, head].shape[:2]), True)
        read = page_bytes((exact.any(2) & ~kept).sum((1, 2)), width)
        queries = step.queries.shape[1] * step.queries.shape[2]
        scored = queries * 2.0 * self._keys * LINKS
        return Choice(exact, read_of(scored * width * VALUE_BYTES, read))
