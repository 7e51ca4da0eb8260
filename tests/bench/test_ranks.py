#!/usr/bin/env python3
"""bench/ranks/measure.py with a tiny shape on the CPU: usage: test_ranks.py BIN_DIR"""
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench.ranks import measure  # noqa: E402

BIN = pathlib.Path(sys.argv.pop(1))


class ArenaTest(unittest.TestCase):
    def gib(self, batch, ranks=1, option=(), shape="llama-3.1-8b"):
        settings = types.SimpleNamespace(bin_dir=BIN, option=list(option), output=1008)
        case = measure.Case("case", shape, measure.CONTEXT, [1, batch], measure.FP8)
        return case.arena_bytes(ranks, settings) / measure.GIB

    def test_an_arena_is_as_large_as_its_format_needs(self):
        packed = ["--index-dtype=packed"]
        # Decision 0105: 15 segments of 8,192 tokens and two of 1,024, of 0.537 GiB or, at the worst, 0.756.
        self.assertAlmostEqual(self.gib(14, option=packed), 14 * (15 + 2 / 8) * 0.537, delta=0.5)
        self.assertAlmostEqual(self.gib(10), 10 * (15 + 2 / 8) * 0.756, delta=0.5)
        # Ranks divide the segments; together they take no more.
        self.assertEqual(self.gib(14, ranks=2, option=packed), self.gib(14, option=packed))

    def test_a_shape_that_nobody_knows_ends_with_what_check_says(self):
        with self.assertRaisesRegex(RuntimeError, "there are llama-3-8b"):
            self.gib(1, shape="llama-9-9b")

    def test_the_last_value_of_an_option_counts(self):
        options = ["--kv-dtype", "int8", "--device", "cpu", "--kv-dtype=bf16"]
        self.assertEqual(measure.value_of("--kv-dtype", options), "bf16")
        self.assertEqual(measure.value_of("--device", options), "cpu")
        self.assertIsNone(measure.value_of("--index-dtype", options))


class MeasureTest(unittest.TestCase):
    def test_batches_of_two_ranks_are_measured_and_not_measured_again(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "figures.json"
            command = [sys.executable, ROOT / "bench/ranks/measure.py", "--bin-dir", BIN, "--out", out, "--smoke",
                       "--ranks", "2", "--option=--index-dtype=packed", "--seconds", "0", "--warm-seconds", "0",
                       "--output", "60000"]  # more than is written meanwhile
            subprocess.run(command, check=True, timeout=200)
            figures = json.loads(out.read_text())
            self.assertEqual([one["batch"] for one in figures[0]["decode"]], [1, 2])
            for one in figures[0]["decode"]:
                self.assertGreater(one["tokens_per_second"], 0)
                self.assertGreater(one["step_ms"], 0)
            again = subprocess.run(command, check=True, timeout=60, stdout=subprocess.PIPE, text=True)
            self.assertEqual(again.stdout, "")


if __name__ == "__main__":
    unittest.main()
