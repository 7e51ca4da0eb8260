"""Shares of pages and chunks that windows of a trace touch, against counts by hand."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tools.lab import touched, trace  # noqa: E402


def step(*heads):
    """A step of a context of four clusters a head; each head is a list of (cluster, pages)."""
    return trace.Step(1, 100, 4, [[trace.Cluster(number, pages, 0) for number, pages in head] for head in heads], 0)


class TouchedTest(unittest.TestCase):
    def setUp(self):
        # Two heads. Clusters 0 and 1 of head 0 have 2 and 6 pages, cluster 3 of head 1 has 8; others were never read: 4 each.
        self.steps = [step([(0, 2)], []), step([(0, 2), (1, 6)], [(3, 8)]), step([(1, 6)], [])]
        self.trace = trace.Trace(1, 2, 4, self.steps, 0, "stopped")

    def test_a_page_counts_once_however_often_it_is_read(self):
        context = touched.Context(self.trace, 4)
        self.assertEqual(context.num_pages, 2 + 6 + 4 + 4 + 4 + 4 + 4 + 8)
        self.assertAlmostEqual(context.page_share(self.steps[:1]), 2 / 36)
        self.assertAlmostEqual(context.page_share(self.steps), 16 / 36)

    def test_a_chunk_is_read_whole(self):
        context = touched.Context(self.trace, 4)
        self.assertEqual(context.num_chunks, 9)
        self.assertAlmostEqual(context.chunk_share(self.steps[:1]), 1 / 9)
        self.assertAlmostEqual(context.chunk_share(self.steps), 4 / 9)

    def test_neighbouring_pages_are_a_run(self):
        context = touched.Context(self.trace, 4)
        self.assertEqual(context.runs(self.steps[:1]), [(0, 2)])
        self.assertEqual(context.runs(self.steps), [(0, 8), (28, 8)])
        self.assertEqual(context.runs([step([(1, 6), (3, 4)], [(0, 4), (2, 4)])]), [(2, 6), (12, 8), (24, 4)])

    def test_windows_are_averaged(self):
        found = touched.shares(self.trace, 1, 1, 1, 4)
        self.assertEqual(found["windows"], 2)
        self.assertAlmostEqual(found["question"], (2 + 16) / 2 / 36)
        self.assertAlmostEqual(found["pages_a_run"], (2 / 1 + 16 / 2) / 2)
        self.assertAlmostEqual(found["answer"], (16 + 6) / 2 / 36)
        self.assertAlmostEqual(found["question_and_answer"], 16 / 36)

    def test_a_trace_that_is_too_short_is_refused(self):
        with self.assertRaises(ValueError):
            touched.shares(self.trace, 64, 200, 1, 4)


if __name__ == "__main__":
    unittest.main()
