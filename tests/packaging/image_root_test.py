#!/usr/bin/env python3
"""deploy/images/make_root.sh refuses what it cannot do, and knows the images of the Containerfile.

Making a root needs the archive of the distribution: scripts/try_package.sh does the like.

usage: image_root_test.py BUILD_DIR
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
IMAGES = pathlib.Path(__file__).resolve().parents[2] / "deploy/images"


def make_root(*arguments):
    return subprocess.run([IMAGES / "make_root.sh", *map(str, arguments)], capture_output=True, text=True, check=False)


class ImageRoot(unittest.TestCase):
    def test_help_is_its_head(self):
        shown = make_root("--help")
        self.assertEqual(shown.returncode, 0)
        for option in ("--build", "--target", "--cublas", "--archive"):
            self.assertIn(option, shown.stdout)

    def test_mistakes_are_told_and_leave_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder) / "root"
            for said, arguments in (("needs --build", [root]), ("needs --build", ["--build", BUILD]),
                                    ("no build folder", ["--build", folder, root]),
                                    ("is there already", ["--build", BUILD, folder]),
                                    ("no target 'gpu'", ["--build", BUILD, "--target", "gpu", root]),
                                    ("--cublas needs a value", ["--build", BUILD, root, "--cublas"]),
                                    ("unknown option --nonsense", ["--nonsense", root]),
                                    ("must end with", ["--build", BUILD, "--archive", "x.zip", root]),
                                    ("two folders", ["--build", BUILD, root, root])):
                refused = make_root(*arguments)
                self.assertEqual(refused.returncode, 2, (arguments, refused.stderr))
                self.assertIn(said, refused.stderr)
            self.assertFalse(root.exists())

    def test_the_targets_are_those_of_the_containerfile(self):
        stages = set(re.findall(r"^FROM .* AS (\S+)", (IMAGES / "Containerfile").read_text(encoding="utf-8"),
                                re.MULTILINE)) - {"build", "run", "demo-model"}
        script = (IMAGES / "make_root.sh").read_text(encoding="utf-8")
        known = set(re.search(r"^  ([\w| -]+)\) ;;$", script, re.MULTILINE)[1].split(" | "))
        self.assertEqual(known, stages)


if __name__ == "__main__":
    unittest.main(verbosity=2)
