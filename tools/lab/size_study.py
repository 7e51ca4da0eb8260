"""How the findings move with the size of the model: the same text under a few systems, for each
model that is asked, and the table that shows them side by side.

Reference is full attention of the same model in bf16. Documents are the same for models with one
tokenizer.
"""

import collections
import dataclasses
import pathlib

import torch

from tools.needle import wave
from tools.needle.report import table

from . import collect, measures
from .formats import BF16, CHOSEN, Form
from .jobs import Job
from .system import Budget, System
from .systems.full import Full
from .systems.quest import Quest
from .systems.streaming import Streaming
from .systems.topk import TopK
from .systems.wave import PAPER, PRODUCT, Options, Wave

_vary = dataclasses.replace
_EIGHT = Options(index_bits=8)
_EIGHT_KV = Options(index_bits=8, kv_bits=8, page_tokens=8)


@dataclasses.dataclass(frozen=True)
class Row:
    """A system, the form in which it finds keys and values, and the factor of the bytes that it
    counts: full attention counts 16 bits in any form."""
    name: str
    make: object  # () -> System
    form: Form = BF16
    counted: float = 1.0

    def system(self) -> System:
        """Makes it, with no state of another document."""
        return self.make()


def rows() -> list[Row]:
    """What is asked of every model."""
    def index(name, settings, options=Options(), form=BF16):
        return Row(name, lambda: Wave(name, settings, options=options), form)
    return [
        Row("full, 8-bit keys and values", Full, CHOSEN, 0.5),
        Row("StreamingLLM", lambda: Streaming(Budget())),
        Row("exact top-k", lambda: TopK(Budget())),
        Row("Quest", lambda: Quest(Budget())),
        index("RetroInfer (paper)", PAPER),
        index("ours, 16-bit index", PRODUCT),
        index("that without estimation", _vary(PRODUCT, estimation_ratio=0.0)),
        index("ours, 8-bit index", wave.INT8, _EIGHT),
        index("ours, 8-bit index, keys and values", wave.INT8, _EIGHT_KV, CHOSEN),
        index("that with twice the retrieval", wave.INT8, _vary(_EIGHT_KV, retrieval=2.0), CHOSEN),
    ]


class Size(Job):
    """Text behind one document under each row."""

    def __init__(self, folder: pathlib.Path, number: int, tokens: int, tail: int):
        self._folder, self._number, self._tokens, self._tail = folder, number, tokens, tail
        self._rows = sorted(rows(), key=lambda row: (row.form.name, str(row.system().key())))
        super().__init__(f"size: {folder.name}, document {number} of {tokens} tokens",
                         [self._key(row) for row in self._rows])

    def _key(self, row):
        return ["size", self._folder.name, self._tokens, self._tail, self._number, row.name]

    def run(self, lab, results) -> int:
        document, ids = self.document(lab, self._folder, self._number, self._tokens, self._tail)
        model = lab.model(self._folder)
        asked, targets = ids[:-1], ids[1:]
        full, read_by_full = document.follow(Full(), asked)
        views, last, missing = {BF16.name: document}, None, 0
        for row in self._rows:
            if row.form.name not in views:
                views[row.form.name] = document.stored(row.form)
            view, system = views[row.form.name], row.system()
            if (row.form.name, system.key()) != last:
                view.forget()
                last = row.form.name, system.key()

            def measure(row=row, view=view, system=system):
                hidden, read = view.follow(system, asked)
                sums, _ = measures.compare(model.logits, full, hidden, targets, 1)
                count = row.counted * sum(read.values())
                return {"bytes": count, "of_full": round(count / sum(read_by_full.values()), 5),
                        "parameters": sum(p.numel() for p in model.parameters()),
                        "layers": document.layers, "sums": dataclasses.asdict(sums[0])}
            missing += self.attempt(lab, results, self._key(row), measure)
        return missing


def by_model(lines: list[dict]) -> str:
    """Returns the tables of every length: a row for each system and model."""
    groups = collections.defaultdict(list)
    for line in lines:
        if line["key"][0] == "size":
            _, model, tokens, _, _, name = line["key"]
            groups[tokens, name, line["parameters"], model].append(line)
    if not groups:
        return ""
    order, parts = [row.name for row in rows()], []
    for tokens in sorted({key[0] for key in groups}):
        here = {key[1:]: found for key, found in groups.items() if key[0] == tokens}
        body = [_shown(*key, found) for key, found in sorted(
            here.items(), key=lambda one: (order.index(one[0][0]), one[0][1:]))]
        parts += [f"Documents of {tokens:,} tokens, {_tail(lines)} behind each:", table(
            ["system", "parameters, M", "perplexity of full", "bytes of full's, %",
             "perplexity / full", "mean change", "KL", "top-1 agreement, %", "documents"], body)]
    sizes = {key[3]: key[2] for key in groups}
    parts += ["Pages that an LRU cache has, in per cent, by its share of all pages:",
              _locality(lines, sizes),
              "What the index promises (rank correlations with what is behind the prediction):",
              _promise(lines, sizes)]
    return "\n\n".join(parts)


def _tail(lines):
    return "/".join(str(tail) for tail in sorted({line["key"][3] for line in lines
                                                  if line["key"][0] == "size"}))


def _shown(name, parameters, _, found):
    whole, documents = measures.Sums(), []
    for line in found:
        one = measures.Sums(**line["sums"])
        whole = whole.add(one)
        documents.append(one.measures())
    total = whole.measures()

    def with_error(what):
        error = collect.error_of([one[what] for one in documents])
        return f"{total[what]:.4f}" + ("" if error is None else f" ± {error:.4f}")
    return [name, _millions(parameters), f"{total['perplexity_full']:.2f}",
            f"{100 * collect.mean(line['of_full'] for line in found):.1f}",
            with_error("perplexity_ratio"), with_error("mean_change"), f"{total['kl']:.4f}",
            f"{100 * total['top1_agreement']:.1f}", str(len(found))]


def _millions(parameters):
    return f"{parameters / 1e6:.0f}"


def _of_sizes(lines, kind, sizes):
    found = [one for one in collect.of_kind(lines, kind) if one["model"] in sizes]
    return sorted(found, key=lambda one: (one["tokens"], sizes[one["model"]]))


def _locality(lines, sizes):
    body = [[f"{one['tokens']:,}", _millions(sizes[one["model"]]),
             *(f"{100 * hit:.1f}" for hit in one["hits"].values()),
             f"{100 * one['ever_touched']:.0f}",
             ", ".join(f"{100 * x:.0f}" for x in one["again_at_the_next_step"])]
            for one in _of_sizes(lines, "locality", sizes)]
    return table(["tokens", "parameters, M", "5 %", "10 %", "20 %", "40 %", "ever touched, %",
                  "again at the next step, %, by layer"], body)


def _promise(lines, sizes):
    kinds = ("true_mass", "output_error", "change_of_the_token")
    body = [[f"{one['tokens']:,}", _millions(sizes[one["model"]]), f"{one['predicted']:.3f}",
             f"{one['true']:.3f}", f"{one['error']:.3f}",
             *(f"{one['rank_correlation'][kind]:.2f}" for kind in kinds)]
            for one in _of_sizes(lines, "unseen", sizes)]
    return table(["tokens", "parameters, M", "predicted unseen", "true unseen",
                  "error of the output", "true mass", "error", "change of the token"], body)
