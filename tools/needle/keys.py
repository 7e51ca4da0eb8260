"""Keys (adjective, noun) and values, split between training and evaluation.

A key belongs to one split for ever: the first byte of a hash of its text decides. So no question
of the evaluation asks for a key that training has seen, whatever the seeds are.
"""

import hashlib
import random

from . import words

SPLITS = ("train", "eval")
NUMBER_DIGITS = 7
ID_PAIRS = 8
_LETTERS = "bcdfghjkmnpqrstvwxz"


def split_of(key: str) -> str:
    """Returns the split that owns `key`, for example "amber falcon"."""
    return SPLITS[hashlib.sha256(key.encode()).digest()[0] & 1]


def _keys_by_split() -> dict[str, list[str]]:
    keys = {split: [] for split in SPLITS}
    for adjective in words.ADJECTIVES:
        for noun in words.NOUNS:
            key = f"{adjective} {noun}"
            keys[split_of(key)].append(key)
    return keys


KEYS = _keys_by_split()


def draw_keys(rng: random.Random, split: str, count: int) -> list[str]:
    """Draws `count` different keys of a split.

    Raises ValueError when the split has fewer keys.
    """
    if count > len(KEYS[split]):
        raise ValueError(
            f"{count} different keys asked for; the {split} split has {len(KEYS[split])}")
    return rng.sample(KEYS[split], count)


def draw_number(rng: random.Random) -> str:
    """Draws a number of seven digits; the first may be 0."""
    return f"{rng.randrange(10 ** NUMBER_DIGITS):0{NUMBER_DIGITS}d}"


def draw_word(rng: random.Random) -> str:
    """Draws a word that serves as a value."""
    return rng.choice(words.NOUNS)


def draw_id(rng: random.Random) -> str:
    """Draws a long id: letters and digits in turn, such as k4t9b2m7x1q5d0s8."""
    return "".join(rng.choice(_LETTERS) + rng.choice("0123456789") for _ in range(ID_PAIRS))


DRAW_VALUE = {"number": draw_number, "word": draw_word, "code": draw_id}
