#!/usr/bin/env python3
"""bench/compare_builds.py with programs that print what the real ones would."""
import json
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

LAYER = """
print("%-34s %9d %9.2f %9d %8.2f" % ("score", 1, {score}, 1640, 0.54))
print("%-34s %9d %9.2f" % ("whole layer, 98 % hits", 6, {layer}))
"""
PRODUCTS = """
for rows in range(1, 42):
    print("%-14s %-14s %5d rows %9.1f us %7.0f GB/s" % ("down", "fp8 by block", rows, {us}, 900))
"""


class CompareBuildsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for build in ("before", "after"):
            (self.folder / build).mkdir()

    def program(self, build, name, text):
        path = self.folder / build / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def compare(self, *options):
        return subprocess.run(
            [sys.executable, ROOT / "bench/compare_builds.py", *options], cwd=self.folder,
            capture_output=True, text=True, check=False)

    def test_changes_above_two_percent_are_bold(self):
        self.program("before", "wave_stages_bench", LAYER.format(score=8.0, layer=140.0))
        self.program("after", "wave_stages_bench", LAYER.format(score=8.4, layer=141.4))
        done = self.compare("before", "after", "--only", "layer", "--rounds", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| score, batch 1 | 8 us | 8.4 us | **+5.0 %** |", done.stdout)
        self.assertIn("| whole layer, 98 % hits, batch 6 | 140 us | 141.4 us | +1.0 % |", done.stdout)
        figures = json.loads((self.folder / "stages.json").read_text())
        self.assertEqual(figures["score, batch 1"]["after"], [8.4, 8.4])
        self.assertEqual(self.compare("--render", "stages.json").stdout, done.stdout)

    def test_many_stages_of_a_program_are_a_line(self):
        self.program("before", "linear_cuda_bench", PRODUCTS.format(us="10.0"))
        self.program("after", "linear_cuda_bench", PRODUCTS.format(us="10.0 + (rows == 41)"))
        done = self.compare("before", "after", "--only", "products", "--rounds", "1")
        self.assertIn("| products, 41 stages: the median change | | | +0.0 % (+0.0 to +10.0) |",
                      done.stdout)

    def test_a_program_that_fails_is_said_and_ends_with_1(self):
        self.program("before", "wave_stages_bench", LAYER.format(score=8.0, layer=140.0))
        self.program("after", "wave_stages_bench", "raise SystemExit('no GPU')")
        done = self.compare("before", "after", "--only", "layer", "--rounds", "1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no GPU", done.stderr)
        self.assertNotIn("score", done.stdout)

    def test_unknown_stages_are_refused(self):
        done = self.compare("before", "after", "--only", "layers")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no stages layers; there are layer, products", done.stderr)


if __name__ == "__main__":
    unittest.main()
