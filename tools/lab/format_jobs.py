"""What each form of stored keys and values costs, in words and in answers.

"made": keys and values are rounded when they are made, so that reading the document attends to
what will be stored, and a prefix that is found gives the tokens of one that is computed. "read":
the document is read exactly and rounded afterwards. Reference is full attention in bf16.
"""

import dataclasses
import pathlib

import torch

from . import measures
from .ablation import OURS
from .document import Document
from .formats import (BALANCED, BF16, CHOSEN, FORMS, PLAIN, TWINS, Stored, form_named)
from .jobs import Job
from .systems.full import Full
from .systems.wave import PRODUCT, Options, Wave

POLICIES = ("full", "ours", "ours, 8-bit index")
# Twins are asked of these: a trained model has no outliers to speak of.
HARD = (BF16, form_named("e4m3, no scale"), form_named("e4m3, a scale a head and segment"),
        form_named("e4m3, that, keys centred"), form_named("e4m3 by token"), CHOSEN,
        form_named("int8 by token, keys centred"), BALANCED,
        form_named("int8 by token, turned"),
        form_named("int8 by channel and segment, keys centred"))
# What balanced keys alone bring the index.
MORE = (dataclasses.replace(BF16, name="bf16, channels balanced", balanced=True),)
NEEDLE_FORMS = (BF16, form_named("e4m3, no scale"), form_named("e4m3, that, keys centred"), CHOSEN,
                form_named("int4 by token"))


def policy(name: str):
    """Makes a policy of POLICIES."""
    if name == "full":
        return Full()
    if name == "ours":
        return OURS.system()
    return Wave(name, PRODUCT, options=Options(index_bits=8))


def key_of(table, model, tokens, tail, number, form, twin, mode, asked):
    """Returns the key of a measurement on text."""
    return [table, model, tokens, tail, number, f"{form.name} | {twin.name} | {mode}", asked]


class Formats(Job):
    """Text behind a document whose keys and values are stored in each form."""

    def __init__(self, folder: pathlib.Path, number: int, tokens: int, tail: int, twins: bool):
        self._folder, self._number, self._tokens, self._tail = folder, number, tokens, tail
        plain = [(form, PLAIN, mode, name) for form in FORMS for mode in ("made", "read")
                 for name in (POLICIES if mode == "made" else ("full",))]
        hard = [(form, twin, "read", name) for twin in TWINS[1:] for form in HARD
                for name in ("full", "ours, 8-bit index")]
        hard += [(form, twin, "read", "ours, 8-bit index") for form in MORE for twin in TWINS]
        self._what = plain + (hard if twins else [])
        self._keys = [key_of("formats", folder.name, tokens, tail, number, *what)
                      for what in self._what]
        super().__init__(f"formats, {folder.name}, document {number} of {tokens} tokens",
                         self._keys)

    def run(self, lab, results) -> int:
        ids, rest = lab.source(self._folder).make(self._number, self._tokens, self._tail)
        model = lab.model(self._folder)
        rest = torch.tensor(rest, device=lab.device)
        asked, targets = rest[:-1], rest[1:]
        exact = Document(model, ids)
        full, _ = exact.follow(Full(), asked)
        view, last, missing = None, None, 0
        for what, key in zip(self._what, self._keys):
            form, twin, mode, name = what
            if results.has(key):
                continue
            if what[:3] != last:
                last = what[:3]
                view = (Document(Stored(model, form), ids) if mode == "made"
                        else exact.stored(form, twin))

            def measure(view=view, name=name):
                hidden, read = view.follow(policy(name), asked)
                sums, _ = measures.compare(model.logits, full, hidden, targets, 4)
                return {"read": read, "build_s": 0.0,
                        "bins": [dataclasses.asdict(part) for part in sums]}
            missing += self.attempt(lab, results, key, measure)
        return missing


class FormatsNeedle(Job):
    """The questions about one document, keys and values rounded when they are made."""

    def __init__(self, folder: pathlib.Path, task: str, length: int, number: int):
        self._folder, self._place = folder, (task, length, number, None)
        self._what = [(form, name) for form in NEEDLE_FORMS for name in POLICIES
                      if name != POLICIES[2] or form in (BF16, CHOSEN)]
        self._keys = [["formats needle", task, length, number, None, form.name, name]
                      for form, name in self._what]
        super().__init__(f"formats, needle {task}, {length} tokens, document {number}", self._keys)

    def run(self, lab, results) -> int:
        from . import needle_tasks
        model, missing, last, view, questions = lab.model(self._folder), 0, None, None, None
        for (form, name), key in zip(self._what, self._keys):
            if results.has(key):
                continue
            if form is not last:
                last = form
                asker = needle_tasks.NeedleTasks(Stored(model, form), self._folder,
                                                 lab.arguments.seed)
                view, questions = asker.make(*self._place)
            system = None if name == "full" else policy(name)
            missing += self.attempt(lab, results, key,
                                    lambda: asker.ask(view, questions, system))
        return missing
