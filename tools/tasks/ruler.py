"""The thirteen tasks of RULER (Hsieh et al. 2024, arXiv:2404.06654) in words of this project.

    needles:   one of one (in noise, in an essay, an identifier), one of several (among four, among
               nothing but needles, identifiers of identifiers), four values of one key, four keys
    tracking:  names that were set to a number through others
    counting:  the ten words that stand most often in a list; the three most frequent of a text
               whose words are distributed as k^-2
    questions: of a fact among paragraphs, and of a fact of what another fact names

The lengths are any; the texts follow from seed, task, length and number alone. Unlike RULER no
answer is begun for the model: the first token behind a prompt is computed exactly under every
policy, so that it would answer questions of one token by itself.
"""

import collections
from collections.abc import Callable

from . import facts, haystack
from .sample import Sample, seeded

Build = Callable[..., Sample]

KEYS = 4      # of several, and values of one
HOPS = 4      # of a chain
COMMON, OFTEN, SELDOM = 10, 30, 3
FREQUENT = 3


def _told(key, value, kind):
    return f"The secret {kind} of {key} is {value}."


def _needles(task, document, asked, answers, kind, many):
    names = " and of ".join(asked) if len(asked) < 3 else ", of ".join(asked)
    what = f"secret {kind}s" if many else f"secret {kind}"
    verb = "are" if many else "is"
    text = (f"The text below hides secret {kind}s. Remember them: you will be asked.\n\n{document}"
            f"\n\nQuestion: What {verb} the {what} of {names} in the text above? Answer with "
            + (f"the {len(answers)} {kind}s, separated by commas." if many else "it."))
    each = 44 if kind == "identifier" else 16
    return Sample(task, text, f"The {what} of {names} {verb}", tuple(answers),
                  40 + each * len(answers) + 8 * len(asked))


def _single(task, sentences, kind="number"):
    def build(rng, size, essay):
        key, draw = haystack.pairs(rng, 1)[0], _draw(kind)
        value = draw(rng)
        chosen = sentences or essay
        document = haystack.hide(rng, chosen(rng, size), [_told(key, value, kind)])
        return _needles(task, document, [key], [value], kind, False)
    return build


def _draw(kind):
    return haystack.identifier if kind == "identifier" else haystack.number


def _several(task, values=1, asked=1):
    """Some keys with some values each among an essay; `asked` of them are asked for."""
    def build(rng, size, essay):
        keys = haystack.pairs(rng, KEYS if values == 1 else 1)
        told = [(key, haystack.number(rng)) for key in keys for _ in range(values)]
        document = haystack.hide(rng, essay(rng, size),
                                 [_told(*one, "number") for one in told], ordered=True)
        wanted = keys[:asked]
        answers = [value for key, value in told if key in wanted]
        return _needles(task, document, wanted, answers, "number", len(answers) > 1)
    return build


def _nothing_but(task, kind):
    """The asked needle among needles of the same form."""
    def build(rng, size, essay):
        del essay
        draw = _draw(kind)
        keys = ([draw(rng) for _ in range(size + 1)] if kind == "identifier"
                else haystack.pairs(rng, size + 1))
        told = [(key, draw(rng)) for key in keys]
        asked = told[0]
        rng.shuffle(told)
        return _needles(task, " ".join(_told(*one, kind) for one in told), [asked[0]],
                        [asked[1]], kind, False)
    return build


def _tracking(rng, size, essay):
    del essay
    value = str(rng.randrange(10000, 100000))
    names: list[str] = []
    while len(names) < HOPS + 1:
        name = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(5))
        if name not in names:
            names.append(name)
    lines = [f"VAR {name} = {source}" for name, source in
             zip(names, [value, *(f"VAR {name}" for name in names)])]
    document = haystack.hide(rng, haystack.noise(rng, size), [f"{line}." for line in lines],
                             ordered=True)
    lead = "The variables are"
    text = ("Variables are set in the text below. Remember them: you will be asked.\n\n"
            + document + f"\n\nQuestion: One variable in the text above is set to {value}, and "
            f"others are set to it, one through the other. Which {HOPS + 1} variables have the "
            f"value {value}? Answer with their names, separated by commas.")
    return Sample("vt", text, lead, tuple(names), 80)


def _common(rng, size, essay):
    del essay
    found = haystack.pairs(rng, COMMON + size)
    often, seldom = found[:COMMON], found[COMMON:]
    most = max(3 * SELDOM, min(OFTEN, 3 * size // COMMON))  # a short list is not of these alone
    listed = often * most + seldom * SELDOM
    rng.shuffle(listed)
    lines = " ".join(f"{n + 1}. {word}" for n, word in enumerate(listed))
    text = (f"Below is a numbered list of words. {COMMON} of them stand in it far more often than "
            f"the others.\n\n{lines}\n\nQuestion: Which {COMMON} words stand most often in the "
            "list above? Answer with the words, separated by commas.")
    return Sample("cwe", text, "The words are", tuple(often), 140)


def _frequent(rng, size, essay):
    del essay
    vocabulary = haystack.made_up(rng, 400)
    weights = [1 / (n + 1) ** 2 for n in range(len(vocabulary))]
    while True:
        drawn = rng.choices(vocabulary, weights, k=40 + size)
        ranks = collections.Counter(drawn).most_common(FREQUENT + 1)
        if [word for word, _ in ranks[:FREQUENT]] == vocabulary[:FREQUENT] and (
                ranks[FREQUENT - 1][1] > ranks[FREQUENT][1]):
            break
    text = ("The text below is in a secret language. Count how often each word stands in it.\n\n"
            + " ".join(drawn) + f"\n\nQuestion: Which {FREQUENT} words stand most often in the "
            "text above? Answer with the words, separated by commas.")
    return Sample("fwe", text, "The words are", tuple(vocabulary[:FREQUENT]), 60)


def _questions(task, hops):
    def build(rng, size, essay):
        del essay
        world = facts.World(rng, size)
        asked = world.ask(rng, hops)
        text = ("Answer the question from the paragraphs below.\n\n" + world.text(rng) +
                f"\n\nQuestion: {asked.question} Answer in a few words.")
        return Sample(task, text, asked.lead, (asked.answer,), 48)
    return build


TASKS: dict[str, Build] = {
    "niah_single_1": _single("niah_single_1", haystack.noise),
    "niah_single_2": _single("niah_single_2", None),
    "niah_single_3": _single("niah_single_3", None, "identifier"),
    "niah_multikey_1": _several("niah_multikey_1"),
    "niah_multikey_2": _nothing_but("niah_multikey_2", "number"),
    "niah_multikey_3": _nothing_but("niah_multikey_3", "identifier"),
    "niah_multivalue": _several("niah_multivalue", values=KEYS),
    "niah_multiquery": _several("niah_multiquery", asked=KEYS),
    "vt": _tracking,
    "cwe": _common,
    "fwe": _frequent,
    "qa_1": _questions("qa_1", 1),
    "qa_2": _questions("qa_2", 2),
}


def builder(task: str, seed: int, length: int, index: int,
            essay: haystack.Sentences = haystack.essay) -> Callable[[int], Sample]:
    """Returns build(units) for sample.fit."""
    def build(size):
        return TASKS[task](seeded("ruler", seed, task, length, index), size, essay)
    return build
