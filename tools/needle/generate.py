"""Writes documents and questions as JSON lines.

    python3 -m tools.needle.generate --task multi_key --length 32768 --count 4 --seed 1

A line has document, question, answer, answers, prompt, task, depth, length and document_id;
questions about one document follow each other. `length` limits the tokens of prompt and answer.
"""

import argparse
import json
import pathlib
import random
import sys
from collections.abc import Iterator

from . import bpe, document, keys, prompt, tasks

DEFAULT_MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "needle"


class Generator:
    """Makes documents with questions; equal arguments give equal output."""

    def __init__(self, encoder: bpe.Encoder, split: str = "eval", seed: int = 0):
        if split not in keys.SPLITS:
            raise ValueError(f"split {split!r}: choose from {', '.join(keys.SPLITS)}")
        self._encoder = encoder
        self._split = split
        self._seed = seed
        self._bank = document.FillerBank(encoder, f"{split} {seed}")

    def make(self, task: str, length: int, index: int = 0, needles: int | None = None,
             depth: float | None = None) -> tuple[document.Document, list[tasks.Question]]:
        """Makes document number `index` of a task and all questions about it.

        Raises ValueError for an impossible request, and says what is possible.
        """
        check_request(task, length, needles, depth)
        kind = "lists" if task in tasks.WORD_LIST_TASKS else task
        rng = random.Random(f"{self._split} {self._seed} {kind} {length} {index}")
        if task in tasks.WORD_LIST_TASKS:
            return self._make_word_lists(rng, length)
        form = tasks.FORMS[task]
        facts = form.plan(rng, self._split, form.needles if needles is None else needles)
        room = length - document.question_room(self._encoder, facts.questions)
        made = document.compose(rng, self._encoder, self._bank, facts, room, depth)
        return made, facts.questions

    def _make_word_lists(self, rng: random.Random, length: int):
        facts = tasks.word_lists(rng, 0)
        room = length - document.question_room(self._encoder, facts.questions) - 8
        facts = tasks.word_lists(rng, room)
        return document.compose_whole(self._encoder, facts), facts.questions

    def lines(self, task: str, length: int, index: int, questions: int | None = None,
              needles: int | None = None, depth: float | None = None) -> Iterator[dict]:
        """Yields the JSON lines of one document, at most `questions` of them."""
        made, asked = self.make(task, length, index, needles, depth)
        if task in tasks.WORD_LIST_TASKS:
            asked = [question for question in asked if question.task == task]
        text = made.text
        for question in asked[:questions]:
            yield {
                "document_id": f"{self._split}-{self._seed}-{task}-{length}-{index}",
                "task": task, "length": length, "depth": round(made.depth(question.group), 4),
                "question": question.text, "answer": question.answer,
                "answers": list(question.answers),
                "prompt": prompt.prompt_text(text, question.text), "document": text,
            }


def check_request(task: str, length: int, needles: int | None, depth: float | None) -> None:
    """Raises ValueError for a request that no document can meet."""
    if task not in tasks.TASKS:
        raise ValueError(f"task {task!r}: choose from {', '.join(tasks.TASKS)}")
    if not tasks.MIN_LENGTH <= length <= tasks.MAX_LENGTH:
        raise ValueError(f"length {length}: the generator makes {tasks.MIN_LENGTH} to "
                         f"{tasks.MAX_LENGTH} tokens (the model's positions)")
    if task in tasks.WORD_LIST_TASKS:
        if needles is not None or depth is not None:
            raise ValueError(f"{task}: the whole document is the fact; "
                             "leave needles and depth out")
        return
    unit = tasks.FORMS[task].unit
    if needles is not None and (needles < unit or needles % unit):
        raise ValueError(f"{needles} needles: {task} takes multiples of {unit}")
    if depth is not None and not 0 <= depth <= 1:
        raise ValueError(f"depth {depth}: 0 is the start of the document and 1 its end")
    if depth is not None and unit > 1 and task != tasks.MULTI_QUERY:
        raise ValueError(f"{task}: its facts lie at several depths; leave depth out")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", required=True, help=", ".join(tasks.TASKS))
    parser.add_argument("--length", type=int, default=8192,
                        help="tokens of prompt and answer (default: %(default)s)")
    parser.add_argument("--count", type=int, default=1, help="documents (default: %(default)s)")
    parser.add_argument("--questions", type=int, default=1,
                        help="questions about each document, at most (default: %(default)s)")
    parser.add_argument("--needles", type=int, help="sentences with facts (default: by task)")
    parser.add_argument("--depth", type=float,
                        help="where the first fact stands, 0 to 1 (default: anywhere)")
    parser.add_argument("--split", default="eval", help="eval (default) or train")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--model", type=pathlib.Path, default=DEFAULT_MODEL,
                        help="folder of the tokenizer (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        generator = Generator(bpe.Encoder(arguments.model), arguments.split, arguments.seed)
        for index in range(arguments.count):
            for line in generator.lines(arguments.task, arguments.length, index,
                                        arguments.questions, arguments.needles, arguments.depth):
                print(json.dumps(line))
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"generate: {error}")


if __name__ == "__main__":
    main()
