#!/usr/bin/env python3
"""Compares the token ids that two servers give to many strings: one has a model in GGUF, the other the Hugging Face
folder of the same model.

Strings are drawn from tools/tokenizer_corpus.py: sentences of many languages, code, rare characters, digits, white
space, names of special tokens, cut and joined anywhere. Ends with 1 if any string has other ids.

Run: tools/gguf/compare_ids.py http://127.0.0.1:8000 http://127.0.0.1:8001 [--count 10000] [--seed 1]
"""
import argparse
import json
import pathlib
import random
import sys
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import tokenizer_corpus  # noqa: E402

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<think>",
           "<|eot_id|>", "<|begin_of_text|>", "<file_sep>"]
SPACES = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "   \n", "\u00a0", "\u3000"]


def rare(rng):
    while True:
        code = rng.choice([rng.randrange(0x20, 0x3000), rng.randrange(0x3000, 0x20000), rng.randrange(0x1F300, 0x1FAFF)])
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def draw(rng, lines):
    parts = []
    for _ in range(rng.randrange(1, 8)):
        kind = rng.randrange(8)
        line = rng.choice(lines)
        if kind < 4:
            begin = rng.randrange(len(line))
            parts.append(line[begin:begin + rng.randrange(1, 120)])
        elif kind == 4:
            parts.append("".join(rare(rng) for _ in range(rng.randrange(1, 12))))
        elif kind == 5:
            parts.append(str(rng.randrange(10 ** rng.randrange(1, 12))))
        elif kind == 6:
            parts.append(rng.choice(SPACES) * rng.randrange(1, 5))
        else:
            parts.append(rng.choice(SPECIAL))
    return "".join(parts)


def ids_of(server, text):
    request = urllib.request.Request(server + "/tokenize", json.dumps({"prompt": text}).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("servers", nargs=2)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    lines = [line for name in ("SENTENCES", "CODE") for line in getattr(tokenizer_corpus, name) if line]
    different, num_ids = 0, 0
    for _ in range(options.count):
        text = draw(rng, lines)
        first, second = (ids_of(server, text) for server in options.servers)
        num_ids += len(first)
        if first != second:
            different += 1
            if different <= 10:
                print(json.dumps(text), first, second, sep="\n  ")
    print(f"{options.count} strings, {num_ids} ids, {different} strings with other ids")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
