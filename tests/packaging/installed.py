"""What the tests of this folder share: an installation of a build in a temporary folder."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else pathlib.Path("build/release")
PROGRAMS = ("gpu_worker", "http_gateway", "kv_store_service", "retroinfer")


def install(prefix, destdir=None, component=None):
    command = ["cmake", "--install", str(BUILD), "--prefix", str(prefix)]
    if component:
        command += ["--component", component]
    environment = dict(os.environ)
    environment.pop("DESTDIR", None)
    if destdir:
        environment["DESTDIR"] = str(destdir)
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


class TemporaryFolder(unittest.TestCase):
    """Gives each test self.folder, which is gone after it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="retroinfer-install-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
