#!/usr/bin/env python3
"""bench/speculation/measure.py against a served demo model: usage: test_speculation.py BIN_DIR"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "http_gateway"))
from served import Served  # noqa: E402

BIN = pathlib.Path(sys.argv.pop(1))


class MeasureTest(unittest.TestCase):
    def test_answers_are_compared_and_a_run_goes_on_where_it_was_cut_off(self):
        server = Served(BIN, "--speculation=auto")
        self.addCleanup(server.stop)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        out = pathlib.Path(folder.name) / "figures.json"
        command = [sys.executable, ROOT / "bench/speculation/measure.py", "--url", f"http://127.0.0.1:{server.port}",
                   "--out", out, "--max-tokens", "60", "--edit-characters", "900", "--extract-characters", "900",
                   "--texts", ROOT / "clients"]
        subprocess.run([*command, "--requests", "1"], check=True, timeout=100)
        first = json.loads(out.read_text())
        self.assertEqual(first["summary"].keys(), {"edit", "extract", "chat"})
        done = subprocess.run([*command, "--requests", "2", "--workload", "edit"], check=True, timeout=100,
                              stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.stdout.count('"number"'), 1, "the first request is known")
        figures = json.loads(out.read_text())
        self.assertEqual(figures["requests"][:3], first["requests"])
        self.assertEqual(figures["summary"]["edit"]["requests"], 2)
        self.assertTrue(all(report["same"] for report in figures["requests"]))
        self.assertGreater(sum(report["tokens"] for report in figures["requests"]), 60)
        other = subprocess.run([*command, "--temperature", "1"], stderr=subprocess.PIPE, text=True, check=False)
        self.assertIn("of other settings", other.stderr)

    def test_a_draft_model_is_measured_as_drafts_of_texts_are(self):
        server = Served(BIN, "--speculation=auto", f"--draft-model={ROOT}/models/needle")
        self.addCleanup(server.stop)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        out = pathlib.Path(folder.name) / "figures.json"
        subprocess.run([sys.executable, ROOT / "bench/speculation/measure.py", "--url",
                        f"http://127.0.0.1:{server.port}", "--out", out, "--max-tokens", "40", "--workload", "chat",
                        "--requests", "2"], check=True, timeout=100)
        figures = json.loads(out.read_text())
        self.assertTrue(all(report["same"] for report in figures["requests"]))


if __name__ == "__main__":
    unittest.main()
