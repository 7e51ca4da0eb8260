#!/usr/bin/env python3
"""The units: systemd itself accepts them and finds them well confined, and their memory limits follow
the settings.

usage: systemd_test.py BUILD_DIR (of this project, all built)
"""
import pathlib
import re
import shutil
import subprocess
import unittest

from installed import TemporaryFolder, install

UNITS = ("retroinfer.service", "retroinfer-store.service", "retroinfer-worker.service",
         "retroinfer-gateway.service")
HEADROOM = 2 << 30  # of each process, in the generator
MOST_EXPOSED = 20  # tenths of systemd-analyze's scale of 0 (confined) to 100
NEEDS_ANALYZE = unittest.skipUnless(shutil.which("systemd-analyze"),
                                    "systemd-analyze is not installed (package systemd)")


def analyze(*arguments):
    return subprocess.run(["systemd-analyze", *map(str, arguments)], capture_output=True, text=True,
                          check=False)


class Units(TemporaryFolder):
    def setUp(self):
        super().setUp()
        for component in ("systemd", "config", "worker", "store", "gateway", "client"):
            install(self.folder, component=component)
        self.units = self.folder / "lib/systemd/system"

    @NEEDS_ANALYZE
    def test_systemd_understands_every_line(self):
        result = analyze("verify", "--man=no", *(self.units / unit for unit in UNITS))
        self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))

    @NEEDS_ANALYZE
    def test_systemd_finds_them_confined(self):
        for unit in UNITS:
            result = analyze("security", "--offline=yes", "--no-pager",
                             f"--threshold={MOST_EXPOSED}", self.units / unit)
            self.assertEqual(result.returncode, 0, result.stdout[-2000:])

    def test_a_unit_stops_later_than_its_service(self):
        for unit, conf in (("retroinfer-worker.service", "gpu_worker.conf"),
                           ("retroinfer-gateway.service", "http_gateway.conf"),
                           ("retroinfer.service", "serve.conf")):
            stop = re.search(r"TimeoutStopSec=(\d+)s", (self.units / unit).read_text())
            drain = re.search(r'drain-timeout = "(\d+)s"',
                              (self.folder / "etc/retroinfer" / conf).read_text())
            self.assertGreaterEqual(int(stop.group(1)), int(drain.group(1)) + 15, unit)

    def test_settings_that_make_no_sense_are_not_tried_again(self):
        for unit in UNITS:
            self.assertIn("\nRestartPreventExitStatus=2\n", (self.units / unit).read_text(), unit)

    def test_each_is_watched_and_says_when_it_is_ready(self):
        for unit in UNITS:
            text = (self.units / unit).read_text(encoding="utf-8")
            self.assertIn("\nType=notify\n", text)
            self.assertRegex(text, r"\nWatchdogSec=\d+min\n")


class MemoryLimits(TemporaryFolder):
    """retroinfer-generator over settings of all kinds."""

    def setUp(self):
        super().setUp()
        for component in ("systemd", "config"):
            install(self.folder, component=component)
        self.settings = self.folder / "etc/retroinfer"

    def limits(self):
        """Runs the generator as systemd does; returns MemoryMax by unit."""
        units = self.folder / "units"
        shutil.rmtree(units, ignore_errors=True)
        units.mkdir()
        result = subprocess.run(
            [self.folder / "lib/systemd/system-generators/retroinfer-generator", units, units, units],
            capture_output=True, text=True, check=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        found = {}
        for path in units.rglob("*.conf"):
            found[path.parent.name.removesuffix(".d")] = int(
                re.search(r"^MemoryMax=(\d+)$", path.read_text(), re.MULTILINE).group(1))
        return found

    def write(self, name, text):
        (self.settings / name).write_text(text, encoding="utf-8")

    def test_the_installed_settings_limit_the_store_alone(self):
        self.assertEqual(self.limits(), {"retroinfer-store.service": (2 << 30) + HEADROOM})

    def test_limits_follow_the_sizes(self):
        self.write("kv_store_service.conf", 'arena-bytes = "1.5TiB" # much\n')
        self.write("gpu_worker.conf", "memory=24GiB\n")
        self.write("serve.conf", "arena-bytes = '16G'\nmemory = \"500 MB\"\n")
        self.assertEqual(self.limits(), {
            "retroinfer-store.service": (3 << 39) + HEADROOM,
            "retroinfer-worker.service": (24 << 30) + HEADROOM,
            "retroinfer.service": (16 << 30) + 500_000_000 + 2 * HEADROOM})

    def test_what_is_not_given_or_not_a_size_is_no_limit(self):
        self.write("kv_store_service.conf", '#arena-bytes = "2GiB"\nxarena-bytes = 3\n')
        self.write("gpu_worker.conf", "memory = lots\nmemory = 0\n")
        self.write("serve.conf", "arena-bytes = 5parsecs\nmemory = 1GiB\n")
        self.assertEqual(self.limits(), {})
        shutil.rmtree(self.settings)
        self.assertEqual(self.limits(), {})

    def test_the_last_line_wins_and_hostile_text_stays_text(self):
        self.write("kv_store_service.conf",
                   'arena-bytes = 1GiB\ncache-dir = "$(touch owned)"\narena-bytes = 3GiB\n')
        self.assertEqual(self.limits(), {"retroinfer-store.service": (3 << 30) + HEADROOM})
        self.write("kv_store_service.conf", 'arena-bytes = "$(touch owned)1GiB"\n')
        self.assertEqual(self.limits(), {})
        self.assertFalse(pathlib.Path("owned").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
