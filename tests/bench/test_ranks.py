#!/usr/bin/env python3
"""bench/ranks/measure.py with a tiny shape on the CPU: usage: test_ranks.py BIN_DIR"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(sys.argv.pop(1))


class MeasureTest(unittest.TestCase):
    def test_batches_of_two_ranks_are_measured_and_not_measured_again(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "figures.json"
            command = [sys.executable, ROOT / "bench/ranks/measure.py", "--bin-dir", BIN, "--out", out, "--smoke",
                       "--ranks", "2", "--seconds", "0", "--warm-seconds", "0",
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
