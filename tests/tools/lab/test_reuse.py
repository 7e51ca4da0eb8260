"""Statistics of retrieval traces; needs numpy."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

try:
    import numpy
    from tools.lab import reuse, trace
except ImportError as error:
    print(f"skipped: needs numpy: {error}")
    sys.exit(77)


def steps_of(*steps):
    """Returns a trace of one head whose clusters have two pages each."""
    heads = [[trace.Cluster(number, 2, 0) for number in step] for step in steps]
    return trace.Trace(1, 1, 4, [trace.Step(1, 100 + i, 64, [head], 0) for i, head in enumerate(heads)], 0, "stopped")


class ReuseTest(unittest.TestCase):
    def test_a_cache_hits_what_it_has_room_for(self):
        found = reuse.Retrieved.of(steps_of([0], [1], [0], [1]))
        # Two clusters of two pages in turns: a cache of four pages has both, one of two has none.
        self.assertEqual(reuse.lru_hits(found.steps, found.pages, 20), [0, 0, 1, 1])
        self.assertEqual(reuse.lru_hits(found.steps, found.pages, 80), [1, 1, 1, 1])

    def test_depth_is_what_was_read_since(self):
        shares = reuse.at_depth(reuse.Retrieved.of(steps_of([5, 6], [7, 8], [5, 6], [5, 8])), 0)
        # In the second half, of 64 clusters: 6 at depth 2 and 5 at depth 3, then 5 again, and 8 at depth 2.
        self.assertEqual(shares[:6], [0.25, 0, 0, 0, 0.5, 0.25])
        self.assertEqual(sum(shares[6:]), 0)

    def test_first_reads_are_counted_by_phase(self):
        first = reuse.first_reads(reuse.Retrieved.of(steps_of([1, 2], [2, 3], [1, 4], [4, 5])))
        self.assertEqual(first[:4], [1, 0.5, 0.5, 0])

    def test_only_one_sequence_is_taken(self):
        several = steps_of([1], [2])
        several.steps[1].sequence = 2
        for wrong in (several, steps_of([1])):
            with self.assertRaises(ValueError):
                reuse.Retrieved.of(wrong)

    def test_the_table_has_the_recorded_traces(self):
        table = (ROOT / "gpu_worker/measuring/synthetic/recorded_reuse_table.inc").read_text(encoding="utf-8")
        for name in ("code-32768", "needle-32768"):
            recorded = trace.load(ROOT / f"docs/evaluation/traces/{name}.trace.xz")
            found = reuse.Retrieved.of(recorded)
            begin = table.index(f'"{name}"')
            entry = table[begin:table.index("}}},", begin)]
            self.assertIn(f".tokens = {found.tokens},", entry)
            self.assertIn(f".ever_read = {(found.pages > 0).mean():.3f}f,", entry)
            self.assertIn(f".pages = {reuse.mean_pages(found):.3f}f,", entry)
            shares = numpy.array(reuse.first_reads(found)) * 1e4
            self.assertIn(", ".join(str(round(share)) for share in shares), entry)


if __name__ == "__main__":
    unittest.main()
