#!/usr/bin/env python3
"""The modules of the page by themselves: each *_test.js under web/, in a headless Chromium, else in Node.js.

usage: modules_test.py
What needs a page (NEEDS_PAGE) is left out, and said to be, in Node.js. Ends with 77 where there is neither.
"""
import functools
import http.server
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from browser import Browser, find_chromium  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODULES = ROOT / "http_gateway/page/web"
TESTS = pathlib.Path(__file__).resolve().parent / "web"
NEEDS_PAGE = {"api_test.js", "conversation_store_test.js", "markdown_view_test.js"}
PAGE_MODULES = {"answer.js", "chat.js", "clipboard.js", "code_view.js", "conversation_list.js", "dialog.js",
                "documents.js", "live_panel.js", "main.js", "problem.js", "server_watch.js", "settings.js",
                "turn_view.js"}  # page_test.py has them
NODE = shutil.which("node")


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    extensions_map = {".js": "text/javascript", ".html": "text/html"}

    def log_message(self, *_):
        pass


class ModulesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="retroinfer-page-")
        cls.addClassCleanup(holder.cleanup)
        cls.folder = pathlib.Path(holder.name)
        shutil.copytree(MODULES, cls.folder / "page")
        shutil.copytree(TESTS, cls.folder / "tests")
        (cls.folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
        (cls.folder / "index.html").write_text('<!doctype html><link rel="icon" href="data:,"><title>Tests</title>'
                                               '<main></main>', encoding="utf-8")
        cls.browser = None
        if find_chromium():
            server = http.server.ThreadingHTTPServer(
                ("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(cls.folder)))
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            cls.addClassCleanup(thread.join)
            cls.addClassCleanup(server.server_close)
            cls.addClassCleanup(server.shutdown)
            cls.browser = Browser(find_chromium())
            cls.addClassCleanup(cls.browser.close)
            cls.url = f"http://127.0.0.1:{server.server_port}/"

    def run_file(self, name):
        if self.browser is not None:
            page = self.browser.open(self.url)
            self.addCleanup(page.close)
            return page.run(f"import('/tests/{name}').then(() => import('/tests/cases.js'))"
                            ".then((cases) => cases.runAll())")
        script = (f"await import('./tests/{name}'); const {{runAll}} = await import('./tests/cases.js');"
                  "console.log(JSON.stringify(await runAll()));")
        done = subprocess.run([NODE, "--input-type=module", "--eval", script], cwd=self.folder, capture_output=True,
                              text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def test_modules(self):
        for path in sorted(TESTS.glob("*_test.js")):
            if self.browser is None and path.name in NEEDS_PAGE:
                print(f"skipped: {path.name} needs a page (Debian: apt-get install chromium)")
                continue
            with self.subTest(path.name):
                result = self.run_file(path.name)
                self.assertGreater(len(result["names"]), 0)
                self.assertEqual(result["failures"], [], "\n".join(result["failures"]))
                print(f"{path.name}: {len(result['names'])} cases")

    def test_each_module_has_a_test(self):
        tested = {path.name.replace("_test.js", ".js") for path in TESTS.glob("*_test.js")}
        modules = {path.name for path in MODULES.glob("*.js")}
        self.assertEqual(modules - tested - PAGE_MODULES, set())
        self.assertEqual((tested | PAGE_MODULES) - modules, set())


if __name__ == "__main__":
    if find_chromium() is None and NODE is None:
        print("skipped: there is no Chromium here (Debian: apt-get install chromium), and no Node.js")
        sys.exit(77)
    unittest.main(verbosity=2)
