"""Which systems stand in which table, with what settings."""

import dataclasses

from .system import Budget, System
from .systems import hnsw
from .systems.infinigen import InfiniGen
from .systems.ivf import Ivf
from .systems.lserve import LServe
from .systems.magicpig import MagicPig
from .systems.quest import Quest
from .systems.retrieval_attention import RetrievalAttention
from .systems.streaming import Streaming
from .systems.topk import TopK
from .systems.twilight import Twilight
from .systems.vattention import VAttention
from .systems.wave import PAPER, PRODUCT, Options, Wave

# Candidates that are asked the needle questions, too.
CHOSEN = ("clusters of 8, 8-bit index, rest by 16",
          "radius 0.25, rest by 16", "lean, radius 0.25", "lean, radius 0.25, Euclidean",
          "lean, radius 0.5",
          "until 0.3 is unseen, clusters of 8, 8-bit index, rest by 16",
          "lean, radius 0.25, twice the retrieval")
FACTORS = (0.5, 1.0, 2.0)  # of the budget: three rows of each system
_vary = dataclasses.replace


@dataclasses.dataclass(frozen=True)
class Row:
    """A system at a budget. `table` names where it is shown."""
    table: str
    name: str
    factor: float
    make: object  # () -> System

    def system(self) -> System:
        """Makes it, with no state of another document."""
        return self.make()


def ours(name="ours", **options) -> Wave:
    """The product's index, with other options."""
    return Wave(name, PRODUCT, options=Options(**options))


def baselines() -> list[Row]:
    """Every system of the papers, at three budgets."""
    rows = []

    def add(name, make):
        rows.extend(Row("systems", name, f, lambda f=f: make(Budget(f), f)) for f in FACTORS)
    add("StreamingLLM", lambda b, f: Streaming(b))
    add("exact top-k", lambda b, f: TopK(b))
    add("Quest", lambda b, f: Quest(b))
    add("LServe pages", lambda b, f: LServe(b))
    add("MagicPIG", lambda b, f: MagicPig(round(150 * f)))
    add("InfiniGen", lambda b, f: InfiniGen(b))
    add("InfiniGen, own query", lambda b, f: InfiniGen(b, predicts=False))
    add("IVF-Flat", lambda b, f: Ivf(b))
    if hnsw.available():
        add("HNSW", lambda b, f: hnsw.Hnsw(round(100 * f)))
    add("RetrievalAttention", lambda b, f: RetrievalAttention(round(100 * f)))
    add("RetroInfer (paper)", lambda b, f: Wave("RetroInfer (paper)", PAPER, b))
    add("ours", lambda b, f: Wave("ours", PRODUCT, b))
    return rows


def _candidate(name, settings=PRODUCT, **options) -> Row:
    return Row("candidates", name, 1.0, lambda: Wave(name, settings, options=Options(**options)))


def candidates() -> list[Row]:
    """What might make the product's index better."""
    eight = _vary(PRODUCT, cluster_tokens=8)
    spread = _vary(PRODUCT, start="spread")
    near = _vary(PRODUCT, euclidean=True)
    near_eight = _vary(eight, euclidean=True)
    quarter = _vary(PRODUCT, radius=0.25)
    none = _vary(PRODUCT, estimation_ratio=0.0)
    add = _candidate
    small = {"index_bits": 8, "rest": 16}  # 8-bit index, and the rest by neighbourhoods
    rows = [
        add("ours"),
        add("all others estimated", _vary(PRODUCT, estimation_ratio=1.0)),
        add("rest by neighbourhoods of 8", rest=8),
        add("rest by neighbourhoods of 16", rest=16),
        add("rest by neighbourhoods of 64", rest=64),
        add("half the estimation zone, rest by 16", _vary(PRODUCT, estimation_ratio=0.116),
            rest=16),
        add("no estimation zone, rest by 16", none, rest=16),
        add("clusters of 8", eight),
        add("clusters of 8, 8-bit index", eight, index_bits=8),
        add("clusters of 8, 8-bit index, rest by 16", eight, **small),
        add("clusters of 8, 8-bit index, no estimation zone, rest by 16",
            _vary(eight, estimation_ratio=0.0), **small),
        add("clusters of 4, 8-bit index, rest by 16", _vary(PRODUCT, cluster_tokens=4), **small),
        add("8-bit index, rest by 16", **small),
        add("spread starts", spread),
        add("spread starts, rest by 16", spread, rest=16),
        add("spread starts, clusters of 8, 8-bit index, rest by 16",
            _vary(spread, cluster_tokens=8), **small),
        add("Euclidean clusters", near),
        add("Euclidean clusters, rest by 16", near, rest=16),
        add("Euclidean clusters of 8, 8-bit index, rest by 16", near_eight, **small),
        add("radius 0.25", quarter),
        add("radius 0.25, rest by 16", quarter, rest=16),
        add("radius 0, rest by 16", _vary(PRODUCT, radius=0.0), rest=16),
        add("rank by weight times value norm", value_norm=True),
        add("budget counts pages", page_budget=True),
        add("heads share a budget", joint=True),
        add("heads share a budget, rest by 16", joint=True, rest=16),
        add("heads share a budget, radius 0.25, rest by 16", quarter, joint=True, rest=16),
        add("heads share a budget of pages, rest by 16", joint=True, page_budget=True, rest=16),
        add("early layers 1.5, late 0.5", _vary(PRODUCT, layer_shares=(1.5, 1.25, 1.0, .75, .5))),
        add("early layers 0.5, late 1.5", _vary(PRODUCT, layer_shares=(.5, .75, 1.0, 1.25, 1.5))),
    ]
    rows += [
        add("paper", PAPER),
        add("paper, rest by 16", PAPER, rest=16),
        add("paper, radius 0.25, rest by 16", _vary(PAPER, radius=0.25), rest=16),
        add("paper, Euclidean clusters, rest by 16", _vary(PAPER, euclidean=True), rest=16),
        add("Euclidean clusters, radius 0.25, rest by 16", _vary(near, radius=0.25), rest=16),
    ]
    # 8-bit index, clusters of 8, the rest by 16, and a budget of pages that the heads share.
    lean = {**small, "joint": True, "page_budget": True}
    for name, settings in {
            "radius 0.5": eight, "radius 0.25": _vary(eight, radius=0.25),
            "radius 0.125": _vary(eight, radius=0.125), "radius 0": _vary(eight, radius=0.0),
            "radius 0.25, Euclidean": _vary(near_eight, radius=0.25),
            "radius 0.25, not centred": _vary(eight, radius=0.25, centre=False),
            "radius 0, not centred": _vary(eight, radius=0.0, centre=False),
            "radius 0.25, spread starts": _vary(spread, radius=0.25, cluster_tokens=8),
    }.items():
        rows.append(add(f"lean, {name}", settings, **lean))
        if name in ("radius 0.25", "radius 0.25, Euclidean"):
            rows.append(add(f"lean, {name}, twice the retrieval", settings, retrieval=2.0, **lean))
    for cap in (2.0, 4.0):
        rows.append(add(f"until 0.3 is unseen, at most {cap:g} budgets, rest by 16", unseen=0.3,
                        cap=cap, rest=16))
    for mass in (0.4, 0.3, 0.2):
        rows.append(add(f"until {mass:g} is unseen, clusters of 8, 8-bit index, rest by 16", eight,
                        unseen=mass, cap=4.0, **small))
    for name, settings in (("clusters", eight), ("Euclidean clusters", near_eight)):
        rows.append(add(f"twice the retrieval, {name} of 8, 8-bit index, rest by 8", settings,
                        index_bits=8, retrieval=2.0, rest=8))
    return rows


def micro() -> list[Row]:
    """What the paper's micro-analyses vary, on the product's index."""
    def add(name, settings=PRODUCT, **options):
        return Row("micro", name, 1.0, lambda: Wave(name, settings, options=Options(**options)))
    rows = [add("as the product"), add("without estimation", _vary(PRODUCT, estimation_ratio=0.0)),
            add("as the paper", PAPER), add("not centred", _vary(PRODUCT, centre=False)),
            add("paper, without estimation", _vary(PAPER, estimation_ratio=0.0))]
    rows += [add(f"segments of {size}", segment=size) for size in (1024, 4096, 16384)]
    rows += [add("one segment", segment=0)]
    rows += [add(f"{rounds} rounds", _vary(PRODUCT, iterations=rounds)) for rounds in (1, 4, 20)]
    rows += [add(f"estimation {share:.0%}", _vary(PRODUCT, estimation_ratio=share))
             for share in (0.1, 0.5, 1.0)]
    return rows


def promised() -> list[Row]:
    """Systems that spend until a promise is met: our index, Twilight's and vAttention's rules."""
    rows = [Row("promise", f"ours, unseen mass below {mass:g}", 1.0,
                lambda mass=mass: ours(unseen=mass, rest=16)) for mass in (0.4, 0.2, 0.1, 0.05)]
    rows += [Row("promise", f"Twilight, p {mass:g}", 1.0, lambda mass=mass: Twilight(mass))
             for mass in (0.8, 0.9, 0.95)]
    rows += [Row("promise", f"vAttention's rule, epsilon {e:g}", 1.0,
                 lambda e=e: VAttention(Budget(0.5), e)) for e in (0.2, 0.1, 0.05)]
    return rows


def growing() -> list[Row]:
    """What long generation is measured with."""
    return [Row("growing", "StreamingLLM", 1.0, lambda: Streaming(Budget())),
            Row("growing", "RetroInfer (paper)", 1.0, lambda: Wave("RetroInfer", PAPER)),
            Row("growing", "ours", 1.0, ours),
            Row("growing", "ours, rest by neighbourhoods of 16", 1.0, lambda: ours(rest=16)),
            Row("growing", "lean, radius 0.25", 1.0,
                lambda: Wave("lean", _vary(PRODUCT, cluster_tokens=8, radius=0.25),
                             options=Options(index_bits=8, rest=16, joint=True,
                                             page_budget=True)))]
