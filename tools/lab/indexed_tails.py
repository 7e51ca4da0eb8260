"""The end of a prompt attends through the wave index: change of words, on a real checkpoint.

    python3 -m tools.lab.indexed_tails --model FOLDER --texts FOLDER --cells 31744,14 --out FILE
    python3 -m tools.lab.indexed_tails --report FILE

A document is read exactly, its keys become the product's index (int8, segments of 8,192), and the
--tail tokens behind it attend to the document by clusters retrieved and estimated, to themselves
exactly, as decode steps do. Compared with exact attention is the text's own next token, by ranges
of the tail. What is read of the document is exact, so that the difference is the tail's alone.
"""

import argparse
import copy
import dataclasses
import pathlib
import re
import time

import torch

from tools.needle.report import table

from . import measures
from .collect import error_of
from .document import Document
from .prefill_programs import (Models, arguments_of_models, cells_of, note_setup,
                               run_or_report)
from .real_text import INT8, RealText
from .results import Results
from .sources import prompt_tokens
from .system import System
from .systems.coded import Coded, Codes
from .systems.full import Full
from .systems.wave import Options, Wave

BINS = 4
CUT_TOKENS = 1024  # by which a document is shorter from one of its tails to the next


def systems() -> list[System]:
    """What is compared: the product's default, half and twice of what it retrieves, and pages that
    codes of tokens choose (decision 0085)."""
    def of(share, least):
        settings = dataclasses.replace(INT8, retrieval_ratio=share, least_clusters=least)
        return Wave(f"int8 index, {100 * share:g} %", settings, options=Options(index_bits=8))
    codes = Coded("coded index, 2.4 %", INT8, Codes(bits=2, pages=0.024), Options(index_bits=8))
    return [of(0.035, 96), of(0.018, 64), of(0.07, 192), codes]


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
            key = ["indexed tail", shown, tokens, arguments.tail, name]
            wanted = {cut: [system for system in systems() if re.search(only, system.name)
                            and not results.has([*key, _numbered(number, cut), system.name])]
                      for cut in range(arguments.cuts)}
            if not any(wanted.values()):
                continue
            if time.monotonic() - began > arguments.seconds:
                return
            ids, rest = text.make(name, number, tokens, arguments.tail + 1)
            document, ids = Document(model, ids), ids + rest
            for cut, missing in wanted.items():
                head = tokens - cut * CUT_TOKENS
                behind = torch.tensor(ids[head:head + arguments.tail + 1], device=arguments.device)
                for system, content in measure(models, first(document, head), behind, missing):
                    results.add([*key, _numbered(number, cut), system.name], content)


def _numbered(number, cut):
    return [number, cut] if cut else number


def first(document: Document, tokens: int) -> Document:
    """Returns the document that a longer one begins with; its keys are the same."""
    found = copy.copy(document)
    found.tokens, found._indexes, found.build_seconds = tokens, {}, {}
    found.keys, found.values = ([x[:, :tokens] for x in own]
                                for own in (document.keys, document.values))
    return found


def measure(models: Models, document: Document, behind: torch.Tensor, wanted: list[System]):
    """Yields what becomes of a tail under each index."""
    full = document.follow(Full(), behind[:-1])[0] if wanted else None
    for system in wanted:
        hidden, read = document.follow(system, behind[:-1])
        sums, _ = measures.compare(models.logits, full, hidden, behind[1:], BINS)
        yield system, {"read": read, "bins": [dataclasses.asdict(part) for part in sums]}


def report(lines: list[dict]) -> str:
    """Returns a table: a row for each length, kind of text, system and range of the tail."""
    groups: dict[tuple, dict] = {}
    for line in lines:
        if line["key"][0] == "indexed tail":
            _, _, tokens, tail, name, number, system = line["key"]
            document = name, number if isinstance(number, int) else number[0]
            for kind in (name.split("_")[0], "both"):
                groups.setdefault((tokens, tail, kind, system), {}).setdefault(
                    document, []).extend(line["bins"])
    body = []
    for (tokens, tail, kind, system), found in sorted(groups.items()):
        parts = [_measured(found, BINS), _measured(found, 1)]
        tails = sum(map(len, found.values())) // BINS
        body.append([f"{tokens:,}", kind, system, *parts[0][:1], *parts[1],
                     f"{tails} / {len(found)}"])
    return table(["tokens", "text", "index", "perplexity of the first quarter, %", "perplexity, %",
                  "mean change", "top-1 agreement, %", "tails / documents"], body)


def _measured(found, step):
    """Returns the change of perplexity with its error over documents, the mean change and the
    agreement, of every `step`-th range."""
    total, each = measures.Sums(), []
    for document in found.values():
        own = measures.Sums()
        for part in document[::step]:
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
    parser.add_argument("--cuts", type=int, default=1,
                        help="tails of a document, each behind 1,024 tokens less of it")
    run_or_report(parser, ["model", "texts", "cells", "out"], run, report)


if __name__ == "__main__":
    main()
