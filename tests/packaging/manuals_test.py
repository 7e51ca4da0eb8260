#!/usr/bin/env python3
"""Manual pages and shell completion: every option of every command is in them, and they work.

usage: manuals_test.py BUILD_DIR (of this project, all built)
"""
import json
import re
import shlex
import shutil
import subprocess
import unittest

from installed import BUILD, TemporaryFolder

MANUALS = BUILD / "manuals"
LEAVES = {"retroinfer": ["retroinfer-serve", "retroinfer-generate", "retroinfer-cache-save"],
          "gpu_worker": ["gpu_worker"], "kv_store_service": ["kv_store_service"],
          "http_gateway": ["http_gateway"]}


def option_list(*words):
    text = subprocess.run([BUILD / "bin" / words[0], *words[1:], "--option-list"], check=True,
                          capture_output=True, text=True, env={}).stdout
    return json.loads(text)["options"]


def complete(line):
    """What bash offers after `line`, as its readline would ask."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    # Readline breaks words at "=", too.
    words = [part for word in words for part in re.split(r"(?<=.)(=)", word) if part or not word]
    script = (f"source {shlex.quote(str(MANUALS / 'retroinfer.bash'))}\n"
              f"COMP_WORDS=({' '.join(shlex.quote(word) for word in words)})\n"
              f"COMP_CWORD={len(words) - 1}\n_retroinfer\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"")
    result = subprocess.run(["bash", "--norc", "-uc", script], capture_output=True, text=True,
                            check=True, cwd=BUILD)
    assert result.stderr == "", result.stderr
    return [word for word in result.stdout.split("\n") if word]


class Manuals(TemporaryFolder):
    def test_each_option_stands_in_its_page(self):
        for program, pages in LEAVES.items():
            for page in pages:
                text = (MANUALS / "man" / f"{page}.1").read_text(encoding="utf-8")
                words = page.split("-") if program == "retroinfer" else [page]
                options = option_list(*words)
                self.assertGreater(len(options), 5)
                for option in options:
                    for flag in option["flags"]:
                        escaped = flag.replace("-", "\\-")
                        self.assertIn(f"\\fB{escaped}\\fR", text, page)

    @unittest.skipUnless(shutil.which("man"), "man is not installed")
    def test_groff_has_nothing_to_say_against_them(self):
        pages = sorted((MANUALS / "man").glob("*.1"))
        self.assertGreater(len(pages), 12)
        for page in pages:
            result = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page],
                                    capture_output=True, text=True, check=False,
                                    env={"MANROFFSEQ": "", "MANWIDTH": "80", "LC_ALL": "C.UTF-8",
                                         "PATH": "/usr/bin:/bin"})
            self.assertEqual((page.name, result.returncode, result.stderr), (page.name, 0, ""))

    def test_bash_offers_commands(self):
        self.assertIn("serve", complete("retroinfer "))
        self.assertEqual(complete("retroinfer ser"), ["serve"])
        self.assertEqual(complete("retroinfer cache exp"), ["export"])
        self.assertEqual(complete("/usr/bin/retroinfer gen"), ["generate"])

    def test_bash_offers_the_options_of_the_command(self):
        self.assertEqual(complete("retroinfer serve --arena"), ["--arena-bytes"])
        self.assertEqual(complete("gpu_worker --drain"), ["--drain-timeout"])
        self.assertEqual(complete("kv_store_service --adopt"), ["--adopt-wait"])
        self.assertNotIn("--arena-bytes", complete("retroinfer generate --"))
        for program in ("gpu_worker", "kv_store_service", "http_gateway"):
            flags = {flag for option in option_list(program) for flag in option["flags"]}
            self.assertEqual(set(complete(f"{program} -")), flags)

    def test_bash_offers_values(self):
        self.assertEqual(complete("gpu_worker --policy "), ["full", "wave", "streaming"])
        self.assertEqual(complete("gpu_worker --policy=f"), ["full"])
        self.assertIn("bin", complete("retroinfer serve --bin-dir b"))
        self.assertEqual(complete("retroinfer serve --max-batch "), [])

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh_reads_its_file(self):
        subprocess.run(["zsh", "-n", MANUALS / "_retroinfer"], check=True)

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish_reads_its_file(self):
        subprocess.run(["fish", "--no-execute", MANUALS / "retroinfer.fish"], check=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
