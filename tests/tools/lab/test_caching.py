"""Cache policies on traces against plain loops; needs numpy."""

import pathlib
import random
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

try:
    import numpy as np
    from tools.lab import caching
except ImportError as error:
    print(f"skipped: needs numpy: {error}")
    sys.exit(77)


class CachingTest(unittest.TestCase):
    def setUp(self):
        random.seed(2)
        made = np.random.default_rng(3)
        often = made.random((1, 2, 2, 40)) ** 3
        self.zones = made.random((60, 2, 2, 40)) < often
        self.pages = made.integers(1, 6, (2, 2, 40))
        self.turns = caching.turns_of(self.zones)
        self.flat = self.pages.reshape(-1).astype(float)

    def loop(self, worth_of, capacity):
        """Hits of a cache that gives up the least worth, cluster by cluster."""
        there, hits, wanted = set(), 0.0, 0.0
        past = []
        for turn, clusters in enumerate(self.turns):
            clusters = clusters.tolist()
            for one in clusters:
                if turn >= len(self.turns) // 2:
                    wanted += self.flat[one]
                    hits += self.flat[one] * (one in there)
            there |= set(clusters)
            past.append(set(clusters))
            order = sorted(there, key=lambda one: (worth_of(one, past, turn), one))
            while sum(self.flat[one] for one in there) > capacity:
                there.remove(order.pop(0))
        return hits / wanted

    def check(self, policy, worth_of, capacity):
        found, by_layer = caching.run(policy, self.turns, self.flat, capacity, 2)
        self.assertAlmostEqual(found, self.loop(worth_of, capacity), 6)
        self.assertEqual(len(by_layer), 2)

    def test_least_recently_used(self):
        def last(one, past, turn):
            return max(t for t in range(turn + 1) if one in past[t])

        def last_but_one(one, past, turn):
            seen = [t for t in range(turn + 1) if one in past[t]]
            return (seen[-2] if len(seen) > 1 else -1, seen[-1])
        for capacity in (80.0, 200.0):
            self.check(caching.Lru(160), last, capacity)
            self.check(caching.LruTwo(160), last_but_one, capacity)

    def test_frequency_counts_half_after_the_half_life(self):
        def sums(one, past, turn):
            return sum(2.0 ** ((t - turn) / (caching.HALF_LIFE * 2))
                       for t in range(turn + 1) if one in past[t])
        self.check(caching.Frequency(160, 2), sums, 120.0)

    def test_the_oracle_keeps_what_comes_next(self):
        def nearest(one, past, turn):
            coming = [t for t in range(turn + 1, len(self.turns)) if one in self.turns[t]]
            return -coming[0] if coming else -caching.NEVER
        self.check(caching.Oracle(160, self.turns), nearest, 120.0)

    def test_the_adaptive_one_lies_between_and_keeps_its_promise_of_room(self):
        found = caching.compare(self.zones, self.pages)
        for share in map(str, caching.SHARES):
            ratios = {name: by_share[share]["hits"] for name, by_share in found.items()}
            self.assertEqual(max(ratios, key=ratios.get), "oracle")
            self.assertGreater(ratios["ARC-like"], 0.7 * ratios["LRU"])
        policy = caching.Adaptive(160, 100.0, self.flat)
        caching.run(policy, self.turns, self.flat, 100.0, 2)
        self.assertLessEqual(self.flat[policy.ghost].sum(), 100.0)

    def test_what_prefetching_would_find(self):
        zones = np.zeros((3, 2, 1, 4), dtype=bool)
        guess = np.zeros((3, 1, 1, 4), dtype=bool)
        pages = np.ones((2, 1, 4), dtype=np.uint8)
        pages[1, 0, 2] = 3
        zones[:, 1, 0, 0] = True
        zones[1, 1, 0, 2] = zones[2, 1, 0, 3] = True  # new: 3 pages, then 1
        guess[1, 0, 0, [0, 1, 2]] = True
        found, = caching.prefetch(zones, guess, pages)
        self.assertEqual(found, {"layer": 1, "of_all": round(4 / 6, 4), "of_new": 0.75,
                                 "fetched_for_one": round(4 / 3, 3)})


if __name__ == "__main__":
    unittest.main()
