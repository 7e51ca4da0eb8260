"""Blocks of commands in a page, each with a comment above it that names it for this test:

    <!-- first hour: NAME -->
    ```sh
"""
import re

_FENCE = re.compile(r"(?P<mark><!-- first hour: (?P<name>[\w-]+) -->\n)?```(?P<kind>sh|console)\n(?P<text>.*?)^```$",
                    re.DOTALL | re.MULTILINE)
_ANY = re.compile(r"^```(?:sh|console)$", re.MULTILINE)


class Unmarked(Exception):
    """A page has commands that nobody runs."""


def commands(page):
    """{name: commands} of all blocks of commands in the order of the page; raises Unmarked."""
    text = page.read_text(encoding="utf-8")
    blocks = {}
    for fence in _FENCE.finditer(text):
        if fence["name"] is None:
            raise Unmarked(f"{page.name}: a block without a name: {fence['text'].splitlines()[0]}")
        if fence["name"] in blocks:
            raise Unmarked(f"{page.name}: two blocks are called {fence['name']}")
        blocks[fence["name"]] = _of_console(fence["text"]) if fence["kind"] == "console" else fence["text"]
    if len(blocks) != len(_ANY.findall(text)):
        raise Unmarked(f"{page.name}: {len(_ANY.findall(text))} blocks of commands, {len(blocks)} are read")
    return blocks


def _of_console(text):
    """What follows the prompt; the rest is what the commands say."""
    return "".join(line[2:] for line in text.splitlines(keepends=True) if line.startswith("$ "))
