"""Documents: places facts among sentences without a fact, up to a length in tokens.

Text and token ids are made together, sentence by sentence, so training (ids) and evaluation
(text) use the same documents.
"""

import dataclasses
import itertools
import random
from collections.abc import Sequence

from . import bpe, patterns, prompt, tasks


# The first word of a document has no space in front, and may then take more tokens.
_FIRST_WORD_ROOM = 8


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence and its token ids; the ids include the space in front of it."""
    text: str
    ids: Sequence[int]


def encode_sentence(encoder: bpe.Encoder, text: str) -> Sentence:
    """Encodes a sentence that follows another one."""
    return Sentence(text, encoder.encode(" " + text))


class FillerBank:
    """Sentences without a fact, encoded once and drawn many times."""

    def __init__(self, encoder: bpe.Encoder, seed: str, size: int = 8192):
        rng = random.Random(f"filler {seed}")
        self.sentences = [encode_sentence(encoder, patterns.filler(rng)) for _ in range(size)]
        self._mean = sum(len(s.ids) for s in self.sentences) / size
        self._shortest = min(self.sentences, key=lambda s: len(s.ids))

    def fill(self, rng: random.Random, room: int) -> list[Sentence]:
        """Draws sentences that take at most `room` tokens, and nearly all of it."""
        drawn: list[Sentence] = []
        while room >= len(self._shortest.ids):
            batch = rng.choices(self.sentences, k=max(1, int(room / self._mean)))
            for sentence in batch:
                if len(sentence.ids) > room:
                    sentence = self._shortest
                    if len(sentence.ids) > room:
                        break
                drawn.append(sentence)
                room -= len(sentence.ids)
        return drawn


@dataclasses.dataclass
class Document:
    """Sentences in order, and where each group of facts stands."""
    sentences: list[Sentence]
    slots: list[list[int]]

    @property
    def text(self) -> str:
        """The document as text."""
        return " ".join(sentence.text for sentence in self.sentences)

    def depth(self, group: int) -> float:
        """Returns where the first sentence of a group stands: 0 at the start, 1 at the end."""
        return self.slots[group][0] / max(1, len(self.sentences) - 1)

    def ids(self, encoder: bpe.Encoder) -> list[int]:
        """Returns the token ids of `text`."""
        if not self.sentences:
            return []
        head = encoder.encode(self.sentences[0].text)
        rest = itertools.chain.from_iterable(s.ids for s in self.sentences[1:])
        return [*head, *rest]


def question_room(encoder: bpe.Encoder, questions: Sequence[tasks.Question]) -> int:
    """Returns the tokens that the longest question and its answer take, markers included."""
    def size(question):
        text = prompt.question_text(question.text) + prompt.completion_text(question.answer)
        return len(encoder.encode(text))
    return 2 + max(map(size, questions))


def compose(rng: random.Random, encoder: bpe.Encoder, bank: FillerBank, facts: tasks.Facts,
            room: int, depth: float | None = None) -> Document:
    """Places the facts at random places (the first group at `depth`, if given) in `room` tokens.

    Raises ValueError when the facts alone do not fit.
    """
    groups = [[encode_sentence(encoder, text) for text in group] for group in facts.groups]
    planted = sum(len(s.ids) for group in groups for s in group)
    room -= _FIRST_WORD_ROOM
    if planted > room:
        count = sum(map(len, groups))
        raise ValueError(f"{count} sentences with facts take {planted} tokens, and there is room "
                         f"for {max(0, room)}: ask for at most {count * max(0, room) // planted}")
    filler = bank.fill(rng, room - planted)
    order = [group for group, members in enumerate(groups) for _ in members]
    rng.shuffle(order)
    total = len(order) + len(filler)
    places = sorted(rng.sample(range(total), len(order)))
    if depth is not None:
        order, places = _move_first_group(order, places, round(depth * (total - 1)), total)
    return _interleave(groups, filler, dict(zip(places, order)), total)


def _move_first_group(order: list[int], places: list[int], target: int, total: int):
    """Gives group 0 the place `target`; who stood there takes the place it had."""
    owner = dict(zip(places, order))
    source = places[order.index(0)]
    displaced = owner.pop(target, None) if target != source else None
    del owner[source]
    owner[target] = 0
    if displaced is not None:
        owner[source] = displaced
    assert 0 <= target < total
    return list(owner.values()), list(owner)


def _interleave(groups, filler, owner: dict[int, int], total: int) -> Document:
    upcoming = [iter(group) for group in groups]
    plain = iter(filler)
    slots: list[list[int]] = [[] for _ in groups]
    sentences = []
    for place in range(total):
        group = owner.get(place)
        if group is None:
            sentences.append(next(plain))
        else:
            sentences.append(next(upcoming[group]))
            slots[group].append(place)
    return Document(sentences, slots)


def compose_whole(encoder: bpe.Encoder, facts: tasks.Facts) -> Document:
    """Makes a document of the facts alone, in their order."""
    sentences = [encode_sentence(encoder, text) for group in facts.groups for text in group]
    return Document(sentences, [[0] for _ in facts.groups])
