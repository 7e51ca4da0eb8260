#!/usr/bin/env python3
"""The Debian package that CPack makes of a build: control data, files, maintainer scripts.

What happens to a system that installs, upgrades and purges it: scripts/try_package.sh.
usage: package_test.py BUILD_DIR (of this project, all built)
"""
import re
import shutil
import subprocess
import unittest

from installed import BUILD, PROGRAMS, TemporaryFolder, files_below


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True,
                          **options).stdout


@unittest.skipUnless(shutil.which("dpkg-shlibdeps") and shutil.which("dpkg-deb"),
                     "this is no Debian: dpkg-dev is not installed")
class DebianPackage(TemporaryFolder):
    def test_it_has_everything_and_says_what_it_needs(self):
        # gzip instead of xz, which takes seven times as long.
        run("cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-D",
            "CPACK_DEBIAN_COMPRESSION_TYPE=gzip", "-B", self.folder)
        package, = self.folder.glob("*.deb")
        self.assertRegex(package.name, r"^retroinfer-server_[0-9.]+-1_\w+\.deb$")
        content = self.folder / "content"
        run("dpkg-deb", "--raw-extract", package, content)
        control = (content / "DEBIAN/control").read_text(encoding="utf-8")
        self.check_control(control)
        self.check_scripts(content / "DEBIAN")
        self.check_files(content)
        listing = run("dpkg-deb", "--contents", package)
        for line in listing.splitlines():
            self.assertIn(" root/root ", line)
            self.assertNotRegex(line, r"^.{5}w|^.{8}w", "writable for others than root")

    def check_control(self, control):
        for library in ("libc6", "libgrpc++", "libprotobuf", "librocksdb", "libstdc++6"):
            self.assertRegex(control, rf"(?m)^Depends: .*\b{re.escape(library)}", "computed")
        self.assertRegex(control, r"(?m)^Depends: .*systemd-standalone-sysusers \| systemd")
        self.assertRegex(control, r"(?m)^Maintainer: .+<.+@.+>$")

    def check_scripts(self, folder):
        conffiles = (folder / "conffiles").read_text(encoding="utf-8").split()
        self.assertEqual(conffiles, [f"/etc/retroinfer/{name}.conf"
                                     for name in ("gpu_worker", "http_gateway", "kv_store_service", "serve")])
        for name in ("postinst", "prerm", "postrm"):
            self.assertEqual((folder / name).stat().st_mode & 0o777, 0o755, name)
            run("sh", "-n", folder / name)
            result = subprocess.run(["sh", folder / name, "nonsense"], capture_output=True, text=True,
                                    check=False)
            self.assertEqual(result.returncode, 1, f"{name} takes any argument")
        for name, arguments in (("prerm", ["upgrade", "9"]), ("postinst", ["abort-remove"]),
                                ("postrm", ["upgrade", "9"])):
            run("sh", folder / name, *arguments)  # these change nothing

    def check_files(self, content):
        files = files_below(content)
        for conffile in (content / "DEBIAN/conffiles").read_text().split():
            self.assertIn(conffile.lstrip("/"), files)
        for program in PROGRAMS:
            self.assertIn(f"usr/bin/{program}", files)
            self.assertIn(f"usr/share/man/man1/{program}.1.gz", files)
            sections = run("readelf", "--sections", content / "usr/bin" / program)
            self.assertNotIn(".symtab", sections, "not stripped")
        self.assertIn("usr/share/doc/retroinfer-server/copyright", files)
        self.assertIn("usr/share/doc/retroinfer-server/changelog.Debian.gz", files)
        self.assertIn("usr/share/zsh/vendor-completions/_retroinfer", files)
        self.assertFalse([name for name in files if "/site-functions/" in name])


if __name__ == "__main__":
    unittest.main(verbosity=2)
