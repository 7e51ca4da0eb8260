"""Tasks: which facts a document holds and which questions are asked about them.

A `Facts` is a list of groups of sentences and the questions about them. The sentences of a group
keep their order in the document, whatever else stands between them. document.py places them.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence

from . import keys, patterns, words

MAX_LENGTH = 131072
MIN_LENGTH = 256

SINGLE = "single"
MULTI_KEY = "multi_key"
MULTI_VALUE = "multi_value"
MULTI_QUERY = "multi_query"
VARIABLE_TRACKING = "variable_tracking"
COMMON_WORDS = "common_words"
FREQUENT_WORDS = "frequent_words"
TASKS = (SINGLE, MULTI_KEY, MULTI_VALUE, MULTI_QUERY, VARIABLE_TRACKING, COMMON_WORDS,
         FREQUENT_WORDS)
WORD_LIST_TASKS = (COMMON_WORDS, FREQUENT_WORDS)
# In these the order of the answers carries no meaning: they are compared as sets.
UNORDERED_TASKS = (MULTI_VALUE, COMMON_WORDS)

VALUES_PER_KEY = 4
KEYS_PER_QUERY = 4
CHAIN_NAMES = 5
COMMON = 5
COMMON_RATIO = 10
FREQUENT = 3
WORDS_PER_SENTENCE = 12


@dataclasses.dataclass(frozen=True)
class Question:
    """A question, its answers, and the group of sentences that holds them."""
    task: str
    text: str
    answers: tuple[str, ...]
    group: int

    @property
    def answer(self) -> str:
        """The text that the model is to write."""
        return ", ".join(self.answers)


@dataclasses.dataclass
class Facts:
    """Sentences to plant and the questions about them."""
    groups: list[list[str]] = dataclasses.field(default_factory=list)
    questions: list[Question] = dataclasses.field(default_factory=list)

    def extend(self, other: "Facts") -> None:
        """Adds the facts and questions of another."""
        shift = len(self.groups)
        self.groups += other.groups
        self.questions += [dataclasses.replace(q, group=q.group + shift) for q in other.questions]


def lookups(rng: random.Random, task: str, kind: str, names: Sequence[str]) -> Facts:
    """Gives each key one value, and asks for each."""
    facts = Facts()
    for group, key in enumerate(names):
        value = keys.DRAW_VALUE[kind](rng)
        facts.groups.append([patterns.fact(kind, key, value)])
        facts.questions.append(
            Question(task, patterns.ask_one(kind, key), (value,), group))
    return facts


def multi_values(rng: random.Random, names: Sequence[str], count: int) -> Facts:
    """Gives each key `count` different numbers, and asks for all of a key, in document order."""
    facts = Facts()
    for group, key in enumerate(names):
        values = tuple(keys.draw_number(rng) for _ in range(count))
        facts.groups.append([patterns.fact("number", key, value) for value in values])
        facts.questions.append(
            Question(MULTI_VALUE, patterns.ask_all("number", key, count), values, group))
    return facts


def multi_queries(rng: random.Random, names: Sequence[str], count: int) -> Facts:
    """Gives each key one number, and asks for `count` keys at once, as often as there are keys."""
    single = lookups(rng, SINGLE, "number", names)
    return Facts(single.groups, queries(rng, names, single.questions, count))


def queries(rng: random.Random, names: Sequence[str], singles: Sequence[Question],
            count: int, most: int | None = None) -> list[Question]:
    """Asks for `count` keys at once: each name, whose question is in `singles`, and others.

    Makes a question for each of the first `most` names.
    """
    values = {name: single.answers[0] for name, single in zip(names, singles)}
    asked = []
    for name, single in zip(names[:most], singles):
        several = [name, *rng.sample([other for other in names if other != name], count - 1)]
        asked.append(Question(
            MULTI_QUERY, patterns.ask_each("number", several),
            tuple(f"{key} {values[key]}" for key in several), single.group))
    return asked


def chains(rng: random.Random, names: Sequence[str], length: int) -> Facts:
    """Sets a number to a name, that name to the next, and so on; asks for all names of a chain."""
    facts = Facts()
    for group, start in enumerate(range(0, len(names) - length + 1, length)):
        chain = names[start:start + length]
        number = keys.draw_number(rng)
        facts.groups.append([patterns.assignment(name, source)
                             for name, source in zip(chain, (number, *chain))])
        facts.questions.append(Question(
            VARIABLE_TRACKING, patterns.ask_chain(number, length), tuple(chain), group))
    return facts


def word_lists(rng: random.Random, room: int) -> Facts:
    """Fills `room` tokens with a list of nouns and a text of code words, and asks about both.

    Five nouns are ten times as common as the others; code word k appears 1/k^2 times as often
    as the first. The only group is the whole document.
    """
    per_sentence = WORDS_PER_SENTENCE + 3
    sentences = room // per_sentence
    listed, coded = (sentences + 1) // 2, sentences // 2
    common, nouns = _common_words(rng, listed * WORDS_PER_SENTENCE)
    frequent, codes = _frequent_words(rng, coded * WORDS_PER_SENTENCE)
    lines = [f"List: {line}." for line in _lines(nouns)]
    lines += [f"Text: {line}." for line in _lines(codes)]
    rng.shuffle(lines)
    return Facts([lines], [
        Question(COMMON_WORDS, patterns.ask_common(COMMON), tuple(sorted(common)), 0),
        Question(FREQUENT_WORDS, patterns.ask_frequent(FREQUENT), tuple(frequent), 0)])


def _lines(stream: list[str]) -> list[str]:
    return [" ".join(stream[i:i + WORDS_PER_SENTENCE])
            for i in range(0, len(stream), WORDS_PER_SENTENCE)]


def _common_words(rng: random.Random, count: int) -> tuple[list[str], list[str]]:
    nouns = rng.sample(words.NOUNS, len(words.NOUNS))
    common, others = nouns[:COMMON], nouns[COMMON:]
    share = max(3, count * COMMON_RATIO // (COMMON * COMMON_RATIO + len(others)))
    stream = common * share
    stream += (others * (count // len(others) + 1))[:count - len(stream)]
    rng.shuffle(stream)
    return common, stream


def _frequent_words(rng: random.Random, count: int) -> tuple[list[str], list[str]]:
    codes = rng.sample(words.CODE_WORDS, len(words.CODE_WORDS))
    total = sum(1 / rank ** 2 for rank in range(1, len(codes) + 1))
    stream: list[str] = []
    for rank, code in enumerate(codes[1:], start=2):
        stream += [code] * round(count / rank ** 2 / total)
    stream += codes[:1] * (count - len(stream))
    rng.shuffle(stream)
    return codes[:FREQUENT], stream


@dataclasses.dataclass(frozen=True)
class Form:
    """A task's default size and how its facts are made.

    `needles` counts planted sentences; `plan(rng, split, needles)` makes the facts.
    """
    needles: int
    unit: int
    plan: Callable[[random.Random, str, int], Facts]


def _plan_single(rng: random.Random, split: str, needles: int) -> Facts:
    kinds = list(keys.DRAW_VALUE)
    facts = Facts()
    for i, key in enumerate(keys.draw_keys(rng, split, needles)):
        facts.extend(lookups(rng, SINGLE, kinds[i % len(kinds)], [key]))
    return facts


def _plan_multi_key(rng: random.Random, split: str, needles: int) -> Facts:
    return lookups(rng, MULTI_KEY, "number", keys.draw_keys(rng, split, needles))


def _plan_multi_value(rng: random.Random, split: str, needles: int) -> Facts:
    return multi_values(rng, keys.draw_keys(rng, split, needles // VALUES_PER_KEY), VALUES_PER_KEY)


def _plan_multi_query(rng: random.Random, split: str, needles: int) -> Facts:
    return multi_queries(rng, keys.draw_keys(rng, split, needles), KEYS_PER_QUERY)


def _plan_chains(rng: random.Random, split: str, needles: int) -> Facts:
    count = needles // CHAIN_NAMES * CHAIN_NAMES
    return chains(rng, keys.draw_keys(rng, split, count), CHAIN_NAMES)


FORMS = {
    SINGLE: Form(3, 1, _plan_single),
    MULTI_KEY: Form(64, 1, _plan_multi_key),
    MULTI_VALUE: Form(64, VALUES_PER_KEY, _plan_multi_value),
    MULTI_QUERY: Form(64, KEYS_PER_QUERY, _plan_multi_query),
    VARIABLE_TRACKING: Form(40, CHAIN_NAMES, _plan_chains),
}
