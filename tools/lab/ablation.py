"""Which part of a better index brings how much: every variant reads what the product's reads.

A row's retrieval budget is fitted on the first tokens behind each document until a step reads as
many bytes as the product's index does there (or `times` as many). So a part that saves bytes shows
what they buy, and one that needs more shows what that costs elsewhere.
"""

import dataclasses
import pathlib

import torch

from . import measures
from .formats import BF16, CHOSEN, Form
from .jobs import Job
from .systems.full import Full
from .systems.wave import PRODUCT, Options, Wave

SIMPLE = "ours, radius 0.25, 8-bit index"
FITTED_ON = 64  # tokens behind the document
_vary = dataclasses.replace


@dataclasses.dataclass(frozen=True)
class Row:
    """A variant of the wave index; `form` is how keys and values are stored. `budget` is the factor
    of the product's retrieval budget; 0: fitted."""
    name: str
    settings: object
    options: Options
    form: Form = BF16
    times: float = 1.0
    budget: float = 0.0

    def system(self, factor: float = 1.0) -> Wave:
        """Makes it with so many times the product's retrieval budget."""
        return Wave(self.name, self.settings, options=_vary(self.options, retrieval=factor))


OURS = Row("ours", PRODUCT, Options(), budget=1.0)


def rows() -> list[Row]:
    """Parts one by one, put together, left out, and what might go beyond."""
    quarter = _vary(PRODUCT, radius=0.25)
    eight = _vary(quarter, cluster_tokens=8)
    four = _vary(quarter, cluster_tokens=4)
    bits = Options(index_bits=8)
    joint = Options(index_bits=8, joint=True, page_budget=True)
    lean = _vary(joint, rest=16)
    found = [
        OURS,
        Row("radius 0.25", quarter, Options()),
        Row("8-bit index", PRODUCT, bits),
        Row("clusters of 8", _vary(PRODUCT, cluster_tokens=8), Options()),
        Row("heads share a budget of pages", PRODUCT, Options(joint=True, page_budget=True)),
        Row("rest by neighbourhoods", PRODUCT, Options(rest=16)),
        Row("radius 0.25 + 8-bit index", quarter, bits),
        Row("radius 0.25 + 8-bit index + clusters of 8", eight, bits),
        Row("those + a shared budget", eight, joint),
        Row("lean: those + neighbourhoods", eight, lean),
        Row("lean, radius 0.5", _vary(eight, radius=0.5), lean),
        Row("lean, 16-bit index", eight, _vary(lean, index_bits=16)),
        Row("lean, clusters of 16", quarter, lean),
        Row("lean, each head its budget", eight, Options(index_bits=8, rest=16)),
        Row("lean, no estimation zone", _vary(eight, estimation_ratio=0.0), lean),
        Row("lean, spread starts", _vary(eight, start="spread"), lean),
        Row("lean, sampled starts", _vary(eight, start="sampled"), lean),
        Row("radius 0.25, sampled starts", _vary(quarter, start="sampled"), Options()),
        Row("lean, 4-bit centroids", eight, _vary(lean, index_bits=4, sum_bits=8)),
        Row("lean, clusters of 4, 4-bit centroids", four, _vary(lean, index_bits=4, sum_bits=8)),
    ]
    return (found + _simple(quarter, eight) + _of_eight_bits(quarter, eight, four, lean)
            + _of_high_quality(eight, four, lean))


def _simple(quarter, eight):
    """Beyond the simplest that pays: clusters of 16, an 8-bit index, 8-bit pages of 8."""
    bits, four_bits = Options(index_bits=8), Options(index_bits=4, sum_bits=8)
    small = {"kv_bits": 8, "page_tokens": 8}
    pages, four_pages = _vary(bits, **small), _vary(four_bits, **small)
    sampled = _vary(quarter, start="sampled")
    less, more = (_vary(quarter, estimation_ratio=share) for share in (0.1, 0.5))

    def row(name, settings, options, **rest):
        return Row(f"8-bit KV: {name}", settings, options, CHOSEN, **rest)
    return [
        Row("radius 0.25 + 8-bit index, sampled starts", sampled, bits),
        Row("radius 0.25 + 4-bit centroids", quarter, four_bits),
        Row("radius 0.25 + 4-bit centroids + clusters of 8", eight, four_bits),
        Row("radius 0.25 + 8-bit index, 10 % estimated", less, bits),
        Row("radius 0.25 + 8-bit index, 50 % estimated", more, bits),
        row("simple, budget of today", quarter, pages, budget=1.0),
        row("simple, twice the budget", quarter, pages, budget=2.0),
        row("simple, pages of 4", quarter, _vary(bits, kv_bits=8)),
        row("simple, packed pages", quarter, _vary(pages, packed=True)),
        row("simple, sampled starts", sampled, pages),
        row("simple, 4-bit centroids", quarter, four_pages),
        row("simple, 4-bit centroids, clusters of 8", eight, four_pages),
        row("simple, clusters of 32", _vary(quarter, cluster_tokens=32), pages),
        row("simple, half of the pages by high halves", quarter,
            _vary(pages, high_halves=0.5, page_budget=True)),
        row(SIMPLE, quarter, pages, times=2.0),
        row("simple, sampled starts", sampled, pages, times=2.0),
        row("simple, 4-bit centroids", quarter, four_pages, times=2.0),
    ]


def _of_eight_bits(quarter, eight, four, lean):
    """With keys and values in 8 bits."""
    small = {"kv_bits": 8, "page_tokens": 8}
    lean8 = _vary(lean, **small)

    def row(name, settings, options):
        return Row(f"8-bit KV: {name}", settings, options, CHOSEN)
    sampled = _vary(eight, start="sampled")
    return [
        row("ours", PRODUCT, Options(**small)),
        row("ours, pages of 4", PRODUCT, Options(kv_bits=8)),
        row(SIMPLE, quarter, Options(index_bits=8, **small)),
        row("radius 0.25, 8-bit index, clusters of 8", eight, Options(index_bits=8, **small)),
        row("lean, pages of 8", eight, lean8),
        row("lean, pages of 4", eight, _vary(lean, kv_bits=8)),
        row("lean, packed pages of 8", eight, _vary(lean8, packed=True)),
        row("lean, packed pages of 4", eight, _vary(lean, kv_bits=8, packed=True)),
        row("lean, clusters of 16, pages of 8", quarter, lean8),
        row("lean, pages of 8, sampled starts", sampled, lean8),
        row("lean, packed pages of 8, sampled starts", sampled, _vary(lean8, packed=True)),
        row("lean, pages of 4, 4-bit centroids", eight,
            _vary(lean, kv_bits=8, index_bits=4, sum_bits=8)),
        row("lean, clusters of 4, pages of 4, 4-bit centroids", four,
            _vary(lean, kv_bits=8, index_bits=4, sum_bits=8)),
        row("lean, pages of 4, half of the pages by high halves", eight,
            _vary(lean, kv_bits=8, high_halves=0.5)),
    ]


def _of_high_quality(eight, four, lean):
    """At twice the bytes."""
    sampled = _vary(eight, start="sampled")
    half = _vary(lean, kv_bits=8)
    packed = _vary(lean, kv_bits=8, page_tokens=8, packed=True)
    return [
        Row("lean", eight, lean, times=2.0),
        Row("8-bit KV: lean, pages of 4", eight, half, CHOSEN, 2.0),
        Row("8-bit KV: lean, packed pages of 8, sampled starts", sampled, packed, CHOSEN, 2.0),
        Row("8-bit KV: lean, clusters of 4, packed pages of 8, sampled starts",
            _vary(sampled, cluster_tokens=4), packed, CHOSEN, 2.0),
        Row("8-bit KV: lean, clusters of 4, packed pages of 8, sampled starts, 4-bit centroids",
            _vary(sampled, cluster_tokens=4), _vary(packed, index_bits=4, sum_bits=8), CHOSEN, 2.0),
        Row("8-bit KV: lean, pages of 4, half of the pages by high halves", eight,
            _vary(half, high_halves=0.5), CHOSEN, 2.0),
    ]


def asked(length: int) -> list[Row]:
    """Those that answer the needle questions; budgets as they were fitted on text."""
    shorter = length <= 32768
    budgets = {"ours": 1.0, "radius 0.25": 1.0, "radius 0.25 + 8-bit index": 1.54 if shorter
               else 1.94, "lean: those + neighbourhoods": 1.07 if shorter else 1.0,
               "8-bit KV: simple, budget of today": 1.0,
               f"8-bit KV: {SIMPLE}": 2.76 if shorter else 3.49}
    by_name = {row.name: row for row in rows() if row.times == 1.0}
    return [_vary(by_name[name], budget=budget) for name, budget in budgets.items()]


def fill(index, page_tokens: int) -> float:
    """Returns the share of the places of pages that hold a token, were none packed."""
    places = (index.sizes / page_tokens).ceil().sum() * page_tokens
    return float(index.sizes.sum() / places)


def fitted(read_at, bytes_wanted: float) -> float:
    """Returns the factor at which about so many bytes are read; read_at(factor) says them by kind.

    Raises ValueError if the index alone is more.
    """
    factor = 1.0
    for _ in range(3):
        read = read_at(factor)
        left = bytes_wanted - read["index"] - read["sums"]
        if left <= 0.02 * bytes_wanted or not read["pages"]:
            raise ValueError(f"index and sums alone are {read['index'] + read['sums']:.0f} of "
                             f"{bytes_wanted:.0f} bytes")
        factor = max(factor * left / read["pages"], 1e-3)
    return factor


class Ablation(Job):
    """Text behind a document under each row, at the bytes of ours."""

    def __init__(self, folder: pathlib.Path, number: int, tokens: int, tail: int):
        self._folder, self._number, self._tokens, self._tail = folder, number, tokens, tail
        self._rows = sorted(rows(), key=lambda row: (row.form.name, str(row.system().key())))
        self._keys = {id(row): ["ablation", folder.name, tokens, tail, number, row.name, row.times]
                      for row in self._rows}
        super().__init__(f"ablation, document {number} of {tokens} tokens",
                         list(self._keys.values()))

    def run(self, lab, results) -> int:
        document, ids = self.document(lab, self._folder, self._number, self._tokens, self._tail)
        asked_ids, targets = ids[:-1], ids[1:]
        full, _ = document.follow(Full(), asked_ids)
        few = asked_ids[:FITTED_ON]
        wanted = sum(document.follow(OURS.system(), few)[1].values())
        views = {BF16.name: document}
        last, missing = None, 0
        for row in self._rows:
            if row.form.name not in views:
                views[row.form.name] = document.stored(row.form)
            view, key = views[row.form.name], row.system().key()
            if (row.form.name, key) != last:
                view.forget()
                last = row.form.name, key

            def measure(row=row, view=view):
                factor = row.budget or fitted(
                    lambda f: view.follow(row.system(f), few)[1], wanted * row.times)
                system = row.system(factor)
                hidden, read = view.follow(system, asked_ids)
                sums, _ = measures.compare(lab.model(self._folder).logits, full, hidden, targets, 4)
                index = view.index(system, 0)
                return {"read": read, "retrieval": round(factor, 4),
                        "fill": round(fill(index, row.options.page_tokens), 4),
                        "build_s": round(view.build_seconds.get(system.key(), 0.0), 4),
                        "bins": [dataclasses.asdict(part) for part in sums]}
            missing += self.attempt(lab, results, self._keys[id(row)], measure)
        return missing


class AblationNeedle(Job):
    """The needle questions about one document under some rows."""

    def __init__(self, folder: pathlib.Path, task: str, length: int, number: int,
                 needles: int | None):
        self._folder, self._what = folder, (task, length, number, needles)
        self._rows = sorted(asked(length), key=lambda row: (row.form.name, str(row.system().key())))
        self._keys = {id(row): ["ablation needle", task, length, number, needles, row.name, row.budget]
                      for row in self._rows}
        self._full = ["ablation needle", task, length, number, needles, "full", 1.0]
        super().__init__(f"ablation, needle {task}, {length} tokens, document {number}",
                         [self._full, *self._keys.values()])

    @torch.inference_mode()
    def run(self, lab, results) -> int:
        from . import needle_tasks
        asker = needle_tasks.NeedleTasks(lab.model(self._folder), self._folder, lab.arguments.seed)
        document, questions = asker.make(*self._what)
        missing = self.attempt(lab, results, self._full,
                               lambda: asker.ask(document, questions, None))
        views, last = {BF16.name: document}, None
        for row in self._rows:
            if row.form.name not in views:
                views[row.form.name] = document.stored(row.form)
            view, key = views[row.form.name], row.system().key()
            if (row.form.name, key) != last:
                view.forget()
                last = row.form.name, key
            missing += self.attempt(lab, results, self._keys[id(row)],
                                    lambda: asker.ask(view, questions,
                                                      row.system(row.budget)))
        return missing
