"""First passes over clusters that are laid side by side, and what each would cost on an H100.

Costs are counted, not measured, for a layer of 1M tokens of an 8B shape: 65,536 clusters of each of
8 KV heads, head_dim 128, 4 query heads each. What is measured (docs/benchmarks/formats.md and
kernels.md) anchors the count: all scores 35 us, selection 29, the estimate 22, and what a first
pass does not change 54: 140 in all.
"""

import dataclasses

from tools.needle import wave

from .systems.coarse import EIGHT_BITS, INT8, Bits, Boxes, Coarse, First, Groups, History, Projected

BASE = "int8, all clusters"
CLUSTERS, KV_HEADS, WIDTH, GROUP = 65536, 8, 128, 4
BYTES_PER_US = 3.0e6
PASS_US = 5.0          # launch and drain of a pass that waits for the one before
REST_US = 54.0         # look-up, attention and merge of a layer
CENTROID = WIDTH + 2   # int8 and a scale
SCALARS = 12           # of a cluster: tokens, radius, first page
SHORT = 6              # of a first pass' cluster: a scale, the radius in 16 bits, whether it is empty
SCORES = 8 * GROUP     # written: score and rank of each query head
RETRIEVED = INT8.retrieval_ratio


@dataclasses.dataclass
class Cost:
    """What a layer's scores, selections and estimate cost."""
    bytes_read: float = 0.0     # by scores
    passes: int = 0             # that wait for each other, the estimate among them
    time_us: float = 0.0
    parts: list[str] = dataclasses.field(default_factory=list)

    def score(self, name: str, clusters: float, bytes_each: float, written: float = SCORES):
        """Adds a pass over so many of a head's clusters or groups."""
        moved = clusters * KV_HEADS * (bytes_each + written)
        self.bytes_read += clusters * KV_HEADS * bytes_each
        self._add(name, PASS_US + moved / BYTES_PER_US)

    def select(self, places: float):
        """Adds a selection: of 7,680 places 9.8 us are measured, of 65,536 29 to 30, by eight
        blocks a row that wait for each other; a part that does not depend on places is guessed."""
        one = 5.0 + 4.8 * places / 7680
        self._add(f"select {places:,.0f}", one if places <= 16384 else 30 * (places / 65536) ** 0.5)

    def at_once(self, name: str, clusters: float, bytes_each: float, retrieved_of: float):
        """Adds a kernel that estimates its candidates, too, and the selection behind it. What is
        retrieved is taken away from the estimate later, which attention does on its way."""
        self.score(name, clusters, bytes_each, retrieved_of * (SCORES + 4))
        self.select(retrieved_of * clusters)

    def estimate(self, share: float):
        """Adds the estimate over a share of the clusters: 23.2 % take 22 us."""
        self._add(f"estimate {share:.1%}", 5.0 + 17.0 * share / 0.232)

    def sums_of_groups(self, groups: float):
        """Adds the value sums of all groups, read in their order by the estimate's kernel."""
        time_us = groups * KV_HEADS * CENTROID / BYTES_PER_US
        self.parts.append(f"sums of {groups:,.0f} groups {time_us:.1f}")
        self.time_us += time_us

    def _add(self, name, time_us):
        self.parts.append(f"{name} {time_us:.0f}")
        self.passes += 1
        self.time_us += time_us


def cost_of(system: Coarse) -> Cost:
    """Counts what a form costs."""
    cost = Cost()
    clusters = CLUSTERS * 16 / system.settings.cluster_tokens
    estimated = system.settings.estimation_ratio
    left = clusters
    for at, one in enumerate(system.passes):
        inside = one.by_segment and one.candidates  # the pass chooses by itself and goes on
        if isinstance(one, (Groups, Boxes)):
            box = isinstance(one, Boxes)
            vector = 2 * WIDTH * one.top + 4 if box else CENTROID + 2
            if inside:
                # One kernel scores groups, and the members of the best of its own.
                moved = vector / one.size + one.candidates * (CENTROID + SCALARS)
                if one.retrieved_of < 1:
                    moved += one.candidates * CENTROID + one.estimates * CENTROID / one.size
                    cost.at_once("groups, members and sums", clusters, moved, one.retrieved_of)
                    return cost
                cost.score("groups and their members", clusters, moved,
                           one.candidates * (SCORES + 4))
            else:
                cost.score("groups", clusters / one.size, vector, 4 * GROUP)
                cost.select(clusters / one.size)
        elif isinstance(one, History):
            cost.select(clusters / one.size)
        else:
            vector = SHORT + (WIDTH * one.share * one.bits / 8 if isinstance(one, Projected)
                              else WIDTH * one.bits / 8)
            last = not one.candidates
            if inside:
                # One kernel scores, keeps its own best, reads those again and writes them. Of 4
                # bits the centroid's other four are read, of others all of it.
                rest = CENTROID - WIDTH / 2 if one.bits == 4 else CENTROID + SCALARS
                moved = vector + one.candidates * rest * one.again
                if one.retrieved_of < 1:
                    moved += one.candidates * CENTROID
                    cost.at_once("codes, their best and sums", clusters, moved, one.retrieved_of)
                    return cost
                cost.score("codes and their best", left, moved, one.candidates * (SCORES + 4))
            else:
                cost.score("codes", left, vector, SCORES if last else 4 * GROUP)
                if not last:
                    cost.select(left)
        if one.candidates:
            left = one.candidates * clusters
        if not one.candidates or inside:
            break
    else:
        cost.score("centroids", left, CENTROID + SCALARS)
    cost.select(left)
    keeps = bool(system.passes) and system.passes[-1].keeps
    share = estimated if keeps else min(estimated, left / clusters - RETRIEVED)
    cost.estimate(share)
    for one in system.passes:
        if isinstance(one, Groups) and one.estimates:
            cost.sums_of_groups(clusters / one.size)
    return cost


def _of(settings: wave.Settings = INT8, **changes):
    return dataclasses.replace(settings, **changes)


def forms() -> list[Coarse]:
    """What is compared; the first is what the others are compared with."""
    found = [Coarse(BASE)]
    found += [Coarse(f"{BASE}, {share:.0%} estimated", settings=_of(estimation_ratio=share))
              for share in (0.1, 0.05)]
    found.append(Coarse("clusters of 32 tokens, all", settings=_of(cluster_tokens=32)))
    return (found + _grouped() + _estimating() + _boxed() + _projected() + _coded() + _remembered() + _combined())


def _named(name: str, *passes: First) -> Coarse:
    share = passes[-1].candidates
    tail = ", no second turn" if not share else f", best {share:.4g} of the clusters"
    return Coarse(name + tail, *passes, settings=INT8, options=EIGHT_BITS)


def _grouped():
    found = [_named(f"groups of {size}", Groups(size=size)) for size in (4, 8, 16, 32, 64)]
    found += [_named(f"groups of 16, radius {weight}", Groups(weight=weight))
              for weight in (0.25, 0.5)]
    found += [_named("neighbours of 16", Groups(clustered=False)),
              _named("groups of 16", Groups(candidates=0.5)),
              _named("groups of 8", Groups(size=8, candidates=0.125)),
              _named("groups of 8, each segment its own", Groups(size=8, by_segment=True))]
    return found


ONE_KERNEL = "estimated at once, retrieved from each segment's eighth"


def _estimating():
    found = [_named(f"groups of {size}, others by groups, {ONE_KERNEL}",
                    Groups(size=size, by_segment=True, estimates=True, retrieved_of=0.125))
             for size in (8, 16)]
    found += [_named(f"neighbours of {size}, others estimated by groups",
                     Groups(size=size, candidates=share, estimates=True, clustered=False))
              for size, share in ((8, 0.125), (8, 0.25), (16, 0.25))]
    return found + [_named(f"groups of {size}, others estimated by groups"
                   + ", each segment its own" * local,
                   Groups(size=size, candidates=share, by_segment=local, estimates=True))
            for size, share, local in ((16, 0.25, False), (16, 0.125, False), (8, 0.25, False),
                                       (8, 0.125, False), (8, 0.0625, False), (4, 0.125, False),
                                       (4, 0.0625, False), (32, 0.25, False), (16, 0.25, True), (8, 0.25, True),
                                       (8, 0.125, True))]


def _boxed():
    found = [_named(f"boxes of {size}, bound", Boxes(size=size)) for size in (8, 16, 32, 64)]
    found += [_named(f"boxes of 16, {weight} of the width", Boxes(weight=weight))
              for weight in (0.25, 0.5)]
    found += [_named("boxes of 16, 0.25 of the width, turned", Boxes(weight=0.25, turned=True)),
              _named("boxes of neighbours of 16, bound", Boxes(clustered=False)),
              _named("boxes of 16, bound, quarter of the channels", Boxes(top=0.25)),
              _named("boxes of 8, 0.25 of the width", Boxes(size=8, weight=0.25))]
    found += [_named(f"groups of 16, mean and {weight} deviations by channel",
                     Boxes(weight=weight, deviations=True)) for weight in (0.5, 1.0, 2.0)]
    found.append(_named("groups of 8, mean and 1.0 deviations by channel",
                        Boxes(size=8, weight=1.0, deviations=True)))
    return found


def _projected():
    found = [_named(f"{share:.3g} of the channels, fitted", Projected(share=share))
             for share in (0.125, 0.25, 0.5)]
    found += [_named("0.25 of the channels, Hadamard's", Projected(fitted=False)),
              _named("0.5 of the channels, Hadamard's", Projected(share=0.5, fitted=False)),
              _named("0.25 of the channels, fitted", Projected(candidates=0.125)),
              _named("0.25 of the channels in 4 bits, fitted", Projected(bits=4))]
    return found


def _coded():
    found = []
    for bits in (4, 3, 2, 1):
        name = f"{bits} bit{'s' * (bits > 1)} a channel"
        found += [_named(name, Bits(bits=bits, candidates=share)) for share in (0, 0.25, 0.125)]
    found += [_named("4 bits a channel, not turned", Bits(turned=False, candidates=share))
              for share in (0, 0.125)]
    found += [_named("4 bits a channel, neither turned nor centred",
                     Bits(turned=False, centred=False, candidates=share)) for share in (0, 0.125)]
    found.append(_named("2 bits a channel, not turned",
                        Bits(bits=2, turned=False, candidates=0.125)))
    for bits, share in ((4, 0.125), (2, 0.25)):
        found.append(_named(f"{bits} bit{'s' * (bits > 1)} a channel, each segment its own",
                            Bits(bits=bits, candidates=share, by_segment=True)))
    for bits, again, part in ((8, False, 0), (8, False, 64), (4, False, 0), (4, False, 64),
                              (3, False, 0), (4, True, 0), (2, True, 0)):
        found.append(_named(f"{bits} bits a channel, " + "scored again, " * again + ONE_KERNEL
                            + f", by parts of {part} clusters" * bool(part),
                            Bits(bits=bits, turned=bits < 8, centred=bits < 8, by_segment=True,
                                 again=again, retrieved_of=0.125, part=part)))
    for bits, share in ((4, 0.125), (2, 0.25), (2, 0.125)):
        found.append(_named(f"{bits} bits a channel, others estimated by them",
                            Bits(bits=bits, candidates=share, keeps=True)))
    return found


def _remembered():
    return [_named(f"high in the last {steps} steps, {turning:.3g} in turn",
                   History(steps=steps, turning=turning))
            for steps, turning in ((1, 1 / 16), (4, 1 / 16), (4, 1 / 64))]


def _combined():
    return [_named("boxes of 8 to a half, 2 bits", Boxes(size=8, weight=0.25, candidates=0.5),
                   Bits(bits=2, candidates=0.125)),
            _named("groups of 16 to a half, 4 bits", Groups(candidates=0.5),
                   Bits(bits=4, candidates=0)),
            _named("groups of 16 to a half, 2 bits", Groups(candidates=0.5),
                   Bits(bits=2, candidates=0.125))]
