"""What the tests of the page share: the page in a headless Chromium, with the demo model behind it."""
import argparse
import base64
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from browser import Browser, find_chromium  # noqa: E402
from served import Served  # noqa: E402

PARSER = argparse.ArgumentParser()
PARSER.add_argument("bin_dir", type=pathlib.Path)
PARSER.add_argument("--pictures", type=pathlib.Path)
PARSER.add_argument("--axe", type=pathlib.Path)
OPTIONS, sys.argv[1:] = PARSER.parse_known_args()
BIN = OPTIONS.bin_dir.resolve()
PICTURES = OPTIONS.pictures
AXE = OPTIONS.axe.read_text(encoding="utf-8") if OPTIONS.axe else None
ENDS = "!document.querySelector('.answer[aria-busy]') && document.querySelector('#stop').hidden"

# Texts with less contrast against what is behind them than WCAG's AA asks for.
FAINT = """(() => {
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
        .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
    const behind = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const back = parse(getComputedStyle(at).backgroundColor);
            if (back.length < 4 || back[3] === 1) return back;
        }
        return [255, 255, 255];
    };
    const found = [];
    for (const node of document.querySelectorAll('body *')) {
        const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim() !== '');
        const field = node.matches('input, textarea');
        if ((!own && !field) || !node.checkVisibility() || node.closest('.unseen, .skip, :disabled')) continue;
        const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < 4.5) found.push(`${node.tagName} ${node.className} "${node.textContent.trim().slice(0, 30)}": ${contrast.toFixed(2)}`);
    }
    return found;
})()"""


# Answers come from window.answers, one a request: {text, thought, size (characters of a chunk), endless}; what was
# asked is in window.asked. The last one comes again and again.
SCRIPTED = """(() => {
    const before = window.fetch;
    window.asked = [];
    window.fetch = async (path, options) => {
        if (path !== '/v1/chat/completions') return before(path, options);
        asked.push(JSON.parse(options.body));
        const answer = answers.length > 1 ? answers.shift() : answers[0];
        const {text = '', thought = '', size = 5, endless = false} = answer;
        const cut = (all, name) => Array.from({length: Math.ceil(all.length / size)},
            (_, at) => ({[name]: all.slice(at * size, (at + 1) * size)}));
        const deltas = [...cut(thought, 'reasoning_content'), ...cut(text, 'content')];
        const encoder = new TextEncoder();
        const soon = new MessageChannel();
        let next = 0;
        const usage = {prompt_tokens: 2000, completion_tokens: deltas.length,
            prompt_tokens_details: {cached_tokens: 1500}, kv_read_ratio: 0.125,
            unseen_mass: {mean: 0.012, largest: 0.05}, timings: {decode_ms: 1000}};
        const body = new ReadableStream({
            start(controller) {
                options.signal.addEventListener('abort', () => controller.error(new DOMException('', 'AbortError')));
            },
            async pull(controller) {
                const send = (chunk) => controller.enqueue(encoder.encode(`data: ${chunk}\\n\\n`));
                await new Promise((go) => { soon.port1.onmessage = go; soon.port2.postMessage(0); });
                if (next % 50 === 0) await new Promise(requestAnimationFrame);
                if (options.signal.aborted) return;
                if (next < deltas.length) {
                    send(JSON.stringify({choices: [{delta: deltas[next++]}]}));
                } else if (endless) {
                    await new Promise(() => {});
                } else {
                    send(JSON.stringify({choices: [{delta: {}, finish_reason: 'stop'}]}));
                    send(JSON.stringify({choices: [], usage}));
                    send('[DONE]');
                    controller.close();
                }
            },
        });
        return new Response(body, {headers: {'Content-Type': 'text/event-stream'}});
    };
})()"""


def drop(name, text):
    """A file that is dropped, as the browser tells a page of it."""
    return f"""(() => {{
        const data = new DataTransfer();
        data.items.add(new File([{json.dumps(text)}], {json.dumps(name)}));
        document.dispatchEvent(new DragEvent('drop', {{dataTransfer: data, bubbles: true, cancelable: true}}));
    }})()"""


class PageCase(unittest.TestCase):
    serve_options = ()

    @classmethod
    def setUpClass(cls):
        cls.served = Served(BIN, *cls.serve_options, arena="256MiB")
        cls.addClassCleanup(cls.served.stop)
        cls.browser = Browser(find_chromium())
        cls.addClassCleanup(cls.browser.close)

    def open(self, **options):
        page = self.browser.open(f"http://127.0.0.1:{self.served.port}/", **options)
        self.addCleanup(page.close)
        return page

    def open_ready(self, **options):
        page = self.open(**options)
        page.await_true("document.querySelector('#connection').textContent === 'Ready'")
        return page

    def script(self, page, *answers):
        """The next answers are these, not the model's."""
        if not page.run("window.asked !== undefined"):
            page.run(SCRIPTED)
        page.run(f"window.answers = {json.dumps(answers)}; null")

    def ask(self, page, question):
        """Asks by keyboard and waits for the end of the answer."""
        page.type("#question", question)
        page.press("Enter")
        page.await_true("[...document.querySelectorAll('.question > p:not(.about)')].at(-1)?.innerText"
                        f" === {json.dumps(question)} && {ENDS}")

    def check_rules(self, page):
        """What is on the page can be read, and broke no policy."""
        self.assertEqual(page.run(FAINT), [])
        if AXE:
            page.run(f"{AXE}; null")
            found = page.run("axe.run(document, {resultTypes: ['violations']}).then(({violations}) => violations"
                             ".map(({id, nodes}) => [id, nodes.map((node) => node.html.slice(0, 200))]))")
            self.assertEqual(found, [])
        self.assertEqual(page.complaints(), [])

    def set(self, page, field, text):
        """Fills a field of the settings."""
        if not page.run("document.querySelector('#settings').open"):
            page.click("#settings summary")
        page.type(field, text)

    def picture(self, page, name):
        if PICTURES:
            PICTURES.mkdir(parents=True, exist_ok=True)
            (PICTURES / f"{name}.png").write_bytes(base64.b64decode(page.picture()))
