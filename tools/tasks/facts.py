"""A made-up world of people and towns, paragraphs about it, and questions of one or two steps."""

import dataclasses
import random

from tools.needle import words

from . import haystack

REGIONS = ("the northern hills", "the salt coast", "the eastern plain", "the lake country",
           "the western moors", "the high valleys")
CRAFTS = ("clockmaker", "botanist", "painter", "bridge builder", "composer", "printer", "surgeon",
          "astronomer", "glassblower", "historian", "mapmaker", "dyer")


@dataclasses.dataclass(frozen=True)
class Town:
    """What is told of a town."""
    name: str
    river: str
    year: str
    region: str
    goods: str

    def paragraph(self, rng: random.Random) -> str:
        """Returns the facts in sentences."""
        told = [f"The river {self.river} flows through it.", f"It was founded in {self.year}.",
                f"Traders know it for its {self.goods}."]
        rng.shuffle(told)
        return f"{self.name}. {self.name} is a town in {self.region}. " + " ".join(told)


@dataclasses.dataclass(frozen=True)
class Person:
    """What is told of a person."""
    name: str
    town: Town
    year: str
    craft: str
    teacher: str
    work: str

    def paragraph(self, rng: random.Random) -> str:
        """Returns the facts in sentences."""
        told = [f"The birth was in {self.year}.", f"{self.name} learned from {self.teacher}.",
                f"The best known work is called {self.work}."]
        rng.shuffle(told)
        article = "an" if self.craft[0] in "aeiou" else "a"
        return (f"{self.name}. {self.name} was {article} {self.craft} who was born in "
                f"{self.town.name}. " + " ".join(told))


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question, how its answer begins, and the answer."""
    question: str
    lead: str
    answer: str


class World:
    """`size` people, and a town for each three of them."""

    def __init__(self, rng: random.Random, size: int):
        size = max(2, size)
        towns = max(2, size // 3)
        names = [word.capitalize() for word in haystack.made_up(rng, 4 * size + 2 * towns, 3)]

        def take():
            return names.pop()
        self.towns = [Town(take(), take(), str(rng.randrange(900, 1700)), rng.choice(REGIONS),
                           f"{rng.choice(words.ADJECTIVES)} {rng.choice(words.THINGS)}s")
                      for _ in range(towns)]
        self.people = [Person(f"{take()} {take()}", rng.choice(self.towns),
                              str(rng.randrange(1700, 1990)), rng.choice(CRAFTS), take(),
                              f"The {rng.choice(words.ADJECTIVES).capitalize()} {take()}")
                       for _ in range(size)]

    def text(self, rng: random.Random) -> str:
        """Returns all paragraphs in any order."""
        told = [one.paragraph(rng) for one in [*self.people, *self.towns]]
        rng.shuffle(told)
        return "\n\n".join(told)

    def ask(self, rng: random.Random, hops: int) -> Asked:
        """Asks for a fact of a person, or of the town in which a person was born."""
        person = rng.choice(self.people)
        town, name = person.town, person.name
        if hops == 1:
            return rng.choice((
                Asked(f"In which town was {name} born?", f"{name} was born in", town.name),
                Asked(f"In which year was {name} born?", f"{name} was born in", person.year),
                Asked(f"From whom did {name} learn?", f"{name} learned from", person.teacher),
                Asked(f"What is the best known work of {name} called?",
                      f"The best known work of {name} is called", person.work)))
        birth = f"town in which {name} was born"
        return rng.choice((
            Asked(f"Which river flows through the {birth}?",
                  f"The river that flows through the {birth} is", town.river),
            Asked(f"In which year was the {birth} founded?", f"The {birth} was founded in",
                  town.year),
            Asked(f"What is the {birth} known for?", f"The {birth} is known for its",
                  town.goods)))
