"""Training sequences: one document with facts of every kind, and many questions about it."""

import dataclasses
import itertools
import math
import random

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from . import bpe, document, keys, prompt, tasks

SPLIT = "train"
# Share of the questions, by task.
_TASK_SHARES = {tasks.SINGLE: 0.25, tasks.MULTI_VALUE: 0.35, tasks.MULTI_QUERY: 0.25,
                tasks.VARIABLE_TRACKING: 0.15}
_KIND_SHARES = {"number": 0.6, "word": 0.15, "code": 0.25}
_FACT_TOKENS = 18
_MAX_QUESTION_TOKENS = 3072
_MAX_JUMPS = 32


@dataclasses.dataclass(frozen=True)
class Course:
    """What the sequences of one length are made of.

    copying: share of sequences that only repeat random tokens.
    lists: share of word-list documents.
    spread: share of sequences whose positions are spread over all the model's positions.
    all_tasks: False leaves only questions for a single value.
    """
    length: int
    batch: int
    copying: float = 0.0
    lists: float = 0.1
    spread: float = 0.5
    all_tasks: bool = True


class Sequences(IterableDataset):
    """Endless batches: ids, labels (task number of an answer's tokens, else 0) and positions."""

    def __init__(self, course: Course, encoder: bpe.Encoder, bank: document.FillerBank, seed: int):
        super().__init__()
        self._course = course
        self._encoder = encoder
        self._bank = bank
        self._seed = seed
        self._begin = encoder.special(prompt.BEGIN_OF_TEXT)
        self._end = encoder.special(prompt.END_OF_TEXT)

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        worker = info.id if info else 0
        rng = random.Random(f"training {self._seed} {self._course.length} {worker}")
        noise = np.random.default_rng(rng.getrandbits(64))
        course = self._course
        while True:
            ids = np.full((course.batch, course.length), self._end, np.int64)
            labels = np.zeros((course.batch, course.length), np.int64)
            positions = np.empty((course.batch, course.length), np.int64)
            for row in range(course.batch):
                if rng.random() < course.copying:
                    ends = self._copy(rng, noise, ids[row], labels[row])
                else:
                    ends = self._text(rng, ids[row], labels[row])
                positions[row] = self._positions(rng, ends)
            yield torch.from_numpy(ids), torch.from_numpy(labels), torch.from_numpy(positions)

    def _copy(self, rng, noise, ids, labels):
        """Repeats a random run of tokens; every repeated token is an answer."""
        period = rng.randrange(12, len(ids) // 2)
        ids[:] = np.resize(noise.integers(0, self._begin, period), len(ids))
        labels[period + 1:] = 1
        return []

    def _text(self, rng, ids, labels):
        """Writes a document and questions; returns where sentences end."""
        length = len(ids)
        if rng.random() < self._course.lists and length >= 512:
            made, asked = self._word_lists(rng, length)
        else:
            made, asked = self._facts(rng, length)
        at = 1
        ids[0] = self._begin
        ends = []
        for i, sentence in enumerate(made.sentences):
            tokens = sentence.ids if i else self._encoder.encode(sentence.text)
            ids[at:at + len(tokens)] = tokens
            at += len(tokens)
            ends.append(at)
        for task, question, answer in asked:
            size = len(question) + len(answer)
            ids[at:at + size] = question + answer
            labels[at + len(question):at + size] = 1 + tasks.TASKS.index(task)
            at += size
        return ends

    def _encode_questions(self, questions, budget: int):
        """Encodes questions and answers until `budget` tokens; returns them and their size."""
        encoded, total = [], 0
        for question in questions:
            asked = self._encoder.encode(prompt.question_text(question.text))
            answer = self._encoder.encode(prompt.completion_text(question.answer)) + [self._end]
            if total + len(asked) + len(answer) > budget:
                break
            total += len(asked) + len(answer)
            encoded.append((question.task, asked, answer))
        return encoded, total

    def _word_lists(self, rng, length):
        facts = tasks.word_lists(rng, length - 88)
        rng.shuffle(facts.questions)
        made = document.compose_whole(self._encoder, facts)
        return made, self._encode_questions(facts.questions, 87)[0]

    def _facts(self, rng, length: int):
        """Plants facts, from a few to as many as fit, and asks about some."""
        budget = min(int(length * 0.45), _MAX_QUESTION_TOKENS)
        fewest = min(6.0, 0.4 * (length - budget) / _FACT_TOKENS)
        most = 0.9 * (length - budget) / _FACT_TOKENS
        count = int(math.exp(rng.uniform(math.log(fewest), math.log(most))))
        facts = self._plan(rng, max(2, count))
        asked, used = self._encode_questions(_order_questions(rng, facts.questions), budget)
        made = document.compose(rng, self._encoder, self._bank, facts, length - 1 - used)
        return made, asked

    def _plan(self, rng, count: int) -> tasks.Facts:
        facts = tasks.Facts()
        names = iter(keys.draw_keys(rng, SPLIT, min(count, len(keys.KEYS[SPLIT]))))
        parts = [rng.random() for _ in range(3)] if self._course.all_tasks else [1.0, 0.0, 0.0]
        single, valued, chained = (int(count * part / sum(parts)) for part in parts)

        def take(number: int) -> list[str]:
            return list(itertools.islice(names, number))

        for kind, share in _KIND_SHARES.items():
            chosen = take(max(1, int(single * share)))
            some = tasks.lookups(rng, tasks.SINGLE, kind, chosen)
            if kind == "number" and self._course.all_tasks and len(chosen) > 1:
                asked = rng.randint(2, min(len(chosen), tasks.KEYS_PER_QUERY))
                some.questions += tasks.queries(rng, chosen, some.questions, asked, most=64)
            facts.extend(some)
        values = rng.randint(2, tasks.VALUES_PER_KEY)
        facts.extend(tasks.multi_values(rng, take(valued // values), values))
        links = rng.randint(3, tasks.CHAIN_NAMES)
        facts.extend(tasks.chains(rng, take(chained // links * links), links))
        return facts

    def _positions(self, rng, ends):
        """Numbers the tokens; a share of sequences jumps at ends of sentences, far apart."""
        length = self._course.length
        slack = tasks.MAX_LENGTH - length
        steps = np.ones(length, np.int64)
        steps[0] = 0
        if ends and slack and rng.random() < self._course.spread:
            reach = math.exp(rng.uniform(math.log(length / 2), math.log(slack)))
            jumps = rng.sample(ends, min(len(ends), rng.randint(1, _MAX_JUMPS)))
            shares = np.array([rng.random() for _ in jumps])
            for at, jump in zip(jumps, (shares / shares.sum() * min(reach, slack)).astype(int)):
                steps[min(at, length - 1)] += jump
        return np.cumsum(steps)


def _order_questions(rng, questions):
    """Mixes the questions so that each task comes up by its share."""
    by_task: dict[str, list] = {}
    for question in rng.sample(questions, len(questions)):
        by_task.setdefault(question.task, []).append(question)
    ordered = []
    while by_task and len(ordered) < 160:
        names = list(by_task)
        task = rng.choices(names, [_TASK_SHARES[name] for name in names])[0]
        ordered.append(by_task[task].pop())
        if not by_task[task]:
            del by_task[task]
    return ordered


def loader(course: Course, encoder: bpe.Encoder, bank: document.FillerBank, seed: int,
           workers: int) -> DataLoader:
    """Makes batches in `workers` processes."""
    return DataLoader(Sequences(course, encoder, bank, seed), batch_size=None,
                      num_workers=workers, pin_memory=torch.cuda.is_available(),
                      prefetch_factor=4 if workers else None)
