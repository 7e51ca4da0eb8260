"""Trains the tokenizer on the corpus and encodes it.

    python3 -m tools.code.encode CORPUS MODEL
    python3 -m tools.code.encode CORPUS OTHER --tokenizer-of MODEL   # no training: that model's

Byte-level BPE in Llama 3's form, as tools/needle has it. Writes tokenizer.json and
tokenizer_config.json into MODEL, and train.bin and eval.bin (int16, a begin-of-text token before
each package) beside the corpus.
"""

import argparse
import array
import json
import pathlib
import random
import shutil
import sys

from tools.needle import prompt, tasks, train_tokenizer

VOCABULARY = 3072
SAMPLE_BYTES = 30_000_000  # of text that merges are learned from
PIECE_BYTES = 20_000       # what is encoded at once


def documents(path: pathlib.Path):
    """Yields (package, text)."""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            yield record["package"], record["text"]


def pieces(text: str):
    """Cuts a text behind empty lines, where Llama 3's expression ends a piece in any case."""
    begin = 0
    while len(text) - begin > PIECE_BYTES:
        cut = text.find("\n\n", begin + PIECE_BYTES)
        if cut < 0:
            break
        while cut < len(text) and text[cut] == "\n":
            cut += 1
        yield text[begin:cut]
        begin = cut
    yield text[begin:]


def sample(path: pathlib.Path, seed: int):
    """Yields pieces of all packages until SAMPLE_BYTES are reached."""
    rng = random.Random(seed)
    chosen = [piece for _, text in documents(path) for piece in pieces(text)]
    rng.shuffle(chosen)
    left = SAMPLE_BYTES
    for piece in chosen:
        left -= len(piece)
        if left < 0:
            return
        yield piece


def encode(tokenizer, begin: int, path: pathlib.Path, out: pathlib.Path) -> int:
    """Writes the ids of all documents; returns how many."""
    total = 0
    partial = out.with_suffix(".partial")  # what was cut off must not be taken for the whole
    with open(partial, "wb") as file:
        for _, text in documents(path):
            ids = array.array("h", [begin])
            for one in tokenizer.encode_batch_fast(list(pieces(text)), add_special_tokens=False):
                ids.extend(one.ids)
            ids.tofile(file)
            total += len(ids)
    partial.replace(out)
    return total


def tokenizer_for(arguments: argparse.Namespace):
    """Trains a tokenizer, or takes another model's; writes it into the model folder."""
    if other := arguments.tokenizer_of:
        from tokenizers import Tokenizer
        arguments.model.mkdir(parents=True, exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(other / name, arguments.model / name)
        return Tokenizer.from_file(str(other / "tokenizer.json"))
    tokenizer = train_tokenizer.train(
        arguments.vocabulary, sample(arguments.corpus / "train.jsonl", arguments.seed),
        train_tokenizer.LLAMA3_REGEX)
    train_tokenizer.write_folder(tokenizer, arguments.model, tasks.MAX_LENGTH, None)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=pathlib.Path, help="folder that corpus.py wrote")
    parser.add_argument("model", type=pathlib.Path, help="model folder to write into")
    parser.add_argument("--tokenizer-of", type=pathlib.Path, metavar="MODEL",
                        help="take the tokenizer of this model folder instead of training one")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    try:
        tokenizer = tokenizer_for(arguments)
    except OSError as error:
        sys.exit(f"encode: {error}")
    begin = tokenizer.token_to_id(prompt.BEGIN_OF_TEXT)
    for split in ("train", "eval"):
        count = encode(tokenizer, begin, arguments.corpus / f"{split}.jsonl",
                       arguments.corpus / f"{split}.bin")
        print(f"{split}: {count / 1e6:.2f} M tokens", flush=True)


if __name__ == "__main__":
    main()
