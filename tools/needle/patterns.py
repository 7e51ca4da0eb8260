"""Sentence patterns: sentences without a fact, sentences that carry one, and questions.

A document is its sentences joined by one space. Every sentence ends with a full stop.
"""

import random

from . import words

_A_FILLER = (
    "{name} {verb} the {thing} of the {person}.",
    "The {person} {verb} a {thing} near the {place} {time}.",
    "{name} and {name2} {verb} the {thing} behind the {place}.",
    "The {adjective} {noun} was in the {place} {time}.",
    "There was {weather} over the {place}, and the {person} {verb} the {thing}.",
    "When the {weather} came, {name} {verb} a {adjective} {thing}.",
    "A {noun} stood by the {place} where the {person} {verb} the {thing2}.",
    "The {thing} was {adjective}, but {name} {verb} it {time}.",
)


def filler(rng: random.Random) -> str:
    """Writes a sentence that carries no fact."""
    pick = rng.choice
    return pick(_A_FILLER).format(
        name=pick(words.NAMES), name2=pick(words.NAMES), verb=pick(words.VERBS),
        thing=pick(words.THINGS), thing2=pick(words.THINGS), person=pick(words.PEOPLE),
        place=pick(words.PLACES), time=pick(words.TIMES), weather=pick(words.WEATHERS),
        adjective=pick(words.ADJECTIVES), noun=pick(words.NOUNS))


def fact(kind: str, key: str, value: str) -> str:
    """Writes a needle; `kind` is "number", "word" or "code"."""
    return f"The secret {kind} of the {key} is {value}."


def assignment(name: str, value: str) -> str:
    """Writes one link of a chain: a name is set to a number or to another name."""
    return f"Set {name} to {value}."


def ask_one(kind: str, key: str) -> str:
    """Asks for the only value of a key."""
    return f"What is the secret {kind} of the {key}?"


def ask_all(kind: str, key: str, count: int) -> str:
    """Asks for all `count` values of a key."""
    return f"What are the {count} secret {kind}s of the {key}?"


def ask_each(kind: str, keys: list[str]) -> str:
    """Asks for one value of each key."""
    *first, last = (f"the {key}" for key in keys)
    return f"What are the secret {kind}s of {', '.join(first)} and {last}?"


def ask_chain(value: str, count: int) -> str:
    """Asks which `count` names end up with a number."""
    return f"Which {count} names are set to {value}?"


def ask_common(count: int) -> str:
    """Asks for the words that are much more common than the others."""
    return f"Which {count} words are common in the list?"


def ask_frequent(count: int) -> str:
    """Asks for the most frequent words, the most frequent one first."""
    return f"Which {count} words are the most frequent in the text?"
