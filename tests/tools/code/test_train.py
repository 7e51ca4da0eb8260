"""The course of the code model's training."""

import importlib.util
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))


@unittest.skipUnless(importlib.util.find_spec("torch"), "needs PyTorch")
class CourseTest(unittest.TestCase):
    def test_windows_grow_and_short_ones_stay(self):
        from tools.code import train
        lengths = [train.stage_at(spent / 100, 0).length for spent in range(101)]
        self.assertEqual(lengths, sorted(lengths))
        self.assertEqual((lengths[0], lengths[-1]), (4096, 131072))
        self.assertEqual({train.stage_at(spent / 100, 2).length for spent in range(101)}, {4096})

    def test_the_rate_rises_holds_and_falls(self):
        from tools.code import train
        self.assertLess(train.rate_at(0.0, 0, 0.4), 0.01)
        self.assertEqual(train.rate_at(0.5, 1000, 0.4), 1.0)
        self.assertAlmostEqual(train.rate_at(0.8, 1000, 0.4), 0.5)
        self.assertAlmostEqual(train.rate_at(1.0, 1000, 0.4), 0.02)


if __name__ == "__main__":
    unittest.main()
