"""What the block cache missed in a recorded trace, beside an exact LRU over the same look-ups.

    python3 -m tools.lab.evictions TRACE --slots N [--from STEP]

`--slots`: of the cache that was recorded, in pages. A miss that the LRU does not have has a cause: the page was not in
the cache although it was missed before and nothing has thrown it out (no slot was free for it), or it was evicted while
it was younger than what the LRU keeps. A cluster's pages are looked up together, so clusters are replayed, and pages
counted. Needs the standard library alone.
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import sys

from . import trace


class Lru:
    """A cache of clusters that forgets the least recently used ones, as many as take it to its pages."""

    def __init__(self, slots: int):
        self.slots, self.held = slots, 0
        self.clusters: collections.OrderedDict[tuple[int, int, int], int] = collections.OrderedDict()

    def use(self, key: tuple[int, int, int], pages: int) -> bool:
        """Uses a cluster; returns whether it was there."""
        if key in self.clusters:
            self.clusters.move_to_end(key)
            return True
        self.clusters[key] = pages
        self.held += pages
        while self.held > self.slots:
            self.held -= self.clusters.popitem(last=False)[1]
        return False


@dataclasses.dataclass
class Sums:
    """Pages, of the steps that count."""
    looked_up: int = 0
    missed: int = 0
    lru_missed: int = 0
    first: int = 0       # missed by both: never looked up before in what was recorded
    only_ours: int = 0   # missed, where the LRU hits
    only_lru: int = 0    # hit, where the LRU misses
    # Of only_ours, by the steps since the cluster's last use.
    by_age: collections.Counter = dataclasses.field(default_factory=collections.Counter)


def age_class(age: int) -> str:
    """Names a range of ages."""
    for end in (1, 2, 4, 8, 16, 32, 64, 128):
        if age <= end:
            return f"to {end}"
    return "more"


def replay(found: trace.Trace, slots: int, first_step: int) -> Sums:
    """Replays a trace; steps of a sequence are counted from its `first_step` on."""
    sums, lru = Sums(), Lru(slots)
    last: dict[tuple[int, int, int], int] = {}
    steps: collections.Counter[int] = collections.Counter()
    for step in found.steps:
        now = steps[step.sequence]
        steps[step.sequence] += 1
        counts = now >= first_step
        for head, clusters in enumerate(step.heads):
            for cluster in clusters:
                key = (step.sequence, head, cluster.number)
                hit = lru.use(key, cluster.pages)
                if counts:
                    lru_missed = 0 if hit else cluster.pages
                    sums.looked_up += cluster.pages
                    sums.missed += cluster.missed
                    sums.lru_missed += lru_missed
                    if key not in last:
                        sums.first += cluster.missed
                    sums.only_lru += max(0, lru_missed - cluster.missed)
                    only = max(0, cluster.missed - lru_missed)
                    if only:
                        sums.only_ours += only
                        sums.by_age[age_class(now - last[key]) if key in last else "never"] += only
                last[key] = now
    return sums


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--from", type=int, default=0, dest="first_step", help="step of each sequence")
    args = parser.parse_args()
    sums = replay(trace.load(args.trace), args.slots, args.first_step)
    looked_up = max(1, sums.looked_up)
    print(json.dumps({
        "looked_up": sums.looked_up,
        "hit_ratio": 1 - sums.missed / looked_up,
        "lru_hit_ratio": 1 - sums.lru_missed / looked_up,
        "missed_for_the_first_time": sums.first / looked_up,
        "missed_only_here": sums.only_ours / looked_up,
        "missed_only_by_lru": sums.only_lru / looked_up,
        "missed_only_here_by_age": {name: count / looked_up for name, count in sums.by_age.most_common()},
    }, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
