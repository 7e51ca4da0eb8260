#!/usr/bin/env python3
"""The page for people, in a headless Chromium, with the demo model behind it.

usage: page_test.py BIN_DIR [--pictures FOLDER] [--axe AXE.JS]
FOLDER gets screenshots; with axe-core's script, its rules are checked, too. Ends with 77 where there is no Chromium
(Debian: `apt-get install chromium`, 300 MB with what it needs).
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

from page_case import ENDS, PageCase, drop, find_chromium
from served import ROOT, child_of

PROMPT = json.loads(subprocess.run(
    [sys.executable, "-m", "tools.needle.generate", "--task", "multi_key", "--length", "12000", "--questions",
     "1", "--seed", "11"], cwd=ROOT, capture_output=True, text=True, check=True).stdout)
DOCUMENT, ASKED = PROMPT["prompt"].removesuffix("\nAnswer:").rsplit("\n\nQuestion: ", 1)

# The values of the first bar, and what a screen reader is told.
WATCH = """(() => {
    window.bars = []; window.said = [];
    const look = () => {
        const bar = document.querySelector('.wave progress');
        if (bar?.hasAttribute('value') && bars.at(-1) !== bar.value) bars.push(bar.value);
        const text = document.querySelector('#announcer').textContent;
        if (said.at(-1) !== text) said.push(text);
    };
    new MutationObserver(look).observe(document.body,
        {subtree: true, childList: true, characterData: true, attributes: true});
})()"""

# Answers that do not end by themselves.
ENDLESS = """(() => {
    const before = window.fetch;
    window.fetch = (path, options) => before(path, options?.body === undefined ? options
        : {...options, body: JSON.stringify({...JSON.parse(options.body), ignore_eos: true})});
})()"""


class PageTest(PageCase):
    def test_both_policies_answer_a_question_about_a_document(self):
        page = self.open_ready(width=1280, height=760)
        self.picture(page, "welcome")
        page.run(drop("handbook.txt", DOCUMENT))
        page.await_true("document.querySelector('.document-size')?.textContent.includes('tokens,')")
        counted = self.served.post("/tokenize", {"prompt": DOCUMENT, "add_special_tokens": False})["count"]
        self.assertTrue(page.text(".document-size").startswith(f"{counted:,} tokens"))
        page.run(WATCH)
        self.set(page, "#temperature", "0")
        page.click("#settings summary")
        page.click("input[value=both]")
        page.type("#question", ASKED)
        page.press("Enter")
        page.await_true("bars.length > 0")
        self.picture(page, "reading")
        page.await_true("document.querySelector('.verdict') && !document.querySelector('.verdict').hidden")
        page.await_true("document.querySelector('#hits').textContent !== '–'")
        bars = page.run("bars")
        self.assertGreaterEqual(len(bars), 3, bars)
        self.assertEqual(bars, sorted(bars))
        self.assertGreater(bars[-1], counted)
        for policy in ("wave", "full"):
            self.assertEqual(page.text(f".{policy} > .text").strip(), PROMPT["answer"])
        facts = {policy: page.run(f"Object.fromEntries([...document.querySelectorAll('.{policy} .facts div')]"
                                  ".map((pair) => [pair.children[0].innerText, pair.children[1].innerText]))")
                 for policy in ("wave", "full")}
        self.assertRegex(facts["wave"]["First token"], r"^[\d.]+ m?s$")
        self.assertGreater(float(facts["wave"]["Tokens/s"]), 0)
        self.assertRegex(facts["wave"]["Cached"], r"^0 of 1\d,\d{3}$")
        cached, prompt = (int(number.replace(",", "")) for number in facts["full"]["Cached"].split(" of "))
        self.assertGreater(cached, 0.9 * prompt)
        self.assertRegex(facts["wave"]["Unseen mass"], r"^[\d.]+ %( \(max [\d.]+ %\))?$")
        self.assertEqual(facts["full"]["KV read"], "100 %")
        self.assertLess(float(facts["wave"]["KV read"].removesuffix(" %")), 50)
        self.assertIn("The same answer.", page.text(".verdict"))
        said = " ".join(page.run("said"))
        self.assertIn("is read.", said)
        self.assertIn(f"Answer: {PROMPT['answer']}", said)
        self.picture(page, "answers")
        self.check_looks(page)
        self.assertEqual(page.complaints(), [])
        origin = f"http://127.0.0.1:{self.served.port}/"
        self.assertEqual([url for url in page.requested() if not url.startswith(origin)], [])

    def check_looks(self, page):
        for dark in (False, True):
            page.set_dark(dark)
            self.check_rules(page)
        self.picture(page, "answers_dark")
        for width in (390, 320):
            page.resize(width, 844, 2)
            self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width)
            self.picture(page, f"answers_dark_{width}")

    def test_it_can_be_used_by_keyboard_and_screen_reader(self):
        page = self.open_ready()
        reached = []
        page.run("document.activeElement.blur()")
        for _ in range(24):
            page.press("Tab")
            reached.append(page.run("document.activeElement.id || document.activeElement.value || "
                                    "document.activeElement.innerText"))
        for wanted in ("Skip to the question", "Conversations", "import", "Server now", "Settings", "conversation", "question",
                       "document-add", "wave", "send"):
            self.assertTrue(any(wanted in name for name in reached), f"{wanted}: {reached}")
        page.run("document.querySelectorAll('details').forEach((one) => one.open = true)")
        page.call("Accessibility.enable")
        nameless = [node["role"]["value"] for node in page.call("Accessibility.getFullAXTree")["nodes"]
                    if not node.get("ignored") and not node.get("name", {}).get("value")
                    and node.get("role", {}).get("value") in ("button", "textbox", "radio", "spinbutton", "region",
                                                              "img", "progressbar", "radiogroup")]
        self.assertEqual(nameless, [])
        self.check_rules(page)

    def test_stop_ends_the_answer_here_and_in_the_server(self):
        page = self.open_ready()
        page.run(ENDLESS)
        self.set(page, "#temperature", "50")  # words without sense
        self.set(page, "#max-tokens", "30000")
        for stop in (lambda: page.click("#stop"), lambda: page.press("Escape")):
            page.type("#question", "And?")
            page.click("#send")
            page.await_true("document.querySelector('li:last-child .answer > .text').innerText.length > 20")
            stop()
            page.await_true(ENDS)
            self.assertIn("stopped", page.text("li:last-child .answer header"))
            page.await_true("fetch('/stats').then((answer) => answer.json())"
                            ".then((stats) => stats.requests_running === 0)", "the worker runs nothing")
            self.assertFalse(page.run("document.querySelector('#send').hidden"))
            # On a busy machine so much is written before it stops that no second question fits behind it.
            page.click("#new-chat")
            page.await_true("document.querySelector('.answer') === null")

    def test_errors_are_shown_and_can_be_tried_again(self):
        page = self.open_ready()
        page.run(drop("picture.png", "\0\1"))
        page.await_true("!document.querySelector('#document-problem').hidden")
        self.assertIn("is not a text", page.text("#document-problem"))
        self.set(page, "#max-tokens", "100000000")
        page.type("#question", "What is <b>this</b>?")
        page.click("#send")
        page.await_true("document.querySelector('.problem') !== null")
        self.assertIn("longer than the server can take", page.text(".problem"))
        self.assertIn("100000000", page.text(".problem"))
        self.assertEqual(page.text(".question p"), "What is <b>this</b>?")
        self.picture(page, "error")
        self.check_rules(page)
        page.type("#max-tokens", "2")
        page.click(".problem button")
        page.await_true(f"document.querySelector('.problem') === null && {ENDS}")
        self.assertIn("Cut at the longest answer", page.text(".answer .note"))
        # A supervisor that stands still starts no other gateway.
        os.kill(self.served.process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, self.served.process.pid, signal.SIGCONT)
        os.kill(child_of(self.served.process.pid, "http_gateway"), signal.SIGKILL)
        page.await_true("document.querySelector('#connection').textContent === 'Not reachable'")
        page.type("#question", "And now?")
        page.click("#send")
        page.await_true("document.querySelector('.problem') !== null")
        self.assertIn("cannot be reached", page.text(".problem"))
        os.kill(self.served.process.pid, signal.SIGCONT)
        self.served.follow_gateway()


class KeyTest(PageCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        key = pathlib.Path(folder.name) / "key"
        key.write_text("the right one\n", encoding="utf-8")
        cls.serve_options = (f"--api-key-file={key}",)
        super().setUpClass()

    def test_the_key_is_asked_for_and_kept_in_the_tab(self):
        page = self.open()
        state = "document.querySelector('#connection').textContent"
        page.await_true(f"{state} === 'Key needed'")
        self.assertTrue(page.run("document.querySelector('#settings').open"))
        page.type("#question", "And?")
        page.click("#send")
        page.await_true("document.querySelector('.problem') !== null")
        self.assertIn("wants an API key", page.text(".problem"))
        page.type("#key", "a wrong one")
        page.press("Enter")
        page.await_true(f"{state} === 'Key not accepted'")
        self.assertIn("does not accept this API key", page.text("#key-note"))
        self.picture(page, "wrong_key")
        page.type("#key", "the right one")
        page.press("Enter")
        page.await_true(f"{state} === 'Ready'")
        self.set(page, "#max-tokens", "2")
        page.click(".problem button")
        page.await_true(f"document.querySelector('.problem') === null && {ENDS}")
        self.assertIn("KV read", page.text(".answer .facts"))
        self.assertEqual(page.run("[localStorage.length, document.cookie, location.href.includes('right')]"),
                         [0, "", False])
        page.go(f"http://127.0.0.1:{self.served.port}/?again")
        page.await_true(f"{state} === 'Ready'")
        other = self.open()
        other.await_true(f"{state} === 'Key needed'")
        self.assertEqual(page.complaints(), [])


if __name__ == "__main__":
    if find_chromium() is None:
        print("skipped: there is no Chromium here (Debian: apt-get install chromium)")
        sys.exit(77)
    unittest.main(verbosity=2)
