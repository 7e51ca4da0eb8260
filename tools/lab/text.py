"""Held-out text: packages of Python source that the code model has never been trained on.

They are read from where they are installed, by the rules of tools/code/corpus.py, so nothing is
stored and nothing downloaded. Which versions were found, and whether they are those that
models/code/corpus.json names, is part of every result.
"""

import hashlib
import json
import pathlib
from collections.abc import Callable, Sequence

from tools.code import corpus
from tools.needle import bpe

CODE_MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "code"
CHARACTERS_A_TOKEN = 5  # more than any text of a window has on average


def held_out() -> tuple[str, list[dict]]:
    """Returns the text of the held-out packages, and a record of each.

    Raises ValueError when none is installed.
    """
    names = [record["package"] for record in _records() if record["split"] == "eval"]
    known = {record["package"]: record["sha256"] for record in _records()}
    texts, records = [], []
    for name, version, licence, files in corpus.distributions():
        if name not in names:
            continue
        parts = [f"# file: {shown}\n{text}\n" for shown, path in sorted(files)
                 if (text := corpus._read(path)) is not None]
        text = "".join(dict.fromkeys(parts))
        digest = hashlib.sha256(text.encode()).hexdigest()
        texts.append(text)
        records.append({"package": name, "version": version, "licence": licence,
                        "as_recorded": digest == known[name], "sha256": digest})
    if not texts:
        raise ValueError(f"no held-out text: install one of {', '.join(names)} (pip)")
    return "".join(texts), records


def _records() -> list[dict]:
    return json.loads((CODE_MODEL / "corpus.json").read_text(encoding="utf-8"))


def tokenizer(folder: pathlib.Path) -> Callable[[str], list[int]]:
    """Returns the encoder of a model folder: the package tokenizers, or without it this tree's
    own, which knows ASCII alone and is given nothing else."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        own = bpe.Encoder(folder)
        return lambda text: own.encode(text.encode("ascii", "ignore").decode())
    from tools.code import encode  # needs the package, too
    loaded = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode_text(text: str) -> list[int]:
        pieces = loaded.encode_batch_fast(list(encode.pieces(text)), add_special_tokens=False)
        return [token for piece in pieces for token in piece.ids]
    return encode_text


def window(text: str, encoder: Callable[[str], Sequence[int]], number: int, count: int,
           tokens: int) -> list[int]:
    """Returns window `number` of `count` at even distances: so many tokens, from a file's start."""
    room = tokens * CHARACTERS_A_TOKEN
    if room > len(text):
        raise ValueError(f"windows of {tokens} tokens in {len(text)} characters of held-out text: "
                         f"{len(text) // CHARACTERS_A_TOKEN} are possible")
    begin = text.rfind("\n# file: ", 0, 1 + round((len(text) - room) * (number + 0.5) / count))
    ids = encoder(text[begin + 1:begin + 1 + room])
    if len(ids) < tokens:
        raise ValueError(f"{room} characters of held-out text have {len(ids)} tokens, "
                         f"{tokens} are wanted")
    return ids[:tokens]
