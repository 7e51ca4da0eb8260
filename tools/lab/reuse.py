"""Makes the table of gpu_worker/measuring/synthetic from recorded traces: how soon a step's clusters come again.

    python3 -m tools.lab.reuse docs/evaluation/traces/*.xz > gpu_worker/measuring/synthetic/recorded_reuse_table.inc

Statistics are those of the second half of a trace's steps; what has never been read before is counted in all of
them. Needs numpy.
"""

import argparse
import bisect
import dataclasses
import pathlib
import sys

import numpy

from . import trace

# As gpu_worker/measuring/synthetic/recorded_reuse.h.
DEPTH_ENDS = (0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.125, 0.16, 0.2, 0.25, 0.32, 0.4, 0.5, 0.63, 0.8, 1.0)
PHASE_ENDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SHARES = (0.05, 0.1, 0.2, 0.4)
TOKENS_OF_CLUSTER = 16


@dataclasses.dataclass
class Retrieved:
    """What the steps of one sequence have read."""
    steps: list[list[numpy.ndarray]]  # by step and head: numbers of clusters
    pages: numpy.ndarray              # [heads, clusters]; 0: never read
    tokens: int                       # of the context, in the first step
    all_pages: float                  # of a head

    @staticmethod
    def of(found: trace.Trace) -> "Retrieved":
        """Takes a trace of one sequence. Raises ValueError where there are several, or too few steps."""
        if len({step.sequence for step in found.steps}) != 1 or len(found.steps) < 2:
            raise ValueError("a trace of one sequence and two steps or more is wanted")
        clusters = max(step.clusters for step in found.steps)
        pages = numpy.zeros((len(found.steps[0].heads), clusters))
        steps = []
        for step in found.steps:
            for row, head in zip(pages, step.heads):
                row[[c.number for c in head]] = [c.pages for c in head]
            steps.append([numpy.array([c.number for c in head], int) for head in step.heads])
        # The last page of a cluster is part-filled: on average three eighths of a page are lost.
        lost = (1 - 1 / found.tokens_per_page) / 2
        return Retrieved(steps, pages, found.steps[0].tokens,
                         clusters * (TOKENS_OF_CLUSTER / found.tokens_per_page + lost))


def lru_hits(steps, pages, all_pages: float) -> list[float]:
    """Returns for each of SHARES what an LRU cache for this share of `all_pages` has of the pages that are read in
    the second half of `steps`. Layers and heads follow each other within a step, clusters by number."""
    accesses = sum(len(head) for step in steps for head in step)
    tree = [0.0] * (accesses + 2)

    def add(at, value):
        while at < len(tree):
            tree[at] += value
            at += at & -at

    def up_to(at):
        total = 0.0
        while at:
            total += tree[at]
            at -= at & -at
        return total

    last, now, held = {}, 0, 0.0
    hits, counted = [0.0] * len(SHARES), 0.0
    for number, step in enumerate(steps):
        for head, clusters in enumerate(step):
            for cluster in clusters.tolist():
                now += 1
                own = pages[head][cluster]
                before = last.get((head, cluster))
                reach = float("inf")
                if before is not None:
                    reach = held - up_to(before) + own
                    add(before, -own)
                    held -= own
                add(now, own)
                held += own
                last[head, cluster] = now
                if number >= len(steps) // 2:
                    counted += own
                    for i, share in enumerate(SHARES):
                        hits[i] += own * (reach <= share * all_pages)
    return [hit / counted for hit in hits]


def at_depth(found: Retrieved, head: int) -> list[float]:
    """Returns the share of clusters read that the step before had, and those of each range of depth behind it."""
    clusters_of_head = found.pages.shape[1]
    last = numpy.full(clusters_of_head, -1.0)
    counts = numpy.zeros(1 + len(DEPTH_ENDS))
    before = numpy.zeros(clusters_of_head, bool)
    for number, step in enumerate(found.steps):
        clusters = step[head]
        if number >= len(found.steps) // 2:
            order = numpy.argsort(-last, kind="stable")
            depth = numpy.empty(clusters_of_head)
            depth[order] = numpy.arange(clusters_of_head) / clusters_of_head
            known = clusters[last[clusters] >= 0]
            counts[0] += before[known].sum()
            behind = known[~before[known]]
            counts[1:] += numpy.histogram(depth[behind], (0, *DEPTH_ENDS))[0]
        last[clusters] = number + numpy.arange(len(clusters)) / (len(clusters) + 1)
        before[:] = False
        before[clusters] = True
    return (counts / counts.sum()).tolist()


def first_reads(found: Retrieved) -> list[float]:
    """Returns what share of the clusters of a step was never read before, by phase."""
    seen = numpy.zeros(found.pages.shape, bool)
    fresh, read = [0] * (1 + len(PHASE_ENDS)), [0] * (1 + len(PHASE_ENDS))
    for number, step in enumerate(found.steps):
        phase = bisect.bisect_right(PHASE_ENDS, number)
        for row, clusters in zip(seen, step):
            fresh[phase] += len(clusters) - int(row[clusters].sum())
            read[phase] += len(clusters)
            row[clusters] = True
    return [a / b if b else 0.0 for a, b in zip(fresh, read)]


def mean_pages(found: Retrieved) -> float:
    """Returns the pages of what is read, over the mean of all clusters."""
    late = found.steps[len(found.steps) // 2:]
    read = [found.pages[head][clusters] for step in late for head, clusters in enumerate(step)]
    pages = numpy.concatenate(read)
    return float(pages.mean() / (found.all_pages / found.pages.shape[1]))


def entry(name: str, found: trace.Trace) -> str:
    """Returns the C++ initialiser of a trace's statistics."""
    retrieved = Retrieved.of(found)
    heads = len(retrieved.pages)
    hits = lru_hits(retrieved.steps, retrieved.pages, retrieved.all_pages * heads)

    def whole(shares):
        return "{" + ", ".join(str(round(1e4 * share)) for share in shares) + "}"
    lines = [f'{{.trace = "{name}",', f" .tokens = {retrieved.tokens},", f" .num_layers = {found.layers},",
             f" .num_kv_heads = {found.kv_heads},", f" .first = {{{whole(first_reads(retrieved))}}},",
             f" .ever_read = {(retrieved.pages > 0).mean():.3f}f,", f" .pages = {mean_pages(retrieved):.3f}f,",
             " .lru_hits = {{" + ", ".join(f"{hit:.4f}f" for hit in hits) + "}},", " .heads = {{"]
    lines += [f"     {{{{{whole(at_depth(retrieved, head))}}}}}," for head in range(heads)]
    return "\n".join(lines + [" }}},"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", nargs="+", type=pathlib.Path)
    print("// Written by tools/lab/reuse.py.")
    for path in parser.parse_args().trace:
        print(entry(path.name.split(".")[0], trace.load(path)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
