#!/usr/bin/env python3
"""What tools/build_time.py makes of a list of commands."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import build_time  # noqa: E402


class BuildTimeTest(unittest.TestCase):
    def test_kinds_and_packages(self):
        self.assertEqual(build_time.kind_of("/r/tests/a/b_test.cc", "/r"), "tests")
        self.assertEqual(build_time.kind_of("/r/bench/b.cc", "/r"), "bench")
        self.assertEqual(build_time.kind_of("/r/common/a.cc", "/r"), "programs")
        self.assertEqual(build_time.kind_of("/r/build/x/generated/a.pb.cc", "/r"), "generated")
        self.assertEqual(build_time.package_of("/usr/include/absl/status/status.h", "/r"), "absl")
        self.assertEqual(build_time.package_of("/r/common/a.h", "/r"), "own")

    def test_a_command_gets_another_output(self):
        entry = {"command": "c++ -O3 -o a.o -c 'a b.cc'"}
        self.assertEqual(build_time.command_of(entry, ["-O1"], ["-o", "-"]),
                         ["c++", "-O3", "-c", "a b.cc", "-O1", "-o", "-"])

    def test_times_and_headers_of_a_sample(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "one.pb.cc"
            source.write_text("#include <cstdint>\nint main() { return 0; }\n")
            entry = {"file": str(source), "directory": folder,
                     "command": f"c++ -o one.o -c {source}"}
            (pathlib.Path(folder) / "compile_commands.json").write_text(json.dumps([entry] * 3))
            for extra, wanted in (([], r"generated +3 +1 "), (["--headers"], "libstdc"),
                                  (["--phases"], r"[0-9.]+ %  phase parsing")):
                result = subprocess.run(
                    [sys.executable, ROOT / "tools/build_time.py", folder, "--every", "3", *extra],
                    capture_output=True, text=True, check=True)
                self.assertRegex(result.stdout, wanted)
            self.assertEqual([path.name for path in pathlib.Path(folder).iterdir()
                              if path.suffix == ".o"], [])


if __name__ == "__main__":
    unittest.main()
