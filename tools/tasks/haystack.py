"""Text in which something is hidden: sentences without facts, made-up names, words and numbers.

Equal random states give equal text. The words are those of tools/needle/words.py.
"""

import pathlib
import random
import re
from collections.abc import Callable

from tools.needle import words

NOISE = ("The path is dry.", "The light is soft.", "The day goes on.", "Nothing is new here.",
         "We walk and we rest.")
ONSETS = tuple("b c d f g h j k l m n p r s t v w z br dr gl kr pl st tr vl".split())
VOWELS = tuple("a e i o u ai eo ia".split())
CODAS = ("", "", "l", "m", "n", "r", "s", "x")

Sentences = Callable[[random.Random, int], list[str]]


def number(rng: random.Random) -> str:
    """Returns a number of seven digits."""
    return str(rng.randrange(1_000_000, 10_000_000))


def identifier(rng: random.Random) -> str:
    """Returns 32 hexadecimal digits in five groups."""
    digits = f"{rng.getrandbits(128):032x}"
    return "-".join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))


def pairs(rng: random.Random, count: int) -> list[str]:
    """Returns so many different words of the form adjective-noun, at most 30,000."""
    width = len(words.NOUNS)
    most = len(words.ADJECTIVES) * width
    if count > most:
        raise ValueError(f"{count} different words: {most} can be made")
    return [f"{words.ADJECTIVES[n // width]}-{words.NOUNS[n % width]}"
            for n in rng.sample(range(most), count)]


def made_up(rng: random.Random, count: int, syllables: int = 2) -> list[str]:
    """Returns so many different words that no language has."""
    found: dict[str, None] = {}
    while len(found) < count:
        word = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(syllables))
        found[word + rng.choice(CODAS)] = None
    return list(found)


def noise(rng: random.Random, count: int) -> list[str]:
    """Returns the same few sentences again and again."""
    del rng
    return [NOISE[n % len(NOISE)] for n in range(count)]


def essay(rng: random.Random, count: int) -> list[str]:
    """Returns sentences that say little, each another one."""
    def one():
        pick = rng.choice
        name, other = pick(words.NAMES), pick(words.PEOPLE)
        forms = (
            f"{name} {pick(words.VERBS)} the {pick(words.ADJECTIVES)} {pick(words.NOUNS)} "
            f"near the {pick(words.PLACES)} {pick(words.TIMES)}.",
            f"The {other} {pick(words.VERBS)} a {pick(words.THINGS)} and {pick(words.VERBS)} the "
            f"{pick(words.NOUNS)} behind the {pick(words.PLACES)}.",
            f"In the {pick(words.WEATHERS)} a {pick(words.ADJECTIVES)} {other} seldom "
            f"{pick(words.VERBS)} what {name} {pick(words.VERBS)} {pick(words.TIMES)}.",
            f"Whoever {pick(words.VERBS)} the {pick(words.THINGS)} also {pick(words.VERBS)} the "
            f"{pick(words.ADJECTIVES)} {pick(words.THINGS)}, as {name} said at the "
            f"{pick(words.PLACES)}.")
        return pick(forms)
    return [one() for _ in range(count)]


def from_file(path: pathlib.Path) -> Sentences:
    """Returns what takes sentences of a text instead, from a random one on, round and round."""
    found = [" ".join(one.split()) for one in
             re.split(r"(?<=[.!?])\s+", path.read_text(encoding="utf-8"))]
    found = [one for one in found if 20 <= len(one) <= 400]
    if len(found) < 100:
        raise ValueError(f"{path} has {len(found)} sentences: a haystack needs 100")

    def sentences(rng, count):
        first = rng.randrange(len(found))
        return [found[(first + n) % len(found)] for n in range(count)]
    return sentences


def hide(rng: random.Random, sentences: list[str], needles: list[str], ordered: bool = False,
         joint: str = " ") -> str:
    """Returns the sentences with the needles among them, anywhere; in their order if asked for."""
    places = [rng.randrange(len(sentences) + 1) for _ in needles]
    if ordered:
        places.sort()
    at: dict[int, list[str]] = {}
    for place, needle in zip(places, needles):
        at.setdefault(place, []).append(needle)
    parts = []
    for place in range(len(sentences) + 1):
        parts += at.get(place, [])
        parts += sentences[place:place + 1]
    return joint.join(parts)
