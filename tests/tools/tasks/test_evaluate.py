"""Real tasks from end to end on the model of this tree: asked, measured, resumed and reported.

usage: test_evaluate.py FOLDER-OF-PROGRAMS
"""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tools.lab.results import read_lines  # noqa: E402
from tools.tasks import ruler  # noqa: E402
from tools.tasks.server import Server  # noqa: E402

BIN = pathlib.Path(sys.argv.pop(1))
MODEL = ROOT / "models" / "needle"
# Segments lie behind 68 tokens, and at least 64 of their clusters of 16 are attended.
SERVE = ["--dense-below", "1024", "--arena-bytes", "256MiB", "--device", "cpu"]
LENGTH = 3200
EXACT, SPARSE = "wave:1", "wave:0.01"


def run(*arguments):
    """Runs a program of tools/tasks."""
    name, *rest = map(str, arguments)
    return subprocess.run([sys.executable, "-m", f"tools.tasks.{name}", *rest], cwd=ROOT,
                          capture_output=True, text=True, check=False)


class EvaluateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(BIN, MODEL, SERVE)
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.__exit__)
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.out = pathlib.Path(cls.folder.name) / "tasks.jsonl"
        cls.arguments = ["evaluate", "--part", "ruler", "--url", cls.server.url, "--model", MODEL,
                         "--length", LENGTH, "--questions", 1, "--setting", "full", "--setting",
                         EXACT, "--setting", SPARSE, "--out", cls.out]
        cls.first = run(*cls.arguments)
        cls.lines = {tuple(line["key"]): line for line in read_lines([cls.out])}

    def line(self, task, setting):
        return self.lines["ruler", LENGTH, task, 0, 1, "needle", "default", setting]

    def changes(self, setting):
        """The mean absolute change of a token's log-probability, by task."""
        found = {}
        for task in ruler.TASKS:
            pairs = list(zip(self.line(task, "full")["logprobs"],
                             self.line(task, setting)["logprobs"], strict=True))
            found[task] = sum(abs(a - b) for a, b in pairs) / len(pairs)
        return found

    def test_every_task_is_measured_under_every_setting(self):
        self.assertEqual(self.first.returncode, 0, self.first.stderr)
        self.assertEqual(len(self.lines), 3 * len(ruler.TASKS))
        for task in ruler.TASKS:
            line = self.line(task, "full")
            self.assertLess(line["prompt_tokens"], LENGTH)
            self.assertGreater(line["prompt_tokens"], 0.85 * LENGTH)
            self.assertTrue(line["logprobs"] and max(line["logprobs"]) <= 0, line)
            self.assertEqual(line["kv_read"], 1)

    def test_all_retrieved_is_full_attention_and_little_is_not(self):
        # Sums in another order, over keys and values in bf16; a token that is nearly certain to be
        # wrong moves most.
        exact, sparse = self.changes(EXACT), self.changes(SPARSE)
        self.assertLess(max(exact.values()), 0.05, exact)
        self.assertGreater(max(sparse.values()), 0.05, sparse)
        self.assertGreater(sum(sparse.values()), 3 * sum(exact.values()))
        for task in ruler.TASKS:
            self.assertLess(self.line(task, SPARSE)["kv_read"], 0.8, task)

    def test_what_is_there_is_not_measured_again(self):
        before = self.out.read_text(encoding="utf-8")
        again = run(*self.arguments)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("0 measurements are missing, 0 failed", again.stdout)
        self.assertEqual(self.out.read_text(encoding="utf-8"), before)

    def test_the_report_has_a_row_for_each(self):
        shown = run("report", self.out).stdout
        for setting in (EXACT, SPARSE):
            for task in [*ruler.TASKS, "**all**"]:
                self.assertIn(f"| {setting} | {task} | ", shown)

    def test_long_answers_are_written_and_read(self):
        texts = pathlib.Path(self.folder.name) / "texts"
        texts.mkdir()
        (texts / "code_own.txt").write_text("".join(
            path.read_text(encoding="utf-8") for path in sorted((ROOT / "tools").rglob("*.py"))[:20]
        ).encode("ascii", "replace").decode(), encoding="ascii")
        out = pathlib.Path(self.folder.name) / "long.jsonl"
        result = run("evaluate", "--part", "long", "--bin-dir", BIN, "--model", MODEL, "--serve",
                     "own=" + " ".join(SERVE), "--length", 3000, "--answer-tokens", 256, "--texts",
                     texts, "--setting", "full", "--setting", SPARSE, "--out", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [line for line in read_lines([out]) if line["key"][0] == "long"]
        self.assertEqual({(line["key"][3], line["key"][-1]) for line in lines},
                         {(mode, setting) for mode in ("greedy", "0.7")
                          for setting in ("full", SPARSE)})
        for line in lines:
            part, = line["stretches"]
            self.assertEqual((part["tokens"], part["grams"]), (256, 249))
            self.assertLess(part["logprob"], 0)
            self.assertTrue(2500 < line["prompt_tokens"] <= 3000 - 256, line)
        self.assertIn("| 0.7 | full | 1 | ", run("report", out).stdout)

    def test_a_signal_ends_it_with_the_server(self):
        out = pathlib.Path(self.folder.name) / "stopped.jsonl"
        with subprocess.Popen(
                [sys.executable, "-m", "tools.tasks.evaluate", "--part", "ruler", "--bin-dir", BIN,
                 "--model", MODEL, "--serve", "own=" + " ".join(SERVE), "--length", "3200",
                 "--out", out], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True) as program:
            self.assertIn("niah_single", program.stdout.readline())  # the server answers
            children = pathlib.Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text()
            program.terminate()
            program.communicate(timeout=100)
        self.assertEqual(program.returncode, 128 + signal.SIGTERM)
        self.assertTrue(children.split())
        for child in children.split():
            self.assertFalse(pathlib.Path(f"/proc/{child}").exists())

    def test_what_cannot_be_is_told(self):
        for more, words in ((["--length", 10**7], "at most 131072"),
                            (["--length", 100], "at least 512"),
                            (["--part", "manuals"], "--manuals FOLDER"),
                            (["--setting", "dense"], "wave:RATIO")):
            result = run(*self.arguments[:7], "--out", self.out, *more)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(words, result.stderr)

    def test_after_the_time_nothing_is_begun(self):
        out = pathlib.Path(self.folder.name) / "late.jsonl"
        result = run(*self.arguments[:-1], out, "--seconds", 1e-9)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"{3 * len(ruler.TASKS)} measurements are missing", result.stdout)
        self.assertFalse(out.exists() and json.loads(out.read_text(encoding="utf-8")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
