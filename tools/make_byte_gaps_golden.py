#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/byte_gaps: small tokenizers whose vocabulary lacks some of the 256
bytes, and what Hugging Face tokenizers makes of strings that have them.

    NAME/tokenizer.json   dropped: without an unknown token; unknown, fused: with one, for each such
                          byte or for each run of them; merged: with one that merges take in
    encodings.jsonl       one array a line: the text, and its ids with each of NAMES

Ids are written as make_tokenizer_golden.py writes them. Needs `tokenizers`; the same version gives
the same files.
"""
import copy
import json
import pathlib
import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import tokenizer_corpus as corpus

SEED = 21
NUM_STRINGS = 800
VOCABULARY = 360
NAMES = ["dropped", "unknown", "fused", "merged"]
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
# Bytes that UTF-8 does not have, control characters, beginnings and middles of characters, and
# letters, so that neighbours meet often.
GAPS = ([0xC0, 0xC1, *range(0xF5, 0x100)] + [0x00, 0x01, 0x7F, 0xF1, 0xF3, 0xE9, 0x98, 0x9F]
        + [ord(c) for c in "qsZ~"])
UNKNOWN = "<unk>"


def byte_alphabet() -> list[str]:
    """The character of each byte (GPT-2, bytes_to_unicode)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def without_gaps(text: str) -> str:
    return bytes(b for b in text.encode() if b not in GAPS).decode(errors="ignore")


def train() -> dict:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = [c for b, c in enumerate(byte_alphabet()) if b not in GAPS]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False, special_tokens=[UNKNOWN],
                                  initial_alphabet=alphabet)
    tokenizer.train_from_iterator([without_gaps(line) for line in corpus.SENTENCES], trainer)
    spec = json.loads(tokenizer.to_str())
    assert set(alphabet) == {token for token in spec["model"]["vocab"] if len(token) == 1}
    return spec


def variants(base: dict) -> dict[str, dict]:
    specs = {name: copy.deepcopy(base) for name in NAMES}
    for name in NAMES[1:]:
        specs[name]["model"]["unk_token"] = UNKNOWN
    specs["fused"]["model"]["fuse_unk"] = True
    merged = specs["merged"]["model"]
    for left, right in ((UNKNOWN, UNKNOWN), ("a", UNKNOWN), (UNKNOWN, "a")):
        merged["vocab"][left + right] = len(merged["vocab"])
        merged["merges"].insert(0, [left, right])
    specs["merged"]["added_tokens"] = []
    return specs


def strings(rng: random.Random):
    yield from ("", "q", "qqqq", "sq~Z", "\0", "\0\0a\0", "a" + "q" * 200 + "b", "té", "é" * 40, "\U000F0000" * 9)
    gaps = [c for c in map(chr, range(0x80)) if ord(c) in GAPS]
    for _ in range(NUM_STRINGS):
        line = rng.choice(corpus.SENTENCES)
        begin = rng.randrange(len(line))
        text = list(line[begin:begin + rng.randint(2, 24)])
        for _ in range(rng.randint(0, 6)):
            code = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x3000),
                               rng.randrange(0x40000, 0x110000)])
            drawn = rng.choice(gaps) if rng.random() < 0.6 else chr(code)
            text.insert(rng.randint(0, len(text)), drawn * rng.choice([1, 1, 2, 3]))
        yield "".join(text)


def to_digits(ids: list[int]) -> str:
    return "".join(DIGITS[i // 64] + DIGITS[i % 64] for i in ids)


def main() -> None:
    output = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/tokenizer/byte_gaps"
    tokenizers = []
    for name, spec in variants(train()).items():
        (output / name).mkdir(parents=True, exist_ok=True)
        text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
        (output / name / "tokenizer.json").write_text(text + "\n")
        tokenizers.append(Tokenizer.from_str(text))
        tokenizers[-1].encode_special_tokens = True
    with open(output / "encodings.jsonl", "w") as file:
        for text in strings(random.Random(SEED)):
            ids = [to_digits(t.encode(text, add_special_tokens=False).ids) for t in tokenizers]
            file.write(json.dumps([text, *ids], separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
