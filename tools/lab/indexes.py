"""Indexes over keys by themselves: time to build, cost of a search, recall of the best keys.

Each is asked by real queries, and by keys of tokens that it does not hold: what a query wants is
distributed otherwise than the keys are, and that is what makes it hard. The effort of a search is
doubled until the recall is reached. Times are CPU seconds of one thread; needs faiss.
"""

import dataclasses
import time
from collections.abc import Callable

import torch

from .systems import graph_search, ivf, retrieval_attention

KEYS = 100     # that a search is to find
RECALL = 0.9
QUERIES = 256  # searches that are averaged
HNSW_LINKS, HNSW_WIDTH_AT_BUILD = 16, 200


@dataclasses.dataclass
class Built:
    """An index: search(queries [r, d], effort) -> ids [r, KEYS], keys scored by a query."""
    seconds: float
    search: Callable[[torch.Tensor, int], tuple[torch.Tensor, float]]
    efforts: list[int]


def _timed(make):
    began = time.process_time()
    made = make()
    return made, time.process_time() - began


def build_ivf(keys: torch.Tensor, queries: torch.Tensor) -> Built:
    """faiss' IVF-Flat by inner product, 4 sqrt(n) lists."""
    import faiss
    lists = ivf.lists_of(len(keys))

    def make():
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(keys.shape[1]), keys.shape[1], lists,
                                   faiss.METRIC_INNER_PRODUCT)
        index.train(keys.numpy())
        index.add(keys.numpy())
        return index
    index, seconds = _timed(make)

    def search(asked, effort):
        index.nprobe = effort
        faiss.cvar.indexIVF_stats.reset()
        _, ids = index.search(asked.numpy(), KEYS)
        return torch.from_numpy(ids), lists + faiss.cvar.indexIVF_stats.ndis / len(asked)
    return Built(seconds, search, [2 ** i for i in range(11) if 2 ** i <= lists])


def build_hnsw(keys: torch.Tensor, queries: torch.Tensor) -> Built:
    """faiss' HNSW by inner product."""
    import faiss

    def make():
        index = faiss.IndexHNSWFlat(keys.shape[1], HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = HNSW_WIDTH_AT_BUILD
        index.add(keys.numpy())
        return index
    index, seconds = _timed(make)

    def search(asked, effort):
        index.hnsw.efSearch = effort
        faiss.cvar.hnsw_stats.reset()
        _, ids = index.search(asked.numpy(), KEYS)
        return torch.from_numpy(ids), faiss.cvar.hnsw_stats.ndis / len(asked)
    return Built(seconds, search, [KEYS * 2 ** i for i in range(7)])


def build_graph(keys: torch.Tensor, queries: torch.Tensor) -> Built:
    """RetrievalAttention's graph, from queries of the document."""
    (graph, entry), seconds = _timed(lambda: retrieval_attention.build_graph(keys, queries))

    def search(asked, effort):
        ids, scored = graph_search.search(keys, graph, entry, asked, effort)
        return ids[:, :KEYS], float(scored.float().mean())
    return Built(seconds, search, [KEYS * 2 ** i for i in range(7)])


INDEXES = {"IVF-Flat": build_ivf, "HNSW": build_hnsw, "RetrievalAttention": build_graph}


def measure(name: str, keys: torch.Tensor, sample: torch.Tensor,
            askers: dict[str, torch.Tensor]) -> dict:
    """Builds an index over keys [t, d] and searches it for each kind of asker [r, d]."""
    import faiss
    faiss.omp_set_num_threads(1)
    built = INDEXES[name](keys.contiguous(), sample)
    found = {"build_s": round(built.seconds, 4), "keys": len(keys)}
    for kind, asked in askers.items():
        best = torch.cat([(part @ keys.T).topk(KEYS).indices for part in asked.split(64)])
        for effort in built.efforts:
            (ids, scored), seconds = _timed(lambda: built.search(asked.contiguous(), effort))
            recall = (ids[:, :, None] == best[:, None, :]).any(1).float().mean().item()
            found[kind] = {"effort": effort, "recall": round(recall, 4), "scored": round(scored),
                           "us": round(1e6 * seconds / len(asked), 1)}
            if recall >= RECALL:
                break
    return found


def available() -> bool:
    """Whether faiss is installed."""
    try:
        import faiss  # noqa: F401
    except ImportError:
        return False
    return True
