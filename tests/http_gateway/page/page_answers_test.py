#!/usr/bin/env python3
"""What a person can do with questions and answers on the page; answers are made up here, as models write them.

usage: page_answers_test.py BIN_DIR [--pictures FOLDER] [--axe AXE.JS]   (as page_test.py)
"""
import json
import sys
import unittest

from page_case import ENDS, PageCase, drop, find_chromium

WRITTEN = """Here is **what matters**, see [the site](https://example.org/a) and [not this](javascript:alert(1)).

1. First `code`
2. Then:

```python
def needle(haystack):  # find it
    return haystack.index("needle")
```

| Policy | KV read |
|:-------|--------:|
| Wave   | 12 %    |

> <img src=x onerror="window.hurt = true">

- [x] done"""


class AnswersTest(PageCase):
    def test_markdown_is_shown_and_copied(self):
        page = self.open_ready(width=1280, height=900)
        self.browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        self.script(page, {"text": WRITTEN, "thought": "What is\nasked?"})
        self.ask(page, "Show me")
        self.assertEqual(page.run("[...document.querySelector('.answer > .text').children].map((node) => node.tagName)"),
                         ["P", "OL", "DIV", "DIV", "BLOCKQUOTE", "UL"])
        self.assertEqual(page.run("[document.querySelectorAll('.answer img').length, window.hurt ?? null]"), [0, None])
        self.assertEqual(page.run("[...document.querySelectorAll('.answer a')].map((node) => [node.href, node.rel])"),
                         [["https://example.org/a", "noopener noreferrer nofollow"]])
        self.assertFalse(page.run("document.querySelector('.thoughts').open"))
        page.click(".thoughts summary")
        self.assertEqual(page.text(".thought"), "What is\nasked?")
        self.assertIn("1.2 % (max 5.0 %)", page.text(".facts"))
        self.assertIn("1,500 of 2,000", page.text(".facts"))
        for button, wanted in ((".answer header button", WRITTEN),
                               (".code button", 'def needle(haystack):  # find it\n    return haystack.index("needle")')):
            page.click(button)
            page.await_true(f"document.querySelector('{button}').textContent === 'Copied'")
            self.assertEqual(page.run("navigator.clipboard.readText()"), wanted)
        for dark in (False, True):
            page.set_dark(dark)
            self.check_rules(page)
            self.picture(page, f"markdown_{'dark' if dark else 'light'}")
        page.resize(320, 700, 2)
        self.assertLessEqual(page.run("document.documentElement.scrollWidth"), 320)
        self.picture(page, "markdown_320")
        self.check_rules(page)

    def test_copying_works_without_the_clipboard_of_safe_pages(self):
        page = self.open_ready()
        self.browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        self.script(page, {"text": "the answer"})
        self.ask(page, "Show me")
        page.run("window.kept = navigator.clipboard; Object.defineProperty(navigator, 'clipboard', {value: undefined,"
                 " configurable: true}); null")
        page.click(".answer header button")
        page.await_true("document.querySelector('.answer header button').textContent === 'Copied'")
        self.assertEqual(page.run("kept.readText()"), "the answer")

    def test_a_long_answer_is_drawn_as_it_comes_and_only_where_it_is_new(self):
        page = self.open_ready()
        code = "\n".join(f"x[{line}] = {line}  # a line of it" for line in range(1500))
        text = f"The first paragraph.\n\n```python\n{code}\n```\n\nIn the **middle**.\n\n" + "".join(
            f"{number}. An item with `code` and **weight**.\n" for number in range(1, 400))
        self.script(page, {"text": text, "size": 4})
        page.run("""(() => {
            window.batches = 0; window.added = 0; window.removed = 0; window.first = null;
            new MutationObserver((records) => {
                ++batches;
                first ??= document.querySelector('.answer > .text > p');
                for (const {addedNodes, removedNodes} of records) {
                    added += addedNodes.length; removed += removedNodes.length;
                }
            }).observe(document.querySelector('#turns'), {subtree: true, childList: true});
        })()""")
        self.ask(page, "Write much")
        batches, added, kept = page.run("[batches, added, document.querySelectorAll('.answer > .text *').length]")
        chunks = len(text) / 4
        self.assertTrue(page.run("first === document.querySelector('.answer > .text > p')"))
        self.assertEqual(page.run("document.querySelectorAll('.answer li').length"), 399)
        self.assertEqual(page.run("document.querySelector('.answer pre').textContent"), code)
        self.assertEqual(page.run("document.querySelector('.answer pre').clientHeight >= 1500 * 14"), True)
        # Each batch is a picture: there are fewer than chunks, and what they add is little more than what stays.
        self.assertGreater(batches, 30)
        self.assertLess(batches, chunks / 5)
        self.assertLess(added, 4 * kept + 20 * batches)
        below = page.run("(({scrollHeight, scrollTop, clientHeight}) => scrollHeight - scrollTop - clientHeight)"
                         "(document.querySelector('#conversation'))")
        self.assertLess(below, 2, "the end stays in sight")
        print(f"{chunks:.0f} chunks in {batches} pictures, {added} nodes added for {kept} elements")

    def test_who_reads_above_is_left_there(self):
        page = self.open_ready(height=500)
        self.script(page, {"text": "Line.\n\n" * 100})
        self.ask(page, "Once")
        self.script(page, {"text": "Line.\n\n" * 100, "endless": True})
        page.type("#question", "Again")
        page.press("Enter")
        page.await_true("document.querySelectorAll('.answer').length === 2 &&"
                        " document.querySelector('.turns > li:last-child .text').innerText.length > 10")
        page.run("document.querySelector('#conversation').scrollTop = 40")
        page.await_true("document.querySelectorAll('.turns > li:last-child .text p').length === 100")
        self.assertEqual(page.run("document.querySelector('#conversation').scrollTop"), 40)
        page.press("Escape")
        page.await_true(ENDS)

    def test_an_answer_can_be_asked_for_again(self):
        page = self.open_ready()
        self.script(page, {"text": "one"}, {"text": "two"}, {"text": "three"})
        self.ask(page, "First")
        self.ask(page, "Second")
        self.assertEqual(page.run("[...document.querySelectorAll('.turns > li > .small')].map((node) => node.hidden)"),
                         [True, False])
        page.click(".turns > li:last-child > .small")
        page.await_true(f"{ENDS} && document.querySelector('.turns > li:last-child .text').innerText === 'three'")
        self.assertEqual(page.run("document.querySelectorAll('.turns > li').length"), 2)
        last, again = page.run("asked.slice(1)")
        self.assertEqual(last["messages"], again["messages"])
        self.assertNotEqual(last["seed"], again["seed"])
        self.assertEqual(page.run("document.activeElement.id"), "question")

    def test_a_question_can_be_changed_and_what_came_behind_it_goes(self):
        page = self.open_ready()
        self.script(page, *({"text": text} for text in ("one", "two", "three", "four", "five")))
        for question in ("First", "Second", "Third"):
            self.ask(page, question)
        page.click(".turns > li:nth-child(2) .asked > .small")
        self.assertEqual(page.run("[document.activeElement.tagName, document.activeElement.value]"),
                         ["TEXTAREA", "Second"])
        self.assertIn("The question behind it goes", page.text(".edit"))
        self.check_rules(page)
        page.press("Escape")
        self.assertEqual(page.run("[document.activeElement.textContent, document.querySelector('.edit')]"),
                         ["Edit", None])
        page.press("Enter")
        page.type(".edit textarea", "Second, changed")
        page.press("Enter")
        page.await_true(f"{ENDS} && document.querySelector('.turns > li:last-child .text').innerText === 'four'")
        self.assertEqual(page.run("[...document.querySelectorAll('.question > p')].map((node) => node.innerText)"),
                         ["First", "Second, changed"])
        self.assertEqual([message["content"] for message in page.run("asked.at(-1).messages")],
                         ["First", "one", "Second, changed"])
        self.ask(page, "And then")
        self.assertEqual([message["content"] for message in page.run("asked.at(-1).messages")],
                         ["First", "one", "Second, changed", "four", "And then"])

    def test_documents_are_named_counted_and_removed(self):
        page = self.open_ready()
        self.script(page, {"text": "yes"})
        page.run(drop("a.txt", "alpha " * 50))
        page.run(drop("b.txt", "beta " * 50))
        page.run(drop("a.txt", "gamma"))
        page.await_true("document.querySelectorAll('.document').length === 3 &&"
                        " [...document.querySelectorAll('.document-size')]"
                        ".every((node) => node.textContent.includes('tokens, '))")
        self.assertEqual(page.run("[...document.querySelectorAll('.document b')].map((node) => node.innerText)"),
                         ["a.txt", "b.txt", "a.txt (2)"])
        counts = [self.served.post("/tokenize", {"prompt": text, "add_special_tokens": False})["count"]
                  for text in ("alpha " * 50, "beta " * 50, "gamma")]
        self.assertEqual(page.text("#documents-total"), f"Together {sum(counts):,} tokens.")
        self.check_rules(page)
        self.ask(page, "Both?")
        system, _ = page.run("asked.at(-1).messages")
        self.assertEqual(system["role"], "system")
        self.assertTrue(system["content"].startswith("alpha alpha"))
        self.assertIn("[End of a.txt. Beginning of b.txt.]\n\nbeta", system["content"])
        self.assertIn("about a.txt, b.txt, a.txt (2)", page.text(".about"))
        page.click(".document:nth-child(2) button")
        self.assertEqual(page.run("document.activeElement.id"), "question")
        self.ask(page, "Now?")
        self.assertNotIn("beta", page.run("asked.at(-1).messages[0].content"))
        self.assertNotEqual(*page.run("asked.map((request) => request.context)"))
        page.run(drop("report.pdf", "%PDF-1.7 text"))
        page.await_true("!document.querySelector('#document-problem').hidden")
        self.assertIn("pdftotext", page.text("#document-problem"))
        self.assertEqual(page.run("document.querySelectorAll('.document').length"), 2)

    def test_it_fits_small_screens(self):
        page = self.open_ready(width=390, height=844)
        self.script(page, {"text": WRITTEN})
        page.run(drop("a.txt", "alpha " * 300))
        self.ask(page, "What is in it?")
        self.picture(page, "narrow_answer")
        for card in ("#conversation-card", "#settings"):
            page.click(f"{card} summary")
            self.assertTrue(page.run(f"document.querySelector('{card}').open"))
            self.check_rules(page)
            self.picture(page, f"narrow_{card[1:]}")
        for width in (390, 320):
            page.resize(width, 844)
            self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width)
            overlapping = page.run("[...document.querySelectorAll('.card summary h2')].filter((node) =>"
                                   " node.scrollWidth > node.clientWidth).length")
            self.assertEqual(overlapping, 0)

    def test_settings_go_with_the_question(self):
        page = self.open_ready()
        self.script(page, {"text": "yes"})
        for field, value in (("#system-prompt", "Be brief."), ("#retrieval-ratio", "0.3"), ("#estimation-ratio", "0.5"),
                             ("#max-unseen-mass", "0.02"), ("#temperature", "0")):
            self.set(page, field, value)
        page.press("Enter")
        self.ask(page, "So?")
        request = page.run("asked.at(-1)")
        self.assertEqual(request["messages"][0], {"role": "system", "content": "Be brief."})
        names = ("retrieval_ratio", "estimation_ratio", "max_unseen_mass", "temperature")
        self.assertEqual([request[name] for name in names], [0.3, 0.5, 0.02, 0])
        self.assertNotIn("max_tokens", request)
        page.click("input[value=both]")
        self.ask(page, "And full?")
        self.assertEqual(page.run("asked.slice(-2).map((request) => [request.policy, 'retrieval_ratio' in request])"),
                         [["wave", True], ["full", False]])
        self.set(page, "#retrieval-ratio", "2")
        page.type("#question", "Too much?")
        page.press("Enter")
        page.await_true("document.activeElement.id === 'retrieval-ratio'")
        self.assertEqual(page.run("asked.length"), 3)
        self.assertEqual(page.run("document.querySelector('#question').value"), "Too much?")

    def test_the_server_takes_what_the_settings_say(self):
        page = self.open_ready()
        for field, value in (("#system-prompt", "Be brief."), ("#retrieval-ratio", "0.3"), ("#estimation-ratio", "0.5"),
                             ("#max-unseen-mass", "0.02"), ("#max-tokens", "4")):
            self.set(page, field, value)
        page.click("input[value=both]")
        self.ask(page, "What is the passkey?")
        self.assertEqual(page.run("document.querySelector('.problem')"), None, json.dumps(page.text("#turns")))
        self.assertEqual(page.run("document.querySelectorAll('.facts:not([hidden])').length"), 2)


if __name__ == "__main__":
    if find_chromium() is None:
        print("skipped: there is no Chromium here (Debian: apt-get install chromium)")
        sys.exit(77)
    unittest.main(verbosity=2)
