r"""A byte-level BPE encoder for the generated text, in the standard library alone.

It reads tokenizer.json, gives the ids that the tokenizers library gives, and remembers every piece
it has seen, so that encoding a generated document costs about one dictionary look-up a word. It
covers what the generator writes (ASCII, no special tokens), and refuses anything else.

Llama 3's regular expression, for ASCII text. No piece reaches over a space that starts a word,
so sentences that begin with a space can be encoded one by one.
"""

import json
import pathlib
import re

_PIECES = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{1,3}|"
    r" ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_PRINTED = {" ": "\u0120", "\n": "\u010a", "\t": "\u0109", "\r": "\u010d"}


class Encoder:
    """Encodes ASCII text with the tokenizer of a model folder."""

    def __init__(self, folder: str | pathlib.Path):
        path = pathlib.Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing: give a model folder, or make one with train_tokenizer.py")
        content = json.loads(path.read_text(encoding="utf-8"))
        self._vocab = content["model"]["vocab"]
        merges = (m.split(" ") if isinstance(m, str) else m for m in content["model"]["merges"])
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(merges)}
        self._special = {t["content"]: t["id"] for t in content["added_tokens"]}
        self._texts = {index: text for text, index in self._vocab.items()}
        self._pieces: dict[str, list[int]] = {}

    @property
    def size(self) -> int:
        """The number of tokens, special ones included."""
        return len(self._vocab | self._special)

    def special(self, content: str) -> int:
        """Returns the id of a special token."""
        return self._special[content]

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`, without special tokens."""
        if not text.isascii():
            raise ValueError("this encoder covers generated text (ASCII) only")
        ids: list[int] = []
        pieces = self._pieces
        for piece in _PIECES.findall(text):
            known = pieces.get(piece)
            if known is None:
                known = pieces[piece] = self._merge(piece)
            ids += known
        return ids

    def decode(self, ids: list[int]) -> str:
        """Returns the text of ids; special tokens are left out, and so are bytes over 127."""
        shown = {printed: char for char, printed in _PRINTED.items()}
        text = "".join(self._texts.get(index, "") for index in ids)
        return "".join(shown.get(char, char) for char in text if char.isascii() or char in shown)

    def _merge(self, piece: str) -> list[int]:
        parts = [_PRINTED.get(char, char) for char in piece]
        while len(parts) > 1:
            ranked = [(self._ranks[pair], i) for i, pair in enumerate(zip(parts, parts[1:]))
                      if pair in self._ranks]
            if not ranked:
                break
            _, i = min(ranked)
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        return [self._vocab[part] for part in parts]
