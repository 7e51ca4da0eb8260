#!/usr/bin/env python3
"""scripts/demo.sh tells a wrong argument at once, and leaves nothing behind when it is stopped."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "scripts"
BIN = sys.argv.pop(1)


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
                          ["--tokens", "abc"], ["--questions", "17"], ["--seed", "-1"], ["--what"]):
            with self.subTest(arguments):
                result = subprocess.run([DEMO / "demo.sh", *arguments], capture_output=True,
                                        text=True, timeout=60, check=False)
                self.assertEqual(result.returncode, 2)
                self.assertEqual(result.stdout, "")
                self.assertIn(arguments[-1], result.stderr)

    def test_a_signal_ends_it_with_all_that_it_started(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name), tempfile.TemporaryDirectory() as folder:
                demo = subprocess.Popen(
                    [sys.executable, DEMO / "demo.py", "--bin-dir", BIN, "--tokens", "131072",
                     "--questions", "1", "--seed", "1"], start_new_session=True,
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                    env={**os.environ, "TMPDIR": folder})
                while not demo.stdout.readline().startswith("Q: "):  # the server is ready
                    self.assertIsNone(demo.poll())
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
