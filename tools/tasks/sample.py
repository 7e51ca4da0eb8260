"""A question with its right answer, and how an answer is judged."""

import dataclasses
import random
import re
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Sample:
    """What is asked, and what is right.

    text:       of the user's message: a document, then a question.
    lead:       how an answer begins; it is fed before the reference when that is measured.
    answers:    strings that an answer must have.
    most:       tokens that an answer may have.
    """
    task: str
    text: str
    lead: str
    answers: tuple[str, ...]
    most: int

    @property
    def reference(self) -> str:
        """The right answer behind `lead`."""
        return " " + ", ".join(self.answers)

    def right(self, answer: str) -> float:
        """Returns the share of the answers that stand in a text."""
        return sum(stands_in(one, answer) for one in self.answers) / len(self.answers)


def stands_in(key: str, text: str) -> bool:
    """Whether a text has `key` as words of their own, case and white space aside."""
    key, text = (" ".join(one.lower().split()) for one in (key, text))
    return re.search(rf"(?<!\w){re.escape(key)}(?!\w)", text) is not None


def fit(build: Callable[[int], Sample], count: Callable[[str], int], most: int) -> Sample:
    """Returns the sample of so many units that its prompt has nearly `most` tokens, never more.

    build(units) is the same but for its length; count(text) tells a prompt's tokens.

    Raises ValueError where not even the smallest fits.
    """
    smallest = build(1)
    base = count(smallest.text)
    if base > most:
        raise ValueError(f"{smallest.task} has {base} tokens with the least filler: at most {most} "
                         "are left for it; take a larger --length")
    best, low, high, size, tokens = smallest, (1, base), None, 33, base
    for _ in range(12):
        found = build(size)
        tokens = count(found.text)
        if tokens <= most:
            best, low = found, (size, tokens)
            if tokens >= 0.99 * most:
                break
        else:
            high = (size, tokens)
        rate = max(1e-9, (tokens - base) / max(1, size - 1))
        guess = 1 + int((0.996 * most - base) / rate)
        top = high[0] - 1 if high else 4 * size  # short ones may have a length of their own
        guess = min(max(guess, low[0] + 1), top)
        if guess <= low[0]:
            break
        size = guess
    return best


def seeded(*what) -> random.Random:
    """Returns a source of random numbers that depends on `what` alone."""
    return random.Random(" ".join(map(str, what)))
