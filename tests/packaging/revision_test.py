#!/usr/bin/env python3
"""Which commit programs say that they are: of the tree when they are built, whatever it was at configuration.

usage: revision_test.py BUILD_DIR (of this project, the programs built)
"""
import os
import pathlib
import re
import shutil
import subprocess
import unittest

from installed import BUILD, PROGRAMS, TemporaryFolder

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "common" / "build_info"


@unittest.skipUnless(shutil.which("git"), "git is not installed")
class Revision(TemporaryFolder):
    def git(self, *arguments):
        identity = {f"GIT_{who}_{what}": "nobody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        return subprocess.run(["git", "-c", "commit.gpgsign=false", "-C", self.tree, *arguments], check=True,
                              capture_output=True, text=True, env=environment | identity).stdout.strip()

    def write(self, *definitions):
        subprocess.run(["cmake", "-D", f"OUTPUT={self.output}", "-D", f"SOURCE_DIR={self.tree}", "-D",
                        f"TEMPLATE={FOLDER}/build_revision.cc.in", *definitions, "-P",
                        f"{FOLDER}/write_revision.cmake"], check=True, capture_output=True,
                       env=os.environ | {"GIT_CEILING_DIRECTORIES": str(self.folder)})
        return self.output.read_text(encoding="utf-8")

    def setUp(self):
        super().setUp()
        self.tree = self.folder / "tree"
        self.tree.mkdir()
        self.output = self.folder / "revision.cc"

    def test_a_new_commit_is_told_and_an_old_one_is_not_built_again(self):
        self.git("init", "-q")
        self.git("commit", "-q", "--allow-empty", "-m", "one")
        self.assertIn(f'kBuildRevision[] = "{self.git("rev-parse", "--short=12", "HEAD")}"', self.write())
        written = self.output.stat().st_mtime_ns
        self.write()
        self.assertEqual(self.output.stat().st_mtime_ns, written)
        self.git("commit", "-q", "--allow-empty", "-m", "two")
        self.assertIn(f'kBuildRevision[] = "{self.git("rev-parse", "--short=12", "HEAD")}"', self.write())

    def test_all_programs_were_built_at_one(self):
        built = (BUILD / "common/build_info/built_revision.cc").read_text(encoding="utf-8")
        revision, = re.findall(r'"(\w+)";', built)
        for program in PROGRAMS:
            said = subprocess.run([BUILD / "bin" / program, "--version"], check=True, capture_output=True, text=True)
            self.assertRegex(said.stdout, rf"^{program} [0-9.]+ \({revision}\)$")

    def test_without_history_it_is_what_the_builder_says(self):
        self.assertIn('kBuildRevision[] = "unknown"', self.write())
        self.assertIn('kBuildRevision[] = "abcdef"', self.write("-D", "REVISION=abcdef"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
