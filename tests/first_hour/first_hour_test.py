#!/usr/bin/env python3
"""A newcomer's first hour: the commands of README.md and docs/use/quick-start.md as they stand there, in a clean
checkout, in an empty environment, without a network, on a terminal and without one.

What a machine of tests does not have is substituted, and SUBSTITUTIONS says by what; the rest runs as written.

usage: first_hour_test.py BIN_DIR
"""
import fcntl
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

import marked_blocks
import shell_session

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]
PORTS = (8000, 50051, 9401, 9402)
ALONE = "RETROINFER_TEST_ALONE"  # in the environment of one that has a network of its own
PATIENCE = 180  # of a busy machine; all tests together take a minute

SUBSTITUTIONS = """In place of                          stands
scripts/bootstrap.sh                 nothing: the machine has built the programs already
cmake                                a program that notes what it is told and puts BIN_DIR in build/release/bin
scripts/test.sh                      nothing: that is every test
DIR                                  models/needle, the demo model, which answers questions about numbers alone
runbook.md and metrics.md            runbook.md: the demo model has twice as many tokens for a text
integers and strings of the form     such with an end: the demo model does not come to one by itself
the answers of chat and generate     at most 20 tokens of them, likewise
"""
IN_README = {"scripts/test.sh": "true"}
IN_QUICK_START = {
    " DIR": " models/needle",
    "docs/operate/runbook.md docs/operate/metrics.md": "docs/operate/runbook.md",
    '"number": {"type": "integer"}': '"number": {"type": "integer", "minimum": 0, "maximum": 9999}',
    '"company": {"type": "string"}': '"company": {"type": "string", "maxLength": 12}',
    '"euros": {"type": "number"}': '"euros": {"enum": [129.50, 4711]}',
    '"temperature": 0, "messages": [\n  {"role": "user", "content": "Write':
        '"temperature": 0, "max_tokens": 20, "messages": [\n  {"role": "user", "content": "Write',
    "retroinfer generate --temperature 0": "retroinfer generate --max-tokens 20 --temperature 0",
}
CMAKE = """#!/bin/sh
echo "$@" >>"$CMAKE_NOTES"
case "$1" in --build) mkdir -p build/release && ln -sfn "$BIN_DIR" build/release/bin ;; esac
"""


def be_alone():
    """Goes on in a network of its own, where all ports are free; else the ports of the pages must be."""
    if os.environ.get(ALONE) == "yes":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:  # lo up
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1 | 0x40))
        return
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode == 0:
        os.environ[ALONE] = "yes"
        os.execvp("unshare", ["unshare", "-rn", sys.executable, *sys.argv])
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                print(f"skipped: no network namespaces here, and port {port} is taken")
                sys.exit(SKIPPED)


def copy_checkout(to):
    """What a clone of the working tree has."""
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                           capture_output=True, check=False).stdout.decode().split("\0")
    if names == [""]:  # not from git
        shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns("build"))
        return
    for name in names:
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)


def substitute(blocks, substitutions):
    """Each of them must find something: what is no longer in the page needs no substitute."""
    for old, new in substitutions.items():
        assert any(old in text for text in blocks.values()), f"no block has {old!r} any more"
        blocks = {name: text.replace(old, new) for name, text in blocks.items()}
    return blocks


class FirstHour(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        clone = tempfile.TemporaryDirectory(prefix="first-hour-")
        cls.addClassCleanup(clone.cleanup)
        cls.checkout = pathlib.Path(clone.name) / "retroinfer"
        copy_checkout(cls.checkout)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="first-hour-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        shutil.rmtree(self.checkout / "build", ignore_errors=True)
        for name in ("bin", "home", "run"):
            (self.folder / name).mkdir(mode=0o700)
        self.notes = self.folder / "cmake-notes"
        self._program(self.folder / "bin/cmake", CMAKE)
        self._program(self.checkout / "scripts/bootstrap.sh", "#!/bin/sh\n")
        self.environment = {"PATH": f"{self.folder}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": f"{self.folder}/home",
                            "XDG_RUNTIME_DIR": f"{self.folder}/run", "TERM": "xterm", "LANG": "C.UTF-8",
                            "BIN_DIR": str(BIN), "CMAKE_NOTES": str(self.notes)}

    def _program(self, path, text):
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def session(self, blocks, terminal):
        """Runs the blocks; all of them must be reached, and end well."""
        found, errors = shell_session.run(blocks, self.checkout, self.environment, terminal, PATIENCE)
        for name in blocks:
            self.assertIn(name, found, f"'{name}' has not ended:\n{errors[-3000:]}")
            self.assertEqual(found[name].status, 0, f"'{name}': {found[name].text[-1500:]}\n{errors[-3000:]}")
        return found, errors

    def check_build(self):
        """The pages tell CMake what there is."""
        told = [line.split() for line in self.notes.read_text(encoding="utf-8").splitlines()]
        presets = json.loads((self.checkout / "CMakePresets.json").read_text(encoding="utf-8"))
        for kind, words in (("configurePresets", told[0]), ("buildPresets", told[1])):
            preset = words[words.index("--preset") + 1]
            self.assertIn(preset, [one["name"] for one in presets[kind]])
        for target in told[1][told[1].index("--target") + 1:]:
            self.assertTrue((BIN / target).exists(), target)

    def check_asked(self, block):
        """The answer is what README.md shows."""
        answer = json.loads(block.text[block.text.index('{"id"'):].splitlines()[0])
        page = (self.checkout / "README.md").read_text(encoding="utf-8")
        shown = page[page.index('{"id": "chatcmpl-'):]
        self.assertEqual(answer["choices"][0]["message"]["content"], re.search(r'"content": "(.*?)"', shown)[1])
        for name in ("prompt_tokens", "completion_tokens", "kv_read_ratio"):
            self.assertEqual(answer["usage"][name], int(re.search(rf'"{name}": (\d+)', shown)[1]), name)

    def check_line_width(self, text):
        """A line that is rewritten and wraps cannot be taken back."""
        lines = re.findall(r"\r\x1b\[K(prefill [^\r\n\x1b]+)", text)
        self.assertTrue(lines)
        for line in lines:
            self.assertLess(len(line), shell_session.COLUMNS)

    def ask_as_readme_says(self, terminal):
        blocks = marked_blocks.commands(ROOT / "README.md")
        self.assertEqual(list(blocks), ["ask", "generate", "demo"])
        del blocks["demo"]
        blocks["end"] = "kill %1 && wait %1"
        found, _ = self.session(blocks, terminal)
        self.check_build()
        self.check_asked(found["ask"])
        # On a terminal behind the progress, and with no line of the server's log in it.
        self.assertRegex(found["generate"].text, r"\x1b\[K 1756423\n" if terminal else r"(?m)^ 1756423$")
        if terminal:
            self.check_line_width(found["generate"].text)

    def test_readme_on_a_terminal(self):
        self.ask_as_readme_says(terminal=True)

    def test_readme_without_a_terminal(self):
        self.ask_as_readme_says(terminal=False)

    def test_the_demo_of_readme(self):
        blocks = substitute(marked_blocks.commands(ROOT / "README.md"), IN_README)
        found, _ = self.session({"demo": blocks["demo"]}, terminal=True)
        self.check_build()
        self.assertIn("all answers are right", found["demo"].text)
        self.assertIn("a document of 16384 tokens", found["demo"].text)  # as the comment says
        self.assertRegex(found["demo"].text, r"and open http://127\.0\.0\.1:8000\n")

    def quick_start(self, terminal, without=()):
        """The blocks of the page but some, with the server ended behind them."""
        if shutil.which("jq") is None:
            self.skipTest("needs jq, as the page does")
        self.environment["PATH"] = f"{BIN}:{self.environment['PATH']}"
        blocks = substitute(marked_blocks.commands(ROOT / "docs/use/quick-start.md"), IN_QUICK_START)
        blocks = {name: text for name, text in blocks.items() if name not in without}
        blocks["end"] = "kill %1 && wait %1"
        return self.session(blocks, terminal)

    def check_served(self, found):
        self.assertRegex(found["check"].text, r"It fits: [\d,]+ tokens with policy wave\.\n"
                                              r"Start with: retroinfer serve --model models/needle --arena-bytes")
        self.assertIn('{"status":"ok"}', found["serve"].text)
        chat = json.loads(found["chat"].text[found["chat"].text.index('{"'):].splitlines()[0])
        self.assertEqual(chat["choices"][0]["message"]["role"], "assistant")
        for name in ("queue_ms", "prefill_ms", "first_token_ms", "decode_ms"):
            self.assertIn(name, chat["usage"]["timings"])
        self.assertTrue(found["generate"].text.strip())

    def answers(self, block):
        """The usage of each question."""
        return [json.loads(line) for line in block.text.splitlines() if line.startswith('{"prompt_tokens"')]

    def check_from_cache(self, usage):
        self.assertGreater(usage["cached"], 0.9 * usage["prompt_tokens"])

    def test_quick_start_without_a_terminal(self):
        found, _ = self.quick_start(terminal=False)
        self.check_served(found)
        form = json.loads(found["form"].text)
        self.assertEqual({name: type(form[name]) for name in form},
                         {"number": int, "company": str, "euros": type(form["euros"])})
        first, second = self.answers(found["document"])
        self.assertEqual(first["cached"], 0)
        self.assertGreater(first["prompt_tokens"], 8192)  # long enough for wave
        self.assertLess(first["kv_read_ratio"], 0.5)
        self.check_from_cache(second)
        (again,) = self.answers(found["restart"])
        self.check_from_cache(again)

    def test_quick_start_on_a_terminal(self):
        found, _ = self.quick_start(terminal=True, without=("form", "document", "restart"))
        self.check_served(found)
        self.check_line_width(found["generate"].text)


if __name__ == "__main__":
    be_alone()
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    print(SUBSTITUTIONS, flush=True)
    unittest.main(verbosity=2)
