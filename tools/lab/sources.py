"""Documents with text behind them, for each of the models that this tree has."""

import pathlib

from tools.needle import bpe, generate, prompt, tasks

from . import text

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEEDLE, CODE = ROOT / "models" / "needle", ROOT / "models" / "code"


def prompt_tokens(length: int, behind: int) -> int:
    """Returns the largest document of at most `length` tokens with so many behind it, of whole
    segments: then no system attends a rest exactly that another does not."""
    return 68 + (length - behind - 68) // 1024 * 1024


class CodeText:
    """Held-out Python source: one run of text, cut in two."""

    def __init__(self, model: pathlib.Path, windows: int):
        self._encoder = text.tokenizer(model)
        self._text, self.records = text.held_out()
        self._windows = windows

    def make(self, number: int, tokens: int, behind: int) -> tuple[list[int], list[int]]:
        """Returns a document of exactly `tokens` tokens and `behind` + 1 tokens behind it."""
        ids = text.window(self._text, self._encoder, number, self._windows, tokens + behind + 1)
        return ids[:tokens], ids[tokens:]


class NeedleText:
    """A document full of facts, and behind it questions with their right answers."""

    def __init__(self, model: pathlib.Path, seed: int):
        self._encoder = bpe.Encoder(model)
        self._generator = generate.Generator(self._encoder, "eval", seed)
        self.records: list[dict] = [{"generator": "tools/needle", "split": "eval", "seed": seed}]

    def make(self, number: int, tokens: int, behind: int) -> tuple[list[int], list[int]]:
        """As CodeText.make, but the document is up to a few sentences shorter."""
        encoder = self._encoder
        document, asked = self._generator.make(tasks.MULTI_VALUE, tokens, number, needles=256)
        begin, end = map(encoder.special, (prompt.BEGIN_OF_TEXT, prompt.END_OF_TEXT))
        behind_it: list[int] = []
        for question in asked * (1 + behind // 32):
            behind_it += encoder.encode(prompt.question_text(question.text)
                                        + prompt.completion_text(question.answer)) + [end]
            if len(behind_it) > behind:
                return [begin, *document.ids(encoder)], behind_it[:behind + 1]
        raise ValueError(f"too few questions for {behind} tokens behind a document")
