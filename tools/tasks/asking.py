"""Questions as jobs: answered greedily, and the right answer measured, under each setting."""

import argparse
import dataclasses
import threading
from collections.abc import Callable, Iterator

from . import haystack, manuals, ruler
from .client import Client, Setting
from .job import Job
from .sample import Sample, fit

SPARE = 64  # tokens of a reference and its lead that an answer's most may leave out


@dataclasses.dataclass
class Question(Job):
    """One question; `make` builds it when its turn comes."""
    make: Callable[[Client], Sample]

    def measure(self, server, client: Client, setting: Setting) -> dict:
        """Returns what became of it."""
        del server
        sample = self.made(client, self.make)
        answer, usage = client.chat(sample.text, setting, sample.most)
        given = sample.lead + sample.reference
        scored = client.score(sample.text, given, setting).behind(sample.lead)
        return {"right": sample.right(answer), "answer": answer, "reference": sample.reference,
                "logprobs": [None if one is None else round(one, 5) for one in scored.logprobs],
                "greedy": all(scored.greedy),
                "prompt_tokens": usage["prompt_tokens"],
                "kv_read": scored.usage["kv_read_ratio"]}


def of_ruler(arguments: argparse.Namespace, tasks: list[str]) -> Iterator[Question]:
    """Yields questions of RULER's tasks, the first of each task before a second one."""
    essay = (haystack.from_file(arguments.haystack) if arguments.haystack else haystack.essay)
    for index in range(arguments.questions):
        for length in arguments.length:
            for task in tasks:
                build = ruler.builder(task, arguments.seed, length, index, essay)
                room = length - build(1).most - SPARE
                yield Question(
                    ["ruler", length, task, index, arguments.seed], f"{task} {index}",
                    lambda client, build=build, room=room: fit(build, client.count, room))


def of_manuals(arguments: argparse.Namespace) -> Iterator[Question]:
    """Yields the questions on manuals: those on one part of a manual follow each other."""
    texts = manuals.load(arguments.manuals)
    asked = manuals.questions()[:arguments.manual_questions]
    for length in arguments.length:
        cuts = Cuts(texts, length)
        for number, one in enumerate(asked):
            yield Question(["manuals", length, one.manual, number, manuals.digest()],
                           f"{one.manual} {number}",
                           lambda client, one=one, cuts=cuts: cuts.sample(client, one))


class Cuts:
    """Manuals in parts of one length, each cut when the first question on it comes."""

    def __init__(self, texts: dict[str, str], length: int):
        self._texts, self._length = texts, length
        self._lock = threading.Lock()
        self._found: dict[str, list[tuple[int, int]]] = {}

    def sample(self, client: Client, one: manuals.Question) -> Sample:
        """Returns a question behind the part that has its answer."""
        text, most = self._texts[one.manual], one.sample("").most
        with self._lock:
            if one.manual not in self._found:
                asked = max(client.count(other.sample("").text) for other in manuals.questions()
                            if other.manual == one.manual)
                self._found[one.manual] = manuals.parts(text, client.count,
                                                        self._length - asked - most - SPARE)
        begin, end = manuals.part_of(one.span(text), self._found[one.manual])
        return one.sample(text[begin:end])
