#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/fallback: small tokenizers of the SentencePiece kind, and what Hugging Face
tokenizers makes of strings with each.

    prepend/    normalizers Prepend and Replace, no pre-tokenizer, decoder with Strip, as Llama 2 and Phi-3
    first/      pre-tokenizer Metaspace before the first text only, as Mistral 7B v0.3
    split/      Metaspace before each text, which cuts, too
    lines/      normalizer Replace, a Split that does nothing, added tokens of line feeds, as Gemma
    across/     as lines, with tokens that hold a mark behind another character
    encodings.jsonl  one array a line: [flags, text, ids of each, in the order above]
    hashes.txt  for each text of ../encodings.jsonl a line: hashes of its ids with each

Flags: "p" if special tokens in the text count. Ids are in base 64 as in ../encodings.jsonl; a hash is
FNV-1a of the ids, 4 bytes each, least significant first, folded to 24 bits.

Needs `tokenizers`; the same version gives the same files.
"""
import json
import pathlib
import random

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

import tokenizer_corpus as corpus

SEED = 24
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
MARK = "\u2581"
NAMES = ["prepend", "first", "split", "lines", "across"]


def training_texts(rng: random.Random):
    for _ in range(300):
        yield rng.choice([" ", "\n"]).join(rng.sample(corpus.SENTENCES, 4))


def model_of(rng: random.Random, cuts: bool) -> dict:
    """The vocabulary of a trained model behind <unk>, <s>, </s> and the bytes; "▁▁" and the like."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    tokenizer.pre_tokenizer = (pre_tokenizers.Metaspace(prepend_scheme="never") if cuts
                               else pre_tokenizers.Split("\n", "isolated"))
    tokenizer.train_from_iterator(training_texts(rng), trainers.BpeTrainer(
        vocab_size=700, limit_alphabet=80, show_progress=False, max_token_length=12))
    trained = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(trained["vocab"], key=trained["vocab"].get)
    merges = [list(merge) for merge in trained["merges"]]
    for length in (2, 4, 8):
        merges.insert(5 * length, [MARK * (length // 2)] * 2)
        tokens.append(MARK * length)
    words = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    words += list(dict.fromkeys([MARK] + tokens))
    return {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": {word: i for i, word in enumerate(words)}, "merges": merges}


def added(i: int, content: str, **settings) -> dict:
    return {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True, **settings}


def spec_of(name: str, words: dict, across: dict) -> dict:
    model = across if name == "across" else words
    size = len(model["vocab"])
    tokens = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>"),
              added(size, "<|end|>", rstrip=name == "prepend"),
              added(size + 1, "wordy", single_word=True, special=False, normalized=True)]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    normalizer, cut = None, None
    steps = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"},
             {"type": "Fuse"}]
    if name in ("lines", "across"):
        tokens += [added(size + i, "\n" * i, special=False) for i in range(2, 5)]
        normalizer = replace
        cut = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
               "invert": False}
    else:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    if name == "prepend":
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, replace]}
    if name in ("first", "split"):
        cut = {"type": "Metaspace", "replacement": MARK, "split": name == "split",
               "prepend_scheme": "first" if name == "first" else "always"}
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    post = {"type": "TemplateProcessing", "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [start, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens,
            "normalizer": normalizer, "pre_tokenizer": cut, "post_processor": post,
            "decoder": {"type": "Sequence", "decoders": steps}, "model": model}


def strings(rng: random.Random):
    """Spaces, marks, line feeds and added tokens at all ends of words."""
    parts = [" ", "  ", "        ", "\n", "\n\n", "\n\n\n", MARK, MARK * 3, "wordy", "<s>", "</s>", "<|end|>",
             "<unk>", "<0x0A>", "\t", "日本", "é", "e\u0301", "😀", "\0", "<", "a", "the", "it's", "42"]
    yield from (("", text) for text in ["", " ", "  ", MARK, "\n", "wordy", " wordy", "<s>", "<s> a", " <s>"])
    for i in range(700):
        words = corpus.SENTENCES[rng.randrange(len(corpus.SENTENCES))].split(" ")
        text = "".join(rng.choice(parts + words[:3]) for _ in range(rng.randint(1, 7)))
        yield rng.choice(["", "p"]), text


def ids_of(tokenizer: Tokenizer, text: str, flags: str) -> list[int]:
    tokenizer.encode_special_tokens = "p" not in flags
    return tokenizer.encode(text, add_special_tokens=False).ids


def to_digits(ids: list[int]) -> str:
    return "".join(DIGITS[i // 64] + DIGITS[i % 64] for i in ids)


def hash_of(ids: list[int]) -> str:
    value = 0x811C9DC5
    for i in ids:
        for byte in i.to_bytes(4, "little"):
            value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    value = (value >> 24) ^ (value & 0xFFFFFF)
    return "".join(DIGITS[value >> shift & 63] for shift in (18, 12, 6, 0))


def main():
    rng = random.Random(SEED)
    golden = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/tokenizer"
    output = golden / "fallback"
    words, across = model_of(rng, True), model_of(rng, False)
    tokenizers = []
    for name in NAMES:
        (output / name).mkdir(parents=True, exist_ok=True)
        text = json.dumps(spec_of(name, words, across), ensure_ascii=False, separators=(",", ":"))
        (output / name / "tokenizer.json").write_text(text + "\n")
        tokenizers.append(Tokenizer.from_str(text))
    with open(output / "encodings.jsonl", "w") as file:
        for flags, text in strings(rng):
            row = [flags, text] + [to_digits(ids_of(t, text, flags)) for t in tokenizers]
            file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    with open(output / "hashes.txt", "w") as file:
        for line in open(golden / "encodings.jsonl"):
            flags, text = json.loads(line)[:2]
            file.write("".join(hash_of(ids_of(t, text, flags)) for t in tokenizers) + "\n")


if __name__ == "__main__":
    main()
