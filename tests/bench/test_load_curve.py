"""The plot of latency against load, from figures as `retroinfer bench` gives them."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "scheduler"))

import load_curve  # noqa: E402


def report():
    points = [{"load": load, "rate": 2 * load, "median_ttft_ms": 10 * load, "p99_ttft_ms": 50 * load, "median_itl_ms": 5,
               "p99_itl_ms": 20, "request_goodput": min(2.0, 2 * load), "failed": 0} for load in (0.25, 1, 3)]
    return {"on": "cpu", "input_len": 256, "output_len": 32, "capacity": 2.0, "points": points}


class LoadCurveTest(unittest.TestCase):
    def test_each_figure_is_a_line_with_a_point_for_each_load(self):
        picture = ElementTree.fromstring(load_curve.draw(report()))
        lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
        self.assertEqual([len(line.get("points").split()) for line in lines], [3] * 5)
        words = "".join(picture.itertext())
        self.assertIn("first token, p99", words)
        self.assertIn("256 + 32 tokens", words)

    def test_a_report_becomes_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "report.json"
            path.write_text(json.dumps(report()))
            plot = pathlib.Path(folder) / "plot.svg"
            self.assertEqual(load_curve.main(["plot", str(path), str(plot)]), 0)
            self.assertEqual(plot.read_text(encoding="utf-8"), load_curve.draw(report()))

    def test_what_is_no_report_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "report.json"
            path.write_text("{}")
            told = io.StringIO()
            with contextlib.redirect_stderr(told):
                self.assertEqual(load_curve.main(["plot", str(path), str(path) + ".svg"]), 1)
            self.assertIn("load_curve:", told.getvalue())


if __name__ == "__main__":
    unittest.main()
