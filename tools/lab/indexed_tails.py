"""The end of a prompt attends through the wave index: change of words, on a real checkpoint.

    python3 -m tools.lab.indexed_tails --model FOLDER --texts FOLDER --cells 31744,14 --out FILE
    python3 -m tools.lab.indexed_tails --report FILE

A document is read exactly, its keys become the product's index (int8, segments of 8,192), and the
--tail tokens behind it attend to the document by clusters retrieved and estimated, to themselves
exactly, as decode steps do. Compared with exact attention is the text's own next token, by ranges
of the tail. What is read of the document is exact, so that the difference is the tail's alone.
"""

import argparse
import dataclasses
import pathlib
import re
import time

import torch

from tools.needle.report import table

from . import measures
from .collect import error_of
from .document import Document
from .real_text import INT8, RealText
from .results import Results, read_lines
from .sources import prompt_tokens
from .sparse_prefill import Models, arguments_of_models, cells_of, note_setup
from .systems.full import Full
from .systems.wave import Options, Wave

BINS = 4


def systems() -> list[Wave]:
    """What is compared: the product's default, and half and twice of what it retrieves."""
    def of(share, least):
        settings = dataclasses.replace(INT8, retrieval_ratio=share, least_clusters=least)
        return Wave(f"int8 index, {100 * share:g} %", settings, options=Options(index_bits=8))
    return [of(0.035, 96), of(0.018, 64), of(0.07, 192)]


def run(arguments: argparse.Namespace) -> None:
    """Measures what is missing, until the time is over."""
    began = time.monotonic()
    results, models = Results(arguments.out), Models(arguments)
    text = RealText(arguments.texts, arguments.model)
    note_setup(results, arguments)
    for length, documents, only in arguments.cells:
        model, shown = models.of(length)
        tokens = prompt_tokens(length, arguments.tail)
        for name, number in text.documents(tokens + arguments.tail + 1, documents):
            keys = {system.name: ["indexed tail", shown, tokens, arguments.tail, name, number,
                                  system.name] for system in systems() if re.search(only, system.name)}
            if all(map(results.has, keys.values())):
                continue
            if time.monotonic() - began > arguments.seconds:
                return
            ids, rest = text.make(name, number, tokens, arguments.tail + 1)
            document = Document(model, ids)
            rest = torch.tensor(rest, device=arguments.device)
            full, _ = document.follow(Full(), rest[:-1])
            for system in systems():
                if results.has(keys.get(system.name, [])) or system.name not in keys:
                    continue
                hidden, read = document.follow(system, rest[:-1])
                sums, _ = measures.compare(models.logits, full, hidden, rest[1:], BINS)
                results.add(keys[system.name], {
                    "read": read, "bins": [dataclasses.asdict(part) for part in sums]})


def report(lines: list[dict]) -> str:
    """Returns a table: a row for each length, kind of text, system and range of the tail."""
    groups: dict[tuple, list] = {}
    for line in lines:
        if line["key"][0] == "indexed tail":
            _, _, tokens, tail, name, _, system = line["key"]
            groups.setdefault((tokens, tail, name.split("_")[0], system), []).append(line["bins"])
            groups.setdefault((tokens, tail, "both", system), []).append(line["bins"])
    body = []
    for (tokens, tail, kind, system), found in sorted(groups.items()):
        parts = [_measured(found, slice(0, 1)), _measured(found, slice(None))]
        body.append([f"{tokens:,}", kind, system, *parts[0][:1], *parts[1], str(len(found))])
    return table(["tokens", "text", "index", "perplexity of the first quarter, %", "perplexity, %",
                  "mean change", "top-1 agreement, %", "documents"], body)


def _measured(found, bins):
    """Returns the change of perplexity with its error, the mean change and the agreement."""
    total, each = measures.Sums(), []
    for document in found:
        own = measures.Sums()
        for part in document[bins]:
            own = own.add(measures.Sums(**part))
        total = total.add(own)
        each.append(100 * (own.measures()["perplexity_ratio"] - 1))
    error, values = error_of(each), total.measures()
    return [f"{100 * (values['perplexity_ratio'] - 1):+.2f}"
            + (f" ± {error:.2f}" if error is not None else ""),
            f"{values['mean_change']:.3f}", f"{100 * values['top1_agreement']:.1f}"]


def main() -> None:
    """Measures, or prints the table of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments_of_models(parser)
    parser.add_argument("--texts", type=pathlib.Path, help="a folder of .txt")
    parser.add_argument("--cells", type=cells_of, action="append", metavar="LENGTH,DOCUMENTS[,INDEXES]",
                        help="tokens of document and tail, how many, and a regular expression "
                             "that names of indexes match; may be repeated")
    parser.add_argument("--tail", type=int, default=256, help="tokens (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.report:
        print(report(read_lines([arguments.report])))
        return
    if not (arguments.model and arguments.texts and arguments.out and arguments.cells):
        parser.error("--model, --texts, --cells and --out are needed, or --report")
    if arguments.dtype is None:
        arguments.dtype = torch.bfloat16 if arguments.device == "cuda" else torch.float32
    run(arguments)


if __name__ == "__main__":
    main()
