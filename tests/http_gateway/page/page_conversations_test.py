#!/usr/bin/env python3
"""Conversations that the browser keeps: the list, files, several tabs, and a browser without room.

usage: page_conversations_test.py BIN_DIR [--pictures FOLDER] [--axe AXE.JS]   (as page_test.py)
"""
import json
import sys
import unittest

from page_case import ENDS, PageCase, drop, find_chromium

TITLES = "[...document.querySelectorAll('#conversations button')].map((node) => node.textContent)"
# Files that the page gives to the browser: [name, text].
FILES = """(() => {
    window.files = [];
    const original = URL.createObjectURL;
    URL.createObjectURL = (blob) => { window.blob = blob; return original.call(URL, blob); };
    HTMLAnchorElement.prototype.click = function click() {
        const {download} = this;
        blob.text().then((text) => files.push([download, text]));
    };
})()"""

# What the browser keeps of the only conversation.
KEPT = """new Promise((resolve) => {
    indexedDB.open('retroinfer').onsuccess = ({target: {result: database}}) => {
        database.transaction('bodies').objectStore('bodies').getAll().onsuccess = ({target: {result: [body]}}) => {
            database.close();
            resolve(body);
        };
    };
})"""


def choose_file(field, name, content):
    return f"""(() => {{
        const data = new DataTransfer();
        data.items.add(new File([{json.dumps(content)}], {json.dumps(name)}));
        const field = document.querySelector('{field}');
        field.files = data.files;
        field.dispatchEvent(new Event('change'));
    }})()"""


class KeptCase(PageCase):
    def setUp(self):
        # What other tests have kept.
        page = self.browser.open(f"http://127.0.0.1:{self.served.port}/page/icon.svg")
        self.browser.call("Storage.clearDataForOrigin", page.session, storageTypes="all",
                          origin=f"http://127.0.0.1:{self.served.port}")
        page.close()

    def open_with(self, *questions):
        page = self.open_ready()
        self.script(page, *({"text": f"answer to {question}"} for question in questions))
        for question in questions:
            self.ask(page, question)
        page.await_true(f"{TITLES}.length > 0")
        return page

    def reload(self, page):
        page.run("window.isOld = true; null")
        page.call("Page.reload")
        page.await_true("window.isOld === undefined && document.querySelector('#connection')?.textContent === 'Ready'")

    def answer_dialog(self, page, text=None):
        page.await_true("document.querySelector('dialog[open]') !== null")
        self.check_rules(page)
        if text is not None:
            page.type("dialog input", text)
        page.click("dialog .main")
        page.await_true("document.querySelector('dialog') === null")


class ConversationsTest(KeptCase):
    def test_a_conversation_is_there_again(self):
        page = self.open_with("First <b>", "Second")
        page.run(drop("a.txt", "alpha"))
        self.set(page, "#system-prompt", "Be brief.")
        page.press("Tab")
        page.click("input[value=full]")
        page.await_true("document.querySelector('.document-size')?.textContent.includes('tokens, ')")
        page.await_true(f"{KEPT}.then((body) => body.settings.policy === 'full' && body.documents.length === 1)")
        self.reload(page)
        page.await_true("document.querySelectorAll('.turns > li').length === 2")
        self.assertEqual(page.run("[...document.querySelectorAll('.answer > .text')].map((node) => node.innerText)"),
                         ["answer to First <b>", "answer to Second"])
        self.assertIn("13 %", page.text(".facts"))
        self.assertEqual(page.text(".document b"), "a.txt")
        self.assertEqual(page.run("[document.querySelector('#system-prompt').value,"
                                  " document.querySelector('input[name=policy]:checked').value]"), ["Be brief.", "full"])
        self.assertEqual(page.run(TITLES), ["First <b>"])
        self.picture(page, "conversations")
        self.check_rules(page)
        self.script(page, {"text": "third"})
        self.ask(page, "Third")
        self.assertEqual([message["content"] for message in page.run("asked[0].messages")],
                         ["alpha\n\nBe brief.", "First <b>", "answer to First <b>", "Second", "answer to Second",
                          "Third"])
        other = self.open_ready()
        other.await_true(f"{TITLES}.length === 1")
        self.assertEqual(other.run("document.querySelectorAll('.turns > li').length"), 0)

    def test_each_has_its_own_settings_and_documents(self):
        page = self.open_with("One")
        page.click("#new-chat")
        page.run(drop("b.txt", "beta"))
        self.set(page, "#retrieval-ratio", "0.5")
        page.press("Enter")
        self.ask(page, "Two")
        page.await_true(f"{TITLES}.length === 2")
        self.assertEqual(page.run(TITLES), ["Two", "One"])
        for title, ratio, documents in (("One", "", 0), ("Two", "0.5", 1)):
            page.run("[...document.querySelectorAll('#conversations button')]"
                     f".find((node) => node.textContent === '{title}').click()")
            page.await_true(f"document.querySelector('#conversations [aria-current]').textContent === '{title}'")
            self.assertEqual(page.run("[document.querySelector('#retrieval-ratio').value,"
                                      " document.querySelectorAll('.document').length]"), [ratio, documents])
            self.assertEqual(page.text(".question > p"), title)

    def test_it_is_renamed_and_deleted(self):
        page = self.open_with("One")
        page.click("#rename")
        self.answer_dialog(page, "Another <i>name</i>")
        page.await_true(f"{TITLES}[0] === 'Another <i>name</i>'")
        self.assertEqual(page.run("document.activeElement.id"), "rename")
        page.click("#delete")
        page.await_true("document.querySelector('dialog[open]') !== null")
        page.press("Escape")
        page.await_true("document.querySelector('dialog') === null")
        self.assertEqual(len(page.run(TITLES)), 1)
        page.click("#delete")
        self.answer_dialog(page)
        page.await_true(f"{TITLES}.length === 0 && !document.querySelector('#welcome').hidden")
        self.reload(page)
        self.assertEqual(page.run(TITLES), [])
        self.assertEqual(page.run("document.querySelectorAll('.turns > li').length"), 0)

    def test_it_goes_to_files_and_comes_back(self):
        page = self.open_with("One: is/it?")
        page.run(drop("a.txt", "alpha"))
        page.run(FILES)
        page.click("#export-json")
        page.click("#export-markdown")
        page.await_true("files.length === 2")
        (json_name, kept), (markdown_name, text) = page.run("files.sort()")
        self.assertEqual([json_name, markdown_name], ["One-is-it.json", "One-is-it.md"])
        self.assertIn("## Question\n\nOne: is/it?", text)
        self.assertEqual(json.loads(kept)["documents"], [{"name": "a.txt", "text": "alpha"}])
        page.click("#delete")
        self.answer_dialog(page)
        page.await_true(f"{TITLES}.length === 0")
        page.run(choose_file("#import-file", json_name, kept))
        page.await_true("document.querySelectorAll('.turns > li').length === 1 &&"
                        " document.querySelectorAll('.document').length === 1")
        page.await_true(f"{TITLES}[0] === 'One: is/it?'")
        self.assertEqual(page.text(".answer > .text"), "answer to One: is/it?")
        hostile = json.loads(kept)
        hostile["turns"][0]["answers"][0]["html"] = "<script>"
        page.run(choose_file("#import-file", "x.json", json.dumps(hostile)))
        page.await_true("!document.querySelector('#conversations-problem').hidden")
        self.assertIn('file.turns[0].answers[0]: "html" is not known', page.text("#conversations-problem"))
        self.assertEqual(len(page.run(TITLES)), 1)
        self.check_rules(page)

    def test_a_browser_that_keeps_nothing_says_so_and_goes_on(self):
        page = self.open()
        page.call("Page.addScriptToEvaluateOnNewDocument", source="Object.defineProperty(window, 'indexedDB', {get() {"
                  " throw new DOMException('Not allowed here.', 'SecurityError'); }})")
        self.reload(page)
        page.await_true("!document.querySelector('#conversations-problem').hidden")
        self.assertIn("This browser keeps no conversations. What there is ends with the tab. Not allowed here.",
                      page.text("#conversations-problem"))
        self.script(page, {"text": "one"})
        self.ask(page, "One")
        page.click("#new-chat")
        self.ask(page, "Two")
        self.assertEqual(page.run("document.querySelectorAll('.turns > li').length"), 1)
        self.check_rules(page)

    def test_two_tabs_do_not_write_over_each_other(self):
        page = self.open_with("One")
        other = self.open_ready()
        other.await_true(f"{TITLES}.length === 1")
        other.run("document.querySelector('#conversations button').click()")
        other.await_true("document.querySelectorAll('.turns > li').length === 1")
        self.script(other, {"text": "theirs"})
        self.ask(other, "Theirs")
        page.show()
        self.script(page, {"text": "mine"})
        self.ask(page, "Mine")
        page.await_true(f"{TITLES}.length === 2")
        self.assertEqual(sorted(page.run(TITLES)), ["One", "One (copy)"])
        other.await_true(f"{TITLES}.length === 2", "the other tab has looked again")
        self.assertEqual(other.run("document.querySelectorAll('.turns > li').length"), 2)

    def test_what_was_written_when_the_tab_went_away_is_kept(self):
        page = self.open_ready()
        self.script(page, {"text": "half of it", "endless": True})
        page.type("#question", "One")
        page.press("Enter")
        page.await_true("document.querySelector('.answer > .text')?.innerText === 'half of it'")
        self.assertTrue(page.run("[...document.querySelectorAll('#conversations button, #new-chat, #import')]"
                                 ".every((node) => node.disabled)"))
        other = self.open_ready()  # hides the other one
        self.assertEqual(page.run("document.visibilityState"), "hidden")
        other.await_true(f"{TITLES}.length === 1")
        page.show()
        self.reload(page)
        page.await_true("document.querySelector('.answer > .text')?.innerText === 'half of it'")
        self.assertIn("stopped", page.text(".answer header"))
        self.assertTrue(page.run(ENDS))


# With a browser of its own, since that is told how much room it has.
class RoomTest(KeptCase):
    def test_a_browser_without_room_says_so_and_goes_on(self):
        # Before there is a database: of one that is open the browser remembers for a while how much room it has.
        origin = f"http://127.0.0.1:{self.served.port}"
        page = self.open_ready()
        page.call("Storage.overrideQuotaForOrigin", origin=origin, quotaSize=1000000)
        page = self.open_with("One")
        page.run(drop("large.txt", "".join(f"{number} " for number in range(900000))))
        page.await_true("!document.querySelector('#conversations-problem').hidden")
        self.assertIn("no room for the conversation", page.text("#conversations-problem"))
        self.check_rules(page)
        self.script(page, {"text": "two"})
        self.ask(page, "Two")
        self.assertEqual(page.text("li:last-child .answer > .text"), "two")
        page.call("Storage.overrideQuotaForOrigin", origin=origin)
        self.ask(page, "Three")
        page.await_true(f"{KEPT}.then((body) => body.turns[2]?.answers[0].outcome === 'done')")
        page.await_true("document.querySelector('#conversations-problem').hidden")
        self.reload(page)
        page.await_true("document.querySelectorAll('.turns > li').length === 3")


if __name__ == "__main__":
    if find_chromium() is None:
        print("skipped: there is no Chromium here (Debian: apt-get install chromium)")
        sys.exit(77)
    unittest.main(verbosity=2)
