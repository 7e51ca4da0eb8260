"""Traces replayed through an exact LRU, by hand and against a naive one."""

import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))

from tools.lab import evictions, trace  # noqa: E402


def trace_of(steps: list[list[tuple[int, int, int]]]) -> trace.Trace:
    """Steps of one sequence and head, each a list of (cluster, pages, missed)."""
    made = [trace.Step(1, 0, 1000, [[trace.Cluster(*cluster) for cluster in step]], 0) for step in steps]
    return trace.Trace(1, 1, 4, made, 0, "stopped")


class EvictionsTest(unittest.TestCase):
    def test_a_miss_that_an_lru_has_not_is_told_by_its_age(self):
        # Three pages of each of two clusters in eight slots; the second is missed again at once.
        sums = evictions.replay(trace_of([[(1, 3, 3), (2, 3, 3)], [(1, 3, 0), (2, 3, 2)], [(2, 3, 0)]]), 8, 0)
        self.assertEqual((sums.looked_up, sums.missed, sums.lru_missed, sums.first), (15, 8, 6, 6))
        self.assertEqual((sums.only_ours, sums.only_lru), (2, 0))
        self.assertEqual(dict(sums.by_age), {"to 1": 2})

    def test_what_an_lru_forgets_it_misses(self):
        steps = [[(1, 4, 4)], [(2, 4, 4)], [(3, 4, 4)], [(1, 4, 0)]]
        sums = evictions.replay(trace_of(steps), 8, 0)
        self.assertEqual((sums.lru_missed, sums.only_lru, sums.only_ours), (16, 4, 0))
        sums = evictions.replay(trace_of(steps), 12, 3)
        self.assertEqual((sums.looked_up, sums.lru_missed, sums.missed), (4, 0, 0))

    def test_it_is_an_lru(self):
        randoms = random.Random(5)
        naive: list[int] = []
        lru = evictions.Lru(20)
        for _ in range(2000):
            cluster = min(randoms.randrange(30), randoms.randrange(30))
            hit = cluster in naive
            if hit:
                naive.remove(cluster)
            naive = [cluster, *naive][:10]
            self.assertEqual(lru.use((1, 0, cluster), 2), hit)

    def test_sequences_and_heads_do_not_share_clusters(self):
        cluster = trace.Cluster(1, 2, 2)
        steps = [trace.Step(sequence, 0, 10, [[cluster], [cluster]], 0) for sequence in (1, 2)]
        sums = evictions.replay(trace.Trace(1, 2, 4, steps, 0, "stopped"), 100, 0)
        self.assertEqual((sums.lru_missed, sums.first), (8, 8))


if __name__ == "__main__":
    unittest.main()
