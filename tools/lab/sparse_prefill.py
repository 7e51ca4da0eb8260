"""Sparse prefill on a real checkpoint: share of blocks and change of words, by estimate and threshold.

    python3 -m tools.lab.sparse_prefill --model FOLDER --texts FOLDER --length 16384 --out sparse.jsonl
    python3 -m tools.lab.sparse_prefill --report sparse.jsonl

A document is prefilled once exactly and once by each rule (block_sparse.py); the last layer is
exact. What is compared is the text's own next token at the last --scored positions. Started again
with the same --out it goes on with what is missing. Takes about two minutes for each rule and
document of 16K tokens on one core.
"""

import argparse
import dataclasses
import pathlib
import re
import time

import torch

from tools.needle.report import table

from . import block_sparse, checkpoint, measures
from .block_sparse import Choice, Counts
from .real_text import RealText
from .results import Results, read_lines


def rules(dense: int) -> list[Choice]:
    """What is compared."""
    found = [Choice(threshold=threshold) for threshold in (0.95, 0.9, 0.98, 0.8)]
    found += [Choice(threshold=threshold, stride=8) for threshold in (0.95, 0.9)]
    found += [Choice("pooled", threshold) for threshold in (0.95, 0.98)]
    found += [Choice("true", 0.95), Choice(threshold=0.95, unit=128, stride=16)]
    return [dataclasses.replace(choice, dense=dense) for choice in found]


@torch.inference_mode()
def prefill(model, ids: torch.Tensor, choice: Choice | None, counts: Counts) -> torch.Tensor:
    """Returns the hidden states [n, w] of a document."""
    last = model.shape.num_hidden_layers - 1
    whole = Choice(dense=len(ids))

    def attend(layer, q, k, v):
        rule = whole if choice is None or layer == last else choice
        return block_sparse.attention(rule, counts, q, k, v)
    return model(ids[None], torch.arange(len(ids))[None], attend)[0]


def run(arguments: argparse.Namespace) -> None:
    """Measures what is missing."""
    results = Results(arguments.out)
    model = checkpoint.load(arguments.model, "cpu", torch.float32, arguments.rope_scaling)
    text = RealText(arguments.texts, arguments.model)
    for name, number in text.documents(arguments.length + 1, arguments.documents):
        ids = torch.tensor(sum(text.make(name, number, arguments.length, 1), []))
        scored = slice(arguments.length - arguments.scored, arguments.length)
        exact = None
        for choice in rules(arguments.dense):
            if not re.search(arguments.only, choice.name()):
                continue
            key = ["sparse prefill", arguments.model.name, arguments.length, name, number,
                   dataclasses.asdict(choice)]
            if results.has(key):
                continue
            if exact is None:
                exact = prefill(model, ids[:-1], None, Counts())[scored]
            counts, began = Counts(), time.monotonic()
            found = prefill(model, ids[:-1], choice, counts)[scored]
            sums, _ = measures.compare(model.logits, exact, found, ids[1:][scored], 1)
            results.add(key, {"sums": dataclasses.asdict(sums[0]), **dataclasses.asdict(counts),
                              "seconds": round(time.monotonic() - began, 1)})


def report(lines: list[dict]) -> str:
    """Returns a table: a row for each rule and length."""
    rows: dict[tuple, list] = {}
    for line in lines:
        if line["key"][0] == "sparse prefill":
            _, _, length, _, _, choice = line["key"]
            rows.setdefault((length, Choice(**choice)), []).append(line)
    body = []
    for (length, choice), found in sorted(rows.items(), key=lambda row: (
            row[0][0], row[0][1].name())):
        sums, attended, seen = measures.Sums(), 0, 0
        for line in found:
            sums = sums.add(measures.Sums(**line["sums"]))
            attended, seen = attended + line["attended"], seen + line["seen"]
        total = sums.measures()
        body.append([f"{length:,}", choice.name(), f"{100 * attended / seen:.1f}",
                     f"{100 * (total['perplexity_ratio'] - 1):+.2f}",
                     f"{total['mean_change']:.3f}", f"{100 * total['top1_agreement']:.1f}",
                     str(len(found))])
    return table(["tokens", "rule", "blocks, %", "perplexity, %", "mean change",
                  "top-1 agreement, %", "documents"], body)


def main() -> None:
    """Measures, or prints the table of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, help="a Hugging Face folder")
    parser.add_argument("--texts", type=pathlib.Path, help="a folder of .txt")
    parser.add_argument("--rope-scaling", default="")
    parser.add_argument("--length", type=int, default=16384, help="tokens of a document")
    parser.add_argument("--scored", type=int, default=4096, help="last tokens that are compared")
    parser.add_argument("--documents", type=int, default=2)
    parser.add_argument("--dense", type=int, default=4096, help="rows that attend to everything")
    parser.add_argument("--only", default="", help="a regular expression: rules whose names match")
    parser.add_argument("--out", type=pathlib.Path, help="JSON lines")
    parser.add_argument("--report", type=pathlib.Path, help="prints the table of these lines")
    arguments = parser.parse_args()
    if arguments.report:
        print(report(read_lines([arguments.report])))
    elif arguments.model and arguments.texts and arguments.out:
        run(arguments)
    else:
        parser.error("--model, --texts and --out are needed, or --report")


if __name__ == "__main__":
    main()
