"""The reader of retrieval traces, against a file that the C++ recorder's test wrote."""

import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))

from tools.lab import trace  # noqa: E402

WRITER = sys.argv.pop(1)  # tests/gpu_worker/measuring/retrieval_trace/write_trace.cc


def written(*arguments: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace"
        subprocess.run([WRITER, str(path), *arguments], check=True, timeout=60)
        return path.read_bytes()


def clusters_of(step: int, head: int) -> list[tuple[int, int, int]]:
    """What write_trace.cc says a head reads in a step: number, pages, pages missed."""
    found = []
    for i in range(5 + head):
        number = (step // 2 * 7 + i * 13 + head) % 500
        found.append((number, 1 + number % 200, min(step % 3, 1 + number % 200)))
    return sorted(found)


class TraceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.data = written("40")

    def test_what_the_worker_writes_is_read(self):
        found = trace.decode(self.data)
        self.assertEqual((found.layers, found.kv_heads, found.tokens_per_page), (2, 2, 4))
        self.assertEqual((found.end, found.lost, len(found.steps)), ("stopped", 3, 40))
        for i, step in enumerate(found.steps):
            self.assertEqual((step.sequence, step.tokens, step.clusters, step.left_out),
                             (1 + i % 2, 8192 + i, 512, 0))
            for head in range(4):
                self.assertEqual([(c.number, c.pages, c.missed) for c in step.heads[head]],
                                 clusters_of(i, head))

    def test_a_trace_that_was_cut_off_has_its_whole_steps(self):
        whole = len(trace.decode(self.data).steps)
        for length in range(len(trace.MAGIC) + 5, len(self.data) - 1, 19):
            found = trace.decode(self.data[:length])
            self.assertEqual(found.end, "cut off")
            self.assertLessEqual(len(found.steps), whole)

    def test_what_is_damaged_ends_in_an_error_and_nowhere_else(self):
        randoms = random.Random(7)
        failed = 0
        for _ in range(400):
            damaged = bytearray(self.data)
            for _ in range(randoms.choice((1, 1, 3, 20))):
                damaged[randoms.randrange(len(damaged))] = randoms.choice((0, 255, 128, 127,
                                                                           randoms.randrange(256)))
            try:
                trace.decode(bytes(damaged))
            except trace.TraceError:
                failed += 1
        self.assertGreater(failed, 100)

    def test_nonsense_is_no_trace(self):
        for data in (b"", b"RITRACE", b"RITRACE2\1\1\4\x40", b"RITRACE1",
                     b"RITRACE1\0\1\4\x40", b"RITRACE1" + b"\xff" * 40,
                     b"RITRACE1\xff\xff\xff\x0f\1\4\x40",
                     b"RITRACE1\1\1\4\x40\6S\1\1\xff\xff\x7f"):
            with self.assertRaises(trace.TraceError, msg=data):
                trace.decode(data)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.xz"
            path.write_bytes(b"not xz")
            with self.assertRaises(trace.TraceError):
                trace.load(path)


if __name__ == "__main__":
    unittest.main()
