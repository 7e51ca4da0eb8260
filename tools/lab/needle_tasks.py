"""The needle tasks under any system: exact match by task, and the bytes of a step."""

import torch

from tools.needle import bpe, evaluate, generate, prompt, tasks

from .document import Document, Predictor, SystemPolicy
from .system import System


class NeedleTasks:
    """Documents and questions of tools/needle, from a seed that its own tables do not use."""

    def __init__(self, model, folder, seed: int):
        self._model = model
        self._encoder = bpe.Encoder(folder)
        self._generator = generate.Generator(self._encoder, "eval", seed)

    def make(self, task: str, length: int, number: int, needles: int | None):
        """Returns a document and the questions that are asked about it."""
        made, asked = self._generator.make(task, length, number, needles)
        asked = [q for q in asked if q.task == task][:evaluate.QUESTIONS_PER_DOCUMENT[task]]
        begin, end = map(self._encoder.special, (prompt.BEGIN_OF_TEXT, prompt.END_OF_TEXT))
        return Document(self._model, [begin, *made.ids(self._encoder)], end), asked

    @torch.inference_mode()
    def ask(self, document: Document, asked, system: System | None) -> dict:
        """Asks all questions at once; without a system, under full attention."""
        rows = [self._encoder.encode(prompt.question_text(q.text)) for q in asked]
        with Predictor(self._model) as predictor:
            policy = system and SystemPolicy(document, system, predictor)
            texts = list(map(self._encoder.decode,
                             document.answer(rows, evaluate.MAX_ANSWER_TOKENS, policy)))
        found = {"right": sum(map(evaluate.is_right, asked, texts)), "questions": len(asked)}
        if policy:
            found["read"] = {kind: total / policy.steps for kind, total in policy.read.items()}
        return found


def plan() -> list[tuple[str, int, int]]:
    """Returns tasks, how many documents of each, and how early they come: those with many
    questions about a document first."""
    early = [(task, 2, 0) for task in (tasks.MULTI_VALUE, tasks.VARIABLE_TRACKING,
                                       tasks.MULTI_QUERY, tasks.MULTI_KEY)]
    return early + [(tasks.SINGLE, 4, 1), (tasks.COMMON_WORDS, 6, 1), (tasks.FREQUENT_WORDS, 6, 1)]


HARDEST = (tasks.MULTI_VALUE, tasks.MULTI_QUERY, tasks.VARIABLE_TRACKING, tasks.COMMON_WORDS)


def many() -> list[tuple[str, int]]:
    """Returns tasks and documents of each for at least 32 questions a task, but 16 and 8 of the word
    lists, which have one a document."""
    few = {tasks.COMMON_WORDS: 16, tasks.FREQUENT_WORDS: 8}
    return [(task, few.get(task) or -(-32 // evaluate.QUESTIONS_PER_DOCUMENT[task]))
            for task in tasks.TASKS]


def every_sentence(length: int) -> int:
    """Returns the number of needles with which every sentence is one."""
    return {16384: 950, 32768: 1900, 131072: 7600}.get(length, length // 18)
