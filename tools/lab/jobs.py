"""What evaluate.py measures, a document at a time, the most telling ones first."""

import dataclasses
import pathlib
import time
import traceback

import torch

from tools.needle import tasks

from . import catalogue, indexes, locality, measures, needle_tasks, unseen
from .document import Document
from .sources import NEEDLE, prompt_tokens
from .systems.full import Full


@dataclasses.dataclass
class Job:
    """Measurements about one document. Keys are the results that it writes."""
    name: str
    keys: list[list]

    def run(self, lab, results) -> int:
        """Measures what is missing; returns how much still is."""
        raise NotImplementedError

    def document(self, lab, folder, number, length, behind):
        """Returns a document, and ids behind it on the device."""
        ids, rest = lab.source(folder).make(number, length, behind)
        return (Document(lab.model(folder), ids),
                torch.tensor(rest, device=lab.device))

    def attempt(self, lab, results, key, measure) -> int:
        """Measures one key if it is missing and there is time; returns 1 if it is missing then.

        One system that fails (say, for want of memory) leaves the others as they are.
        """
        if results.has(key):
            return 0
        if lab.left() <= 0:
            return 1
        began = time.monotonic()
        try:
            content = measure()
        except (RuntimeError, ValueError) as error:
            print(f"{key}: {error}", flush=True)
            traceback.print_exc()
            return 1
        results.add(key, {**content, "seconds": round(time.monotonic() - began, 3)})
        return 0


class Follow(Job):
    """Text behind a document, under each row of a table."""

    def __init__(self, folder: pathlib.Path, number: int, tokens: int, tail: int, rows, bins=4,
                 grows=False):
        self._folder, self._number, self._tokens, self._tail = folder, number, tokens, tail
        self._rows, self._bins, self._grows = rows, bins, grows
        # Rows with one index stand together: it is built once and dropped behind them.
        self._rows = sorted(rows, key=lambda row: str(row.system().key()))
        self._keys = {id(row): [row.table, folder.name, tokens, tail, number, row.name, row.factor]
                      for row in rows}
        super().__init__(f"{rows[0].table}, document {number} of {tokens} tokens",
                         list(self._keys.values()))

    def run(self, lab, results) -> int:
        document, ids = self.document(lab, self._folder, self._number, self._tokens, self._tail)
        model = lab.model(self._folder)
        asked, targets = ids[:-1], ids[1:]
        full, _ = document.follow(Full(), asked, self._grows)
        last, missing = None, 0
        for row in self._rows:
            system = row.system()
            if system.key() != last:
                document.forget()
                last = system.key()

            def measure(system=system):
                hidden, read = document.follow(system, asked, self._grows)
                sums, _ = measures.compare(model.logits, full, hidden, targets, self._bins)
                built = document.build_seconds.get(system.key(), 0.0)
                return {"read": read, "build_s": round(built, 4),
                        "bins": [dataclasses.asdict(part) for part in sums]}
            missing += self.attempt(lab, results, self._keys[id(row)], measure)
        return missing


class Needle(Job):
    """The questions about one document, under each row."""

    def __init__(self, task: str, length: int, number: int, needles: int | None, rows):
        self._what = task, length, number, needles
        self._rows = [None, *sorted(rows, key=lambda row: str(row.system().key()))]
        self._keys = [["needle", task, length, number, needles, row.name if row else "full",
                       row.factor if row else 1.0] for row in self._rows]
        super().__init__(f"needle {task}, {length} tokens, document {number}", self._keys)

    def run(self, lab, results) -> int:
        asker = needle_tasks.NeedleTasks(lab.model(NEEDLE), NEEDLE,
                                         lab.arguments.seed)
        document, asked = asker.make(*self._what)
        last, missing = None, 0
        for row, key in zip(self._rows, self._keys):
            system = row.system() if row else None
            if system and system.key() != last:
                document.forget()
                last = system.key()
            missing += self.attempt(lab, results, key,
                                    lambda: asker.ask(document, asked, system))
        return missing


class Locality(Job):
    """Retrievals of the product's index, step by step."""

    def __init__(self, folder: pathlib.Path, tokens: int, steps: int):
        self._folder, self._tokens, self._steps = folder, tokens, steps
        super().__init__(f"locality, {folder.name}, {tokens} tokens",
                         [["locality", folder.name, tokens, steps]])

    def run(self, lab, results) -> int:
        def measure():
            document, ids = self.document(lab, self._folder, 0, self._tokens, self._steps)
            system = catalogue.ours()
            recorder = locality.Recorder(system)
            with torch.inference_mode():
                document.follow(system, ids[:-1], observer=recorder)
                return locality.summary(*recorder.retrieved())
        return self.attempt(lab, results, self.keys[0], measure)


class Promise(Job):
    """Predicted and true unseen mass of the product's index."""

    def __init__(self, folder: pathlib.Path, number: int, tokens: int, tail: int):
        self._folder, self._number, self._tokens, self._tail = folder, number, tokens, tail
        super().__init__(f"unseen mass, {folder.name}, {tokens} tokens",
                         [["unseen", folder.name, tokens, tail, number]])

    def run(self, lab, results) -> int:
        def measure():
            document, ids = self.document(lab, self._folder, self._number, self._tokens,
                                          self._tail)
            system = catalogue.ours()
            observer = unseen.Promise(system)
            with torch.inference_mode():
                full, _ = document.follow(Full(), ids[:-1])
                hidden, _ = document.follow(system, ids[:-1], observer=observer)
                _, change = measures.compare(lab.model(self._folder).logits, full, hidden,
                                             ids[1:], 1)
                return observer.result(change)
        return self.attempt(lab, results, self.keys[0], measure)


class Indexes(Job):
    """Indexes over the keys of one KV head of each layer, on the CPU."""

    def __init__(self, folder: pathlib.Path, tokens: int, layers: int):
        self._folder, self._tokens = folder, tokens
        super().__init__(f"indexes over keys of {folder.name}, {tokens} tokens",
                         [["indexes", folder.name, tokens, layer, name]
                          for layer in range(layers) for name in indexes.INDEXES])

    def run(self, lab, results) -> int:
        document, ids = self.document(lab, self._folder, 0, self._tokens, indexes.QUERIES)
        asked = {}

        def look(seen):
            asked.setdefault(seen.step.layer, []).append(seen.step.queries[:, 0, 0].cpu())
        # Keys of tokens that an index does not hold: every so many are left out of it.
        stride = self._tokens // indexes.QUERIES
        document.follow(Full(), ids[:-1], observer=look)
        missing = 0
        for key in self.keys:
            layer, name = key[3:]
            keys = document.keys[layer][0].cpu()
            out = torch.zeros(len(keys), dtype=torch.bool)
            out[::stride] = True
            askers = {"queries": torch.cat(asked[layer]), "own": keys[out][:indexes.QUERIES]}
            sample = document.queries[layer][0].flatten(0, 1).cpu()
            missing += self.attempt(lab, results, key,
                                    lambda: indexes.measure(name, keys[~out], sample, askers))
        return missing


def _studies(lab, add) -> None:
    """Forms of keys and values, parts of a better index, and models of another size."""
    from . import ablation, format_jobs, hard_keys, size_study  # they build on Job
    a = lab.arguments
    add("hard_keys", 0, hard_keys.HardKeys(a.model))
    short = [16384] if min(a.length) > 16384 else []  # forms are compared there, too
    for length in a.length:
        tokens = prompt_tokens(length, a.tail)
        for number in range(a.documents):
            add("size", number, size_study.Size(a.model, number, tokens, a.tail))
        add("size", 1, Locality(a.model, prompt_tokens(length, a.steps), a.steps))
        add("size", 1, Promise(a.model, 0, tokens, a.tail))
    for length in short + a.length:
        tokens = prompt_tokens(length, a.tail)
        for number in range(a.documents):
            add("formats", 4 * number, format_jobs.Formats(
                a.model, number, tokens, a.tail, number < 2 and length == a.length[0]))
            if length in a.length:
                add("ablation", 4 * number, ablation.Ablation(a.model, number, tokens, a.tail))
        for task, documents in needle_tasks.many():
            for number in range(documents):
                # A quarter of the documents of every task, then the next.
                rank = 1 + 4 * (4 * number // documents)
                if task in needle_tasks.HARDEST:
                    add("formats_needle", rank, format_jobs.FormatsNeedle(NEEDLE, task, length,
                                                                          number))
                if length in a.length:
                    add("ablation_needle", rank, ablation.AblationNeedle(NEEDLE, task, length,
                                                                         number, None))
        if length in a.length:
            for number in range(2):
                add("ablation_needle", 1 + 8 * number, ablation.AblationNeedle(
                    NEEDLE, tasks.MULTI_KEY, length, 100 + number,
                    needle_tasks.every_sentence(length)))


def make(lab) -> list[Job]:
    """Returns all jobs of the parts that are asked for, the most telling ones first."""
    a = lab.arguments
    text_rows = catalogue.baselines() + catalogue.candidates() + catalogue.promised()
    found: list[tuple[int, Job]] = []

    def add(part, rank, job):
        if part in a.part:
            found.append((rank, job))
    if "real" in a.part or "real_forms" in a.part:
        from . import real_text  # it builds on Job
        for length in a.length:
            tokens = prompt_tokens(length, a.tail)
            for name, number in lab.real_text().documents(tokens + a.tail + 1, a.documents):
                add("real", number, real_text.FollowReal(lab, name, number, tokens, a.tail))
                add("real_forms", number, real_text.RealForms(lab, name, number, tokens, a.tail))
        return [job for _, job in sorted(found, key=lambda one: one[0])]
    for length in a.length:
        tokens = prompt_tokens(length, a.tail)
        traced = prompt_tokens(length, a.steps)
        for number in range(a.documents):
            add("text", 4 * number, Follow(a.model, number, tokens, a.tail, text_rows))
        for number in range(min(2, a.documents)):
            add("micro", 1 + 4 * number, Follow(a.model, number, tokens, a.tail,
                                                catalogue.micro()))
        for folder in dict.fromkeys((a.model, NEEDLE)):
            add("locality", 1, Locality(folder, traced, a.steps))
            add("promise", 1, Promise(folder, 0, tokens, a.tail))
        _needle(lab, length, add)
    _studies(lab, add)
    if indexes.available():
        add("indexes", 9, Indexes(a.model, prompt_tokens(a.length[0], indexes.QUERIES),
                                  lab.model(a.model).shape.num_hidden_layers))
    elif "indexes" in a.part:
        print("indexes over keys are not measured: faiss is not installed (pip install faiss-cpu)",
              flush=True)
    for number in range(min(2, a.documents)):
        for length in a.growing_length:
            tokens = prompt_tokens(length + 1, 0)
            add("growing", 3 + 4 * number, Follow(
                a.model, number, tokens, a.growing_tail, catalogue.growing(), 8, True))
    return [job for _, job in sorted(found, key=lambda one: one[0])]


def _needle(lab, length, add) -> None:
    # Searching a graph is thousands of small steps: too slow for every question.
    rows = [row for row in catalogue.baselines()
            if row.factor == 1.0 and row.name not in ("HNSW", "RetrievalAttention")]
    rows += [row for row in catalogue.candidates() if row.name in catalogue.CHOSEN]
    for task, documents, late in needle_tasks.plan():
        for number in range(documents):
            rank = 2 + 4 * late + 4 * (2 * number // documents)
            add("needle", rank, Needle(task, length, number, None, rows))
    if length >= 32768:
        for number in range(2):
            add("needle", 2 + 4 * number, Needle(
                tasks.MULTI_KEY, length, 100 + number, needle_tasks.every_sentence(length), rows))
