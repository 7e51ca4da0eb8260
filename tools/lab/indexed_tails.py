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
import re
import time

import torch

from tools.needle.report import table

from . import measures
from .collect import error_of
from .document import Document, Seen
from .prefill_programs import Models, note_setup, parser_of_cells, run_or_report
from .real_text import INT8, RealText
from .results import Results
from .sources import prompt_tokens
from .system import System
from .systems.coded import Coded, Codes
from .systems.full import Full
from .systems.tail_rows import Together, TrueWeights
from .systems.wave import Options, Wave

BINS = 4
STEP_ROWS = 64  # of a tail that a step takes
ELEMENTS = {"cuda": 2 ** 28, "cpu": 2 ** 23}  # of logits at a time
CUT_TOKENS = 1024  # by which a document is shorter from one of its tails to the next


def systems() -> list[System]:
    """What is compared: the product's default, other shares of what it retrieves, and pages that
    codes of tokens choose (decision 0085)."""
    small = Options(index_bits=8)

    def settings(share, least=96, **others):
        return dataclasses.replace(INT8, retrieval_ratio=share, least_clusters=least, **others)

    def of(share, least):
        return Wave(f"int8 index, {100 * share:g} %", settings(share, least), options=small)
    codes = Coded("coded index, 2.4 %", INT8, Codes(bits=2, pages=0.024), small)
    more = Coded("coded index, 4.8 %", INT8, Codes(bits=2, pages=0.048, candidates=0.24), small)
    usual = settings(0.035)
    return [of(0.035, 96), of(0.018, 64), of(0.07, 192), codes, of(0.1, 192), of(0.14, 192),
            of(0.25, 192), more,
            # Rows that share what is read for them.
            Together("int8 index, rows of 64 share 3.5 % each", usual, small),
            *(Together(f"int8 index, runs of {rows}, 3.5 % each", usual, small, rows=rows,
                       refills=False) for rows in (64, 16, 8)),
            Together("int8 index, rows of 64 share 1.8 % each", settings(0.018, 64), small),
            Together("int8 index, rows of 64 share 14 %", settings(0.14), small, chosen=True),
            # What is missing: the right clusters, the estimate, or what is left out.
            TrueWeights("true weights, 3.5 %", usual, options=small),
            Wave("int8 index, 3.5 %, all others estimated", settings(0.035, estimation_ratio=1.0),
                 options=small),
            Wave("int8 index, 26.7 %, none estimated", settings(0.267, estimation_ratio=0.0),
                 options=small),
            Wave("int8 index, until 0.1 is unseen", usual,
                 options=dataclasses.replace(small, unseen=0.1))]


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


class Reads:
    """The share of a document that rows attend to exactly: each by itself, and those of a step
    together."""

    def __init__(self):
        self._rows = self._steps = 0.0
        self._seen = 0

    def __call__(self, seen: Seen) -> None:
        exact = seen.choice.exact
        self._rows += exact.float().mean((1, 2, 3)).sum().item()
        for part in exact.split(STEP_ROWS):
            self._steps += part.any(2).any(0).float().mean().item() * len(part)
        self._seen += len(exact)

    def shares(self) -> dict[str, float]:
        """Returns both as means over rows and layers."""
        return {"attended": round(self._rows / self._seen, 5),
                "read_a_step": round(self._steps / self._seen, 5)}


def measure(models: Models, document: Document, behind: torch.Tensor, wanted: list[System]):
    """Yields what becomes of a tail under each index."""
    if not wanted:
        return
    # Calls of whole steps, so that rows of a step are seen together.
    step = STEP_ROWS * models.heads * document.tokens
    document.chunk_elements = max(1, ELEMENTS[behind.device.type] // step) * step
    full = document.follow(Full(), behind[:-1])[0]
    for system in wanted:
        reads = Reads()
        hidden, read = document.follow(system, behind[:-1], observer=reads)
        sums, _ = measures.compare(models.logits, full, hidden, behind[1:], BINS)
        yield system, {"read": read, **reads.shares(),
                       "bins": [dataclasses.asdict(part) for part in sums]}


def report(lines: list[dict]) -> str:
    """Returns a table: a row for each length, kind of text, system and range of the tail."""
    groups: dict[tuple, dict] = {}
    shares: dict[tuple, list] = {}
    for line in lines:
        if line["key"][0] == "indexed tail":
            _, _, tokens, tail, name, number, system = line["key"]
            document = name, number if isinstance(number, int) else number[0]
            for kind in (name.split("_")[0], "both"):
                group = tokens, tail, kind, system
                groups.setdefault(group, {}).setdefault(document, []).extend(line["bins"])
                if "attended" in line:
                    shares.setdefault(group, []).append((line["attended"], line["read_a_step"]))
    body = []
    for group, found in sorted(groups.items()):
        tokens, _, kind, system = group
        parts = [_measured(found, BINS), _measured(found, 1)]
        tails = sum(map(len, found.values())) // BINS
        body.append([f"{tokens:,}", kind, system, *_mean_shares(shares.get(group, [])),
                     *parts[0][:1], *parts[1], f"{tails} / {len(found)}"])
    return table(["tokens", "text", "index", "attended by a row, %", "by 64 rows, %",
                  "perplexity of the first quarter, %", "perplexity, %",
                  "mean change", "top-1 agreement, %", "tails / documents"], body)


def _mean_shares(found):
    return [f"{100 * sum(part) / len(part):.1f}" for part in zip(*found)] or ["", ""]


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
    parser = parser_of_cells(__doc__, "indexes")
    parser.add_argument("--tail", type=int, default=256, help="tokens (default: %(default)s)")
    parser.add_argument("--cuts", type=int, default=1,
                        help="tails of a document, each behind 1,024 tokens less of it")
    run_or_report(parser, ["model", "texts", "cells", "out"], run, report)


if __name__ == "__main__":
    main()
