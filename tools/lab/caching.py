"""Which pages a block cache should keep, on recorded retrievals: policies against an oracle.

    python3 -m tools.lab.caching TRACE.npz ... --out caching.jsonl

A trace has bool zones [steps, layers, h, c] (which clusters a step retrieves) and pages
[layers, h, c]; `record` makes one. A layer's turn wants all its clusters at once: what is not there
is fetched, then the policy gives up clusters until the rest fits. Ratios count pages, in the second
half of the steps.
"""

import argparse
import json
import pathlib

import numpy as np

SHARES = (0.05, 0.1, 0.2, 0.4)
HALF_LIFE = 32  # steps after which an access counts half, of "frequency with ageing"
NEVER = 1 << 40


class Lru:
    """Gives up what was touched longest ago."""

    name = "LRU"

    def __init__(self, clusters: int):
        self.last = np.full(clusters, -1, dtype=np.int64)

    def touch(self, wanted: np.ndarray, turn: int, missed: np.ndarray) -> None:
        """Tells of a turn; missed marks those of `wanted` that were not there."""
        del missed
        self.last[wanted] = turn

    def worth(self) -> np.ndarray:
        """Returns for each cluster what it is worth to be kept."""
        return self.last


class LruTwo(Lru):
    """Gives up what was touched last but one longest ago; what was touched once goes first."""

    name = "LRU-2"

    def __init__(self, clusters: int):
        super().__init__(clusters)
        self.before = np.full(clusters, -1, dtype=np.int64)

    def touch(self, wanted, turn, missed):
        self.before[wanted] = self.last[wanted]
        super().touch(wanted, turn, missed)

    def worth(self):
        return self.before.astype(np.float64) + self.last / NEVER


class Frequency(Lru):
    """Gives up what was touched least, recent touches counting more."""

    name = "frequency with ageing"

    def __init__(self, clusters: int, layers: int = 1):
        super().__init__(clusters)
        self.sum = np.zeros(clusters)
        self._unit = HALF_LIFE * layers

    def touch(self, wanted, turn, missed):
        # Instead of ageing all, later touches count for more.
        self.sum[wanted] += 2.0 ** (turn / self._unit)

    def worth(self):
        return self.sum


class Adaptive(Lru):
    """As ARC: what was touched once and what was touched again are two lists, each with ghosts of
    what it gave up; a ghost that is wanted moves the border between the lists."""

    name = "ARC-like"

    def __init__(self, clusters: int, capacity: float, pages: np.ndarray):
        super().__init__(clusters)
        self._capacity, self._pages = capacity, pages
        self.again = np.zeros(clusters, dtype=bool)  # in the second list, or a ghost of it
        self.ghost = np.zeros(clusters, dtype=bool)
        self.once_share = 0.0

    def touch(self, wanted, turn, missed):
        ghosts = wanted[missed & self.ghost[wanted]]
        size = [max(1.0, self._pages[self.ghost & (self.again == kind)].sum()) for kind in (0, 1)]
        for kind in (0, 1):
            came = self._pages[ghosts[self.again[ghosts] == kind]].sum()
            step = came * max(1.0, size[1 - kind] / size[kind])
            self.once_share += -step if kind else step
        self.once_share = min(max(self.once_share, 0.0), self._capacity)
        fresh = wanted[missed & ~self.ghost[wanted]]
        self.again[wanted] = True
        self.again[fresh] = False
        self.ghost[wanted] = False
        super().touch(wanted, turn, missed)

    def give_up(self, there: np.ndarray, over: float) -> np.ndarray:
        """Chooses from both lists until `over` pages are free."""
        lists = [there[self.again[there] == kind] for kind in (False, True)]
        lists = [one[np.argsort(self.last[one], kind="stable")] for one in lists]
        once = self._pages[lists[0]].sum()
        from_once = min(max(once - self.once_share, 0.0), over)
        first = _until(lists[0], self._pages, from_once)
        second = _until(lists[1], self._pages, over - self._pages[first].sum())
        gone = np.concatenate([first, second])
        missing = over - self._pages[gone].sum()
        if missing > 0:
            left = lists[0][len(first):]
            gone = np.concatenate([gone, _until(left, self._pages, missing)])
        self.ghost[gone] = True
        ghosts = np.flatnonzero(self.ghost)
        ghosts = ghosts[np.argsort(self.last[ghosts], kind="stable")]
        self.ghost[_until(ghosts, self._pages, self._pages[ghosts].sum() - self._capacity)] = False
        return gone


class Oracle(Lru):
    """Belady's: gives up what is wanted again last, or never."""

    name = "oracle"

    def __init__(self, clusters: int, turns: list[np.ndarray]):
        super().__init__(clusters)
        following = np.full(clusters, NEVER, dtype=np.int64)
        self._next = [np.empty(0, dtype=np.int64)] * len(turns)
        for turn in range(len(turns) - 1, -1, -1):
            self._next[turn] = following[turns[turn]]
            following[turns[turn]] = turn
        self._coming = following

    def touch(self, wanted, turn, missed):
        self._coming[wanted] = self._next[turn]

    def worth(self):
        return -self._coming


def _until(ordered, pages, wanted):
    """Returns the fewest from the front that have so many pages."""
    if wanted <= 0:
        return ordered[:0]
    return ordered[:int(np.searchsorted(pages[ordered].cumsum(), wanted)) + 1]


def turns_of(zones: np.ndarray) -> list[np.ndarray]:
    """Returns the clusters that each layer of each step wants, numbered over layers and heads."""
    steps, layers = zones.shape[:2]
    flat = zones.reshape(steps, layers, -1)
    size = flat.shape[2]
    return [layer * size + np.flatnonzero(flat[step, layer])
            for step in range(steps) for layer in range(layers)]


def run(policy, turns: list[np.ndarray], pages: np.ndarray, capacity: float,
        layers: int) -> tuple[float, list[float]]:
    """Returns the share of pages that were there when they were wanted, and by layer."""
    resident = np.zeros(len(pages), dtype=bool)
    held, wanted_pages, hit_pages = 0.0, np.zeros(layers), np.zeros(layers)
    for turn, wanted in enumerate(turns):
        missed = ~resident[wanted]
        if turn >= len(turns) // 2:
            wanted_pages[turn % layers] += pages[wanted].sum()
            hit_pages[turn % layers] += pages[wanted[~missed]].sum()
        resident[wanted] = True
        held += pages[wanted[missed]].sum()
        policy.touch(wanted, turn, missed)
        if held > capacity:
            there = np.flatnonzero(resident)
            if isinstance(policy, Adaptive):
                gone = policy.give_up(there, held - capacity)
            else:
                order = there[np.argsort(policy.worth()[there], kind="stable")]
                gone = _until(order, pages, held - capacity)
            resident[gone] = False
            held -= pages[gone].sum()
    return (float(hit_pages.sum() / max(1.0, wanted_pages.sum())),
            [round(float(h / max(1.0, w)), 4) for h, w in zip(hit_pages, wanted_pages)])


def compare(zones: np.ndarray, pages: np.ndarray) -> dict:
    """Returns hit ratios of every policy at every share of all pages."""
    layers = zones.shape[1]
    flat = pages.reshape(-1).astype(np.float64)
    turns = turns_of(zones)
    found = {}
    for share in SHARES:
        capacity = share * flat.sum()
        makers = [lambda: Lru(len(flat)), lambda: LruTwo(len(flat)),
                  lambda: Frequency(len(flat), layers),
                  lambda: Adaptive(len(flat), capacity, flat), lambda: Oracle(len(flat), turns)]
        for make in makers:
            policy = make()
            ratio, by_layer = run(policy, turns, flat, capacity, layers)
            found.setdefault(policy.name, {})[str(share)] = {"hits": round(ratio, 4),
                                                             "by_layer": by_layer}
    return found


def prefetch(zones: np.ndarray, guess: np.ndarray, pages: np.ndarray) -> list[dict]:
    """How well the clusters that a guessed query retrieves are those of the layer's own.

    guess [steps, layers - 1, h, c] is of the layers from the second on. For each: the share of the
    wanted pages that were guessed, of those that the step before did not want, and how many pages
    are fetched for one of these.
    """
    found = []
    for layer in range(1, zones.shape[1]):
        true, guessed, size = zones[1:, layer], guess[1:, layer - 1], pages[layer].astype(float)
        before = zones[:-1, layer]
        fresh, fetched = true & ~before, guessed & ~before
        hit = float(((fresh & guessed) * size).sum())
        found.append({"layer": layer,
                      "of_all": round(float(((true & guessed) * size).sum()
                                            / (true * size).sum()), 4),
                      "of_new": round(hit / max(1.0, float((fresh * size).sum())), 4),
                      "fetched_for_one": round(float((fetched * size).sum()) / max(1.0, hit), 3)})
    return found


def load(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads a trace: zones, guesses, pages."""
    held = np.load(path)
    count = int(held["shape"][-1])

    def bits(name):
        return np.unpackbits(held[name], axis=-1, count=count).astype(bool)
    return bits("zones"), bits("guess"), held["pages"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=pathlib.Path, nargs="+")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON lines")
    arguments = parser.parse_args()
    for path in arguments.traces:
        zones, guess, pages = load(path)
        line = {"key": ["caching", path.stem], "steps": len(zones),
                "pages": int(pages.sum()),
                "a_step": round(float((zones * pages).sum() / len(zones)), 1),
                "policies": compare(zones, pages), "prefetch": prefetch(zones, guess, pages)}
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(path.stem, {name: [v["hits"] for v in shares.values()]
                          for name, shares in line["policies"].items()}, line["prefetch"],
              flush=True)


if __name__ == "__main__":
    main()
