"""The product scores as the laboratory does, and their table; needs PyTorch and tokenizers.

usage: test_agreement.py FOLDER-OF-PROGRAMS
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tools.lab import product_agreement as agreement  # noqa: E402
from tools.lab.results import read_lines  # noqa: E402

BIN = pathlib.Path(sys.argv.pop(1))
MODEL = ROOT / "models" / "code"
try:
    import safetensors  # noqa: F401
    import tokenizers  # noqa: F401
    import torch  # noqa: F401
except ImportError as error:
    print(f"skipped: needs PyTorch, tokenizers and safetensors: {error}")
    sys.exit(77)


def line(side, index, policy, logprobs, greedy):
    return {"key": ["agreement", "m", 8260, 2, "code_a", 0, side, index, policy],
            "logprobs": logprobs, "greedy": greedy, "kv_read": 0.2}


class TableTest(unittest.TestCase):
    def test_documents_end_where_segments_do(self):
        for length in (9216, 16384, 32400):
            tokens = agreement.document_tokens(length, 512)
            self.assertEqual((tokens - 68) % 1024, 0)
            self.assertLessEqual(tokens + 513, length)
            self.assertGreater(tokens + 513 + 1024, length)

    def test_a_row_compares_four_series(self):
        lines = [line("product", "int8", "full", [-1.0, -2.0], [True, False]),
                 line("lab", "none", "full", [-1.1, -2.1], [True, True]),
                 line("product", "int8", "wave", [-1.5, -1.0], [True, False]),
                 line("lab", "int8", "wave", [-1.6, -1.1], [True, False])]
        table = agreement.block(lines)
        # Changes are -0.5 and 1.0 on both sides.
        self.assertIn("| int8 | 1 | 4.4817 / 4.9530 | 3.4903 / 3.8574 | 0.1000 | 50.0 | 0.1000 | "
                      "100.0 | 0.7500 / 0.7500 | 1.000 | 20 |", table)
        self.assertEqual(agreement.block(lines[:3]), "")  # the laboratory's wave is missing


class ProductTest(unittest.TestCase):
    def test_both_say_the_same_of_the_same_tokens(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "texts").mkdir()
            (folder / "texts" / "code_own.txt").write_text("".join(
                path.read_text(encoding="utf-8")
                for path in sorted((ROOT / "tools" / "lab").glob("*.py"))), encoding="utf-8")
            out = folder / "out.jsonl"
            result = subprocess.run(
                [sys.executable, "-m", "tools.lab.product_agreement", "--bin-dir", BIN, "--model",
                 MODEL, "--texts", folder / "texts", "--length", "9216", "--tail", "128",
                 "--documents", "1", "--index", "int8", "--out", out,
                 "--serve=--arena-bytes 256MiB --device cpu --max-model-len 16384"],
                cwd=ROOT, capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 0, result.stderr)
            found = {tuple(one["key"][6:]): one for one in read_lines([out])}
        full, lab_full, wave, lab_wave = (found[key]["logprobs"] for key in (
            ("product", "int8", "full"), ("lab", "none", "full"), ("product", "int8", "wave"),
            ("lab", "int8", "wave")))
        self.assertEqual([len(one) for one in (full, lab_full, wave, lab_wave)], [128] * 4)
        # The product keeps keys and values in bf16, the laboratory on a CPU in fp32.
        self.assertLess(agreement.Pair(full, lab_full).size(), 0.03)
        self.assertLess(agreement.Pair(wave, lab_wave).size(), 0.05)
        change = agreement.Pair(full, wave).size()
        self.assertGreater(change, 0.005)
        self.assertLess(abs(agreement.Pair(lab_full, lab_wave).size() / change - 1), 0.4)
        self.assertLess(found["product", "int8", "wave"]["kv_read"], 0.5)


if __name__ == "__main__":
    unittest.main()
