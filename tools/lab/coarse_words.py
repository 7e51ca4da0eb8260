"""Words behind documents whose clusters are scored by cheap first passes, in all layers.

    python3 -m tools.lab.coarse_words --model FOLDER --texts FOLDER --cells 31744,14 --out FILE
    python3 -m tools.lab.coarse_words --report FILE

Documents are read exactly. The --tail tokens behind one are followed under each form
(coarse_forms.py) in every layer, and compared with exact attention is the text's own next token. The
first --rows of them are followed exactly, too, and in each layer the forms are asked with the same
queries, as coarse_scoring.py asks them: the error of attention's output.
"""

import argparse
import collections
import dataclasses
import re
import time

import torch

from tools.needle.report import table

from . import coarse_scoring, measures
from .coarse_forms import BASE, forms
from .collect import error_of
from .document import Document
from .prefill_programs import Models, note_setup, parser_of_cells, run_or_report
from .real_text import RealText
from .results import Results
from .sources import prompt_tokens
from .system import System
from .systems.coarse import Coarse
from .systems.full import Full

PROGRAM = "coarse words"
BINS = 4
ELEMENTS = {"cuda": 2 ** 28, "cpu": 2 ** 23}  # of logits at a time
MEASURES = ("error", "mass", "retrieved", "estimated")


class Read(Document):
    """A document whose forms share one index of each layer."""

    def __init__(self, model, ids):
        super().__init__(model, ids)
        self.chunk_elements = ELEMENTS[self._device.type]

    def index(self, system: System, layer: int):
        found = super().index(system, layer)
        if isinstance(system, Coarse):
            system.prepare(found, self.tokens)
        return found


def run(arguments: argparse.Namespace) -> None:
    """Measures what is missing, until the time is over."""
    began = time.monotonic()
    results, models = Results(arguments.out), Models(arguments)
    text = RealText(arguments.texts, arguments.model)
    note_setup(results, arguments)
    for length, documents, only in arguments.cells:
        model, shown = models.of(length)
        tokens = prompt_tokens(length, arguments.tail)
        wanted = [system for system in forms()
                  if system.name == BASE or re.search(only, system.name)]
        for name, number in text.documents(tokens + arguments.tail + 1, documents):
            def key_of(system):
                return [PROGRAM, shown, tokens, arguments.tail, name, number, system.name]
            missing = [system for system in wanted if not results.has(key_of(system))]
            if not missing:
                continue
            if time.monotonic() - began > arguments.seconds:
                return
            ids, rest = text.make(name, number, tokens, arguments.tail + 1)
            document = Read(model, ids)
            rest = torch.tensor(rest, device=arguments.device)
            for system, content in measure(models, document, rest, missing, arguments.rows):
                results.add(key_of(system), content)


@torch.inference_mode()
def measure(models: Models, document: Read, rest: torch.Tensor, wanted: list[Coarse], rows: int):
    """Yields what becomes of the text behind a document under each form, and what the form does in
    each layer."""
    layers: dict[str, list[dict]] = collections.defaultdict(list)
    if rows:
        asked = [system for system in forms() if system.name == BASE]
        asked += [system for system in wanted if system.name != BASE]
        coarse_scoring.measure(document, rest[:rows], {at: asked for at in range(document.layers)},
                               lambda _, system, found: layers[system.name].append(found))
    full, _ = document.follow(Full(), rest[:-1])
    for system in wanted:
        hidden, _ = document.follow(system, rest[:-1])
        sums, _ = measures.compare(models.logits, full, hidden, rest[1:], BINS)
        yield system, {"bins": [dataclasses.asdict(part) for part in sums],
                       **{name: [one[name] for one in layers[system.name]] for name in MEASURES
                          if all(name in one for one in layers[system.name])}}


def report(lines: list[dict]) -> str:
    """Returns a table: a row for each length, kind of text and form."""
    groups: dict[tuple, dict] = {}
    for line in lines:
        if line["key"][0] == PROGRAM:
            _, model, tokens, _, name, number, form = line["key"]
            for kind in (name.split("_")[0], "both"):
                groups.setdefault((tokens, kind), {}).setdefault(form, {})[
                    model, name, number] = line
    body = []
    for (tokens, kind), found in sorted(groups.items()):
        for system in forms():
            if system.name in found:
                body.append([f"{tokens:,}", kind, system.name,
                             *_row(found[system.name], found.get(BASE, {}))])
    return table(["tokens", "text", "form", "perplexity, %", "beside the first row, %",
                  "mean change", "top-1 agreement, %", "more error, %", "recall, retrieved %",
                  "weight attended, %", "documents"], body)


def _row(found: dict, base: dict) -> list[str]:
    total, ratios, beside, errors = measures.Sums(), [], [], []
    for document, line in found.items():
        own = _sums(line)
        total = total.add(own)
        ratios.append(_more(own))
        if document in base:
            beside.append(_more(own) - _more(_sums(base[document])))
            if sum(line.get("error", [])):
                errors.append(100 * (sum(line["error"]) / sum(base[document]["error"]) - 1))
    values = total.measures()

    def mean(name):
        one = [value for line in found.values() for value in line.get(name, [])]
        return f"{100 * sum(one) / len(one):.1f}" if one else ""
    return [_with_error(ratios, _more(total)), _with_error(beside),
            f"{values['mean_change']:.4f}", f"{100 * values['top1_agreement']:.1f}",
            _with_error(errors), mean("retrieved"), mean("mass"), str(len(found))]


def _sums(line) -> measures.Sums:
    total = measures.Sums()
    for part in line["bins"]:
        total = total.add(measures.Sums(**part))
    return total


def _more(sums: measures.Sums) -> float:
    return 100 * (sums.measures()["perplexity_ratio"] - 1)


def _with_error(each: list[float], value: float | None = None) -> str:
    """Returns a value, or the mean of the documents', with its standard error over documents."""
    if not each:
        return ""
    error = error_of(each)
    return (f"{sum(each) / len(each) if value is None else value:+.2f}"
            + (f" ± {error:.2f}" if error is not None else ""))


def main() -> None:
    """Measures, or prints the table of what was measured."""
    parser = parser_of_cells(__doc__, "forms")
    parser.add_argument("--tail", type=int, default=512, help="tokens (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=32,
                        help="tokens of it whose outputs are compared in each layer, 0: none")
    run_or_report(parser, ["model", "texts", "cells", "out"], run, report)


if __name__ == "__main__":
    main()
