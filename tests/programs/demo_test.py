#!/usr/bin/env python3
"""scripts/demo.sh tells a wrong argument at once, compares policies on source code, and leaves nothing
behind when it is stopped."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "scripts"
BIN = sys.argv.pop(1)
sys.path.insert(0, str(DEMO))
import demo_text  # noqa: E402  pylint: disable=wrong-import-position


def processes_that_name(text):
    """Process ids of those with that text in their arguments, but for this one."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes()
        except OSError:
            continue  # it has ended
        if text.encode() in arguments and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


class DemoTest(unittest.TestCase):
    def test_a_wrong_argument_is_told_before_anything_is_built(self):
        for arguments in (["--tokens", "0"], ["--tokens", "-1"], ["--tokens", "131073"],
                          ["--tokens", "abc"], ["--questions", "17"], ["--seed", "-1"], ["--what"],
                          ["--model", "none"], ["--model", "code", "--tokens", "512"],
                          ["--model", "code", "--questions", "2"],
                          ["--model", "code", "--seed", "7"]):
            with self.subTest(arguments):
                result = subprocess.run([DEMO / "demo.sh", *arguments], capture_output=True,
                                        text=True, timeout=60, check=False)
                self.assertEqual(result.returncode, 2)
                self.assertEqual(result.stdout, "")
                self.assertIn(arguments[-1], result.stderr)

    def test_the_text_is_cut_between_tokens(self):
        encoder = demo_text.bpe.Encoder(demo_text.MODEL)
        for tokens in (1024, 5000, 20000):
            text = demo_text.make_text(tokens)
            with self.subTest(tokens):
                self.assertEqual(1 + len(encoder.encode(text.context)), text.context_tokens)
                self.assertEqual(len(encoder.encode(text.tail)), text.tail_tokens)
                self.assertEqual(1 + len(encoder.encode(text.context + text.tail)),
                                 text.context_tokens + text.tail_tokens)
                self.assertLessEqual(text.context_tokens + text.tail_tokens, tokens)
                self.assertGreater(text.context_tokens + text.tail_tokens, tokens - 200)
                self.assertGreaterEqual(text.tail_tokens, demo_text.TAIL_TOKENS)
                lines = (DEMO.parent / text.file).read_text().splitlines(keepends=True)
                self.assertTrue(text.context.endswith("".join(lines[:text.lines])))
                self.assertTrue(text.tail.startswith("".join(lines[text.lines:text.lines + 2])))

    def test_more_source_than_there_is_is_refused_with_what_there_is(self):
        with self.assertRaises(ValueError) as caught:
            demo_text.make_text(10**9)
        possible = int(re.search(r"--tokens (\d+) is possible", str(caught.exception))[1])
        self.assertGreater(possible, 131072)  # every length that the demonstration takes
        text = demo_text.make_text(possible - 1)
        self.assertGreater(text.context_tokens, 131072)

    def test_both_policies_continue_source_code(self):
        # Short contexts are exact under both, longer ones are not.
        for tokens, is_exact in ((1024, True), (9216, False)):
            with self.subTest(tokens), tempfile.TemporaryDirectory() as folder:
                demo = subprocess.run(
                    [sys.executable, DEMO / "demo.py", "--bin-dir", BIN, "--model", "code", "--tokens",
                     str(tokens)], capture_output=True, text=True, check=False,
                    env={**os.environ, "TMPDIR": folder})
                self.assertEqual(demo.returncode, 0, demo.stderr)
                self.assertEqual(os.listdir(folder), [])
                told = re.search(r"Ask in a browser: (\S+) serve --model (\S+) --http (\S+)\nand open http://(\S+)\n",
                                 demo.stdout)
                self.assertTrue(os.access(told[1], os.X_OK) and os.path.isdir(told[2]), told[0])
                self.assertEqual(told[3], told[4])
                text = demo_text.make_text(tokens)
                shown = demo.stdout
                table = map(str.split, shown.partition("policy ")[2].splitlines())
                rows = {row[0]: row[1:] for row in table if row and row[0] in demo_text.POLICIES}
                for policy in demo_text.POLICIES:
                    self.assertEqual(rows[policy][0], f"{text.context_tokens:,}", shown)
                self.assertEqual(rows["full"][-2], "100.0%")
                self.assertIn(f"Fed the {text.tail_tokens} tokens that follow", shown)
                agreement = float(re.search(r"the same token ([\d.]+) %", shown)[1])
                change = float(re.search(r"changes by ([\d.]+) on average", shown)[1])
                if is_exact:
                    self.assertEqual((agreement, change), (100.0, 0.0))
                    self.assertIn("both write the same 64 of 64 tokens.", shown)
                else:
                    self.assertLess(float(rows["wave"][-2].rstrip("%")), 50)
                    self.assertGreater(agreement, 80)
                    self.assertTrue(0 < change < 0.5, change)

    def test_a_signal_ends_it_with_all_that_it_started(self):
        needle = ["--tokens", "131072", "--questions", "1", "--seed", "1"]
        code = ["--model", "code", "--tokens", "32768"]
        for number, arguments, ready in ((signal.SIGINT, needle, "Q: "),
                                         (signal.SIGTERM, needle, "Q: "),
                                         (signal.SIGINT, code, "its last lines")):
            with self.subTest(f"{number.name} {arguments}"), tempfile.TemporaryDirectory() as folder, \
                    tempfile.TemporaryFile("w+") as errors:
                demo = subprocess.Popen(
                    [sys.executable, DEMO / "demo.py", "--bin-dir", BIN, *arguments],
                    start_new_session=True, stdout=subprocess.PIPE, stderr=errors,
                    text=True, env={**os.environ, "TMPDIR": folder})
                while not demo.stdout.readline().startswith(ready):  # the server is ready
                    if demo.poll() is not None:
                        errors.seek(0)
                        self.fail(f"ended with {demo.returncode}: {errors.read()}")
                os.killpg(demo.pid, number)  # as a terminal does
                time.sleep(0.2)
                if demo.poll() is None:
                    os.killpg(demo.pid, number)  # as who is impatient does
                demo.communicate(timeout=120)
                self.assertEqual(demo.returncode, 128 + number)
                self.assertEqual(os.listdir(folder), [])
                self.assertEqual(processes_that_name(folder), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
