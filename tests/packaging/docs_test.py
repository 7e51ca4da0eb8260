#!/usr/bin/env python3
"""Installed pages: no link leads to nothing, alerts lead to a page that is there, monitoring is whole.

usage: docs_test.py BUILD_DIR (of this project, configured)
"""
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from installed import TemporaryFolder, install

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/tidy"))
sys.path.insert(0, str(ROOT / "deploy/manuals"))

import link_docs  # noqa: E402
import links_test  # noqa: E402

# What belongs to no program, in the order of an installation of everything.
PARTS = ("license", "protos", "monitoring", "demo-model", "docs")


def dead_links(share):
    found, count = [], 0
    for path in sorted(share.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        for line, target, file, anchor in links_test.links(path, text):
            count += 1
            if not file.exists():
                found.append(f"{path.relative_to(share)}:{line}: {target}")
            elif anchor and file.suffix == ".md" and anchor not in links_test.anchors(file.resolve()):
                found.append(f"{path.relative_to(share)}:{line}: {target} (no such heading)")
    return found, count


class Docs(TemporaryFolder):
    def install(self, *parts):
        for part in parts:
            install("/usr", destdir=self.folder, component=part)
        return self.folder / "usr/share"

    def test_no_link_is_dead(self):
        share = self.install(*PARTS)
        found, count = dead_links(share)
        self.assertEqual(found, [])
        self.assertGreater(count, 300)
        page = (share / "doc/retroinfer-server/docs/operate/operations.md").read_text(encoding="utf-8")
        self.assertIn("](../../../../retroinfer/prometheus)", page)

    def test_no_link_is_dead_where_only_pages_are_installed(self):
        found, count = dead_links(self.install("docs"))
        self.assertEqual(found, [])
        self.assertGreater(count, 300)

    def test_linking_again_changes_nothing(self):
        share = self.install(*PARTS)
        before = {path: path.read_bytes() for path in share.rglob("*.md")}
        subprocess.run([sys.executable, link_docs.__file__, share], check=True)
        self.assertEqual({path: path.read_bytes() for path in share.rglob("*.md")}, before)

    def test_links_in_code_and_addresses_stay(self):
        (self.folder / "doc/retroinfer-server").mkdir(parents=True)
        text = ("`[a](gone.md)` [b](https://x.example/y.md) [c](#d) [`e`](gone.md#f) ![g](gone.svg)\n"
                "```\n[h](gone.md)\n```\n[gone.md](gone.md \"title\")\n")
        self.assertEqual(link_docs.linked(text, "page.md", "doc/retroinfer-server/page.md", self.folder),
                         "`[a](gone.md)` [b](https://x.example/y.md) [c](#d) `e` (`gone.md` of the source) "
                         "g (`gone.svg` of the source)\n```\n[h](gone.md)\n```\ngone.md\n")

    def test_alerts_lead_to_installed_pages(self):
        share = self.install("monitoring", "docs")
        rules = "".join(path.read_text(encoding="utf-8") for path in (share / "retroinfer/prometheus/rules").iterdir())
        links = re.findall(r'retroinfer_docs "file://(/usr/[^"]+)" \}\}(/\S+)#(\S+)', rules)
        self.assertGreater(len(links), 30)
        self.assertEqual(len(links), rules.count("- alert:"))
        for folder, page, anchor in links:
            path = pathlib.Path(f"{self.folder}{folder}{page}")
            self.assertIn(anchor, links_test.anchors(path))

    @unittest.skipUnless(shutil.which("promtool"), "needs promtool (scripts/bootstrap.sh)")
    def test_prometheus_takes_what_is_installed(self):
        share = self.install("monitoring")
        result = subprocess.run(["promtool", "check", "config", share / "retroinfer/prometheus/prometheus.yml"],
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"[1-9]\d* rules found")

    def test_every_dashboard_and_rule_is_installed(self):
        share = self.install("monitoring")
        for folder in ("grafana/dashboards", "prometheus/rules", "prometheus/targets"):
            self.assertEqual({path.name for path in (share / "retroinfer" / folder).iterdir()},
                             {path.name for path in (ROOT / "deploy" / folder).iterdir()})


if __name__ == "__main__":
    unittest.main(verbosity=2)
