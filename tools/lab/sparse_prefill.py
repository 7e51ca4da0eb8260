"""Sparse prefill on a real checkpoint: share of blocks, time and change of words, by rule.

    python3 -m tools.lab.sparse_prefill --model FOLDER --texts FOLDER --cells 31744,8,0.98 --out FILE
    python3 -m tools.lab.sparse_prefill --report FILE

A document is prefilled once exactly and once by each rule (block_sparse.py); the last layer is
exact. What is compared is the text's own next token at the last --scored positions. Started again
with the same --out it goes on with what is missing. A document of 31K tokens and a rule take half
a second on an H100, two minutes for each 16K on one core of a CPU.
"""

import argparse
import dataclasses
import pathlib
import re
import time

import torch

from tools.needle.report import table

from . import block_sparse, measures
from .block_choice import Choice
from .block_sparse import Counts
from .collect import error_of
from .prefill_programs import (Models, arguments_of_models, cells_of, note_setup,
                               run_or_report)
from .real_text import RealText
from .results import Results


def rules(dense: int) -> list[Choice]:
    """What is compared."""
    found = [Choice(threshold=threshold) for threshold in (0.98, 0.95, 0.99, 0.9, 0.8)]
    found += [Choice("all")]
    found += [Choice(threshold=threshold, stride=8) for threshold in (0.98, 0.95, 0.9)]
    found += [Choice("pooled", threshold) for threshold in (0.98, 0.95)]
    found += [Choice("true", threshold) for threshold in (0.98, 0.95)]
    # Those of others, by their own units.
    found += [Choice(threshold=threshold, unit=128, stride=stride)
              for threshold in (0.98, 0.95, 0.9) for stride in (8, 16)]
    found += [Choice("flexprefill", threshold, unit=128) for threshold in (0.98, 0.95, 0.9)]
    found += [Choice("vertical-slash", share) for share in (0.05, 0.1, 0.2, 0.3)]
    return [dataclasses.replace(choice, dense=dense) for choice in found]


@torch.inference_mode()
def prefill(model, ids: torch.Tensor, choice: Choice | None, counts: Counts,
            seen=None) -> torch.Tensor:
    """Returns the hidden states [n, w] of a document. seen(layer, k, v) is shown keys and values."""
    last = model.shape.num_hidden_layers - 1
    whole = Choice(dense=len(ids))

    def attend(layer, q, k, v):
        if seen:
            seen(layer, k, v)
        rule = whole if choice is None or layer == last else choice
        return block_sparse.attention(rule, counts, q, k, v)
    return model(ids[None], torch.arange(len(ids), device=ids.device)[None], attend)[0]


def run(arguments: argparse.Namespace) -> None:
    """Measures what is missing, until the time is over."""
    began = time.monotonic()
    results, models = Results(arguments.out), Models(arguments)
    text = RealText(arguments.texts, arguments.model)
    note_setup(results, arguments)
    for length, documents, only in arguments.cells:
        model, shown = models.of(length)
        wanted = [choice for choice in rules(arguments.dense) if re.search(only, choice.name())]
        for name, number in text.documents(length + 1, documents):
            ids = torch.tensor(sum(text.make(name, number, length, 1), []),
                               device=arguments.device)
            exact = None
            for choice in wanted:
                key = ["sparse prefill", shown, length, name, number, dataclasses.asdict(choice)]
                if results.has(key):
                    continue
                if time.monotonic() - began > arguments.seconds:
                    return
                if exact is None:
                    exact = _timed(model, ids[:-1], None, arguments.scored)
                results.add(key, measure(models, model, ids, choice, exact, arguments.scored))


def _timed(model, ids, choice, scored):
    """Returns the last hidden states, what was counted, and the seconds."""
    counts, began = Counts(), time.monotonic()
    hidden = prefill(model, ids, choice, counts)[-scored:].clone()
    if hidden.is_cuda:
        torch.cuda.synchronize()
    return hidden, counts, round(time.monotonic() - began, 3)


def measure(models, model, ids, choice, exact, scored) -> dict:
    """Returns what became of a document under a rule."""
    hidden, counts, seconds = _timed(model, ids[:-1], choice, scored)
    sums, _ = measures.compare(models.logits, exact[0], hidden, ids[-scored:], 1)
    return {"sums": dataclasses.asdict(sums[0]), **dataclasses.asdict(counts),
            "seconds": seconds, "exact_seconds": exact[2],
            "dtype": str(hidden.dtype).removeprefix("torch."), "device": str(hidden.device.type)}


def report(lines: list[dict]) -> str:
    """Returns a table for each model and kind of text: a row for each rule and length."""
    parts: dict[tuple, list] = {}
    for line in lines:
        if line["key"][0] == "sparse prefill":
            _, model, _, name, _, _ = line["key"]
            parts.setdefault((model.split()[0], name.split("_")[0]), []).append(line)
    return "\n\n".join(f"Model {model}, {kind}:\n\n{_table(found)}"
                       for (model, kind), found in sorted(parts.items(), reverse=True))


def _table(lines: list[dict]) -> str:
    rows: dict[tuple, list] = {}
    for line in lines:
        _, _, length, _, _, choice = line["key"]
        rows.setdefault((length, line.get("dtype", "float32"), Choice(**choice)), []).append(line)
    body = [_row(*key, found) for key, found in sorted(rows.items(), key=lambda row: (
        row[0][0], row[0][1], row[0][2].name()))]
    return table(["tokens", "rule", "blocks, %", "perplexity, %", "mean change",
                  "top-1 agreement, %", "choosing, s", "attending, s", "documents"], body)


def _row(length, dtype, choice, found) -> list[str]:
    sums, ratios = measures.Sums(), []
    for line in found:
        own = measures.Sums(**line["sums"])
        sums = sums.add(own)
        ratios.append(100 * (own.measures()["perplexity_ratio"] - 1))
    total, error = sums.measures(), error_of(ratios)
    blocks = sum(line["attended"] for line in found) / sum(line["seen"] for line in found)
    # The least of the documents: others share the device with other programs.
    times = [min(line.get(name, 0) for line in found) for name in ("choosing_s", "attending_s")]
    return [f"{length:,}", choice.name() + (", fp32" if dtype == "float32" else ""),
            f"{100 * blocks:.1f}", f"{100 * (total['perplexity_ratio'] - 1):+.2f}"
            + (f" ± {error:.2f}" if error is not None else ""),
            f"{total['mean_change']:.3f}", f"{100 * total['top1_agreement']:.1f}",
            *(f"{seconds:.2f}" if seconds else "" for seconds in times), str(len(found))]


def main() -> None:
    """Measures, or prints the tables of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments_of_models(parser)
    parser.add_argument("--texts", type=pathlib.Path, help="a folder of .txt")
    parser.add_argument("--cells", type=cells_of, action="append",
                        metavar="LENGTH,DOCUMENTS[,RULES]",
                        help="tokens of a document, how many, and a regular expression that "
                             "names of rules match; may be repeated")
    parser.add_argument("--scored", type=int, default=4096, help="last tokens that are compared")
    run_or_report(parser, ["model", "texts", "cells", "out"], run, report)


if __name__ == "__main__":
    main()
