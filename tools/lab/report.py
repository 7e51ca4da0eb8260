"""Writes the tables of docs/evaluation.md and docs/evaluation/, plots and figures from what evaluate.py
measured.

    python3 -m tools.lab.report lab.jsonl docs

Everything between the marker comments of these pages is replaced; what stands around them is
written by hand. FOLDER/evaluation gets the plots, results.json and locality.json.
"""

import argparse
import json
import pathlib
import re
import sys

from tools.needle.report import replace_block, size_name, table, with_interval

from . import catalogue, collect, plot, study_report

TARGET = {"change": 0.06, "ratio": 1.003}
OWN_INDEX = ("clusters of 8", "clusters of 4, 8-bit index, rest by 16", "spread starts",
             "Euclidean clusters")


def percent(value: float, digits: int = 1) -> str:
    """Returns 12.3 for 0.123."""
    return f"{100 * value:.{digits}f}"


def with_error(value: float, error: float | None, digits: int) -> str:
    """Returns the value and the standard error of documents."""
    return f"{value:.{digits}f}" + (f" ± {error:.{digits}f}" if error is not None else "")


class Report:
    """The parts of the document; each returns Markdown, and some draw."""

    def __init__(self, lines: list[dict], folder: pathlib.Path):
        self.folder = folder / "evaluation"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lines = lines
        self.text = collect.followed(lines)
        self.needle = collect.answered(lines)
        self.locality = collect.of_kind(lines, "locality")
        self.unseen = collect.of_kind(lines, "unseen")
        self.indexes = collect.of_kind(lines, "indexes")
        self.setups = collect.of_kind(lines, "setup")

    def draw(self, name: str, title: str, series, x, y) -> str:
        """Writes a plot and returns the Markdown that shows it."""
        (self.folder / f"{name}.svg").write_text(plot.svg(title, series, x, y), encoding="utf-8")
        return f"![{title}]({name}.svg)"

    def of(self, name: str) -> dict[int, list[dict]]:
        """Returns the rows of a table by length, in the catalogue's order."""
        lengths = sorted({row["tokens"] for row in self.text if row["table"] == name})
        return {length: [row for row in self.text
                         if row["table"] == name and row["tokens"] == length]
                for length in lengths}

    def setup(self) -> str:
        """What the figures were measured with."""
        parts = []
        for one in sorted(self.setups, key=lambda s: s["time"]):
            texts = ", ".join(f"{r['package']} {r['version']}"
                              + ("" if r["as_recorded"] else " (another digest than corpus.json's)")
                              for r in one["text"] if "version" in r)
            parts.append(f"* {one['name']}, PyTorch {one['torch']}, Python {one['python']}; seed "
                         f"{one['seed']}; text: {texts}"
                         + ("" if one["hnswlib"] else "; without hnswlib"))
        return "\n".join(dict.fromkeys(parts))

    def _measures(self, row: dict) -> list[str]:
        return [*(f"{row['read'][kind] / 1e6:.2f}" for kind in collect.ALL),
                f"{row['bytes'] / 1e6:.2f}",
                with_error(row["perplexity_ratio"], row["ratio_error"], 4),
                with_error(row["mean_change"], row["change_error"], 4),
                percent(row["top1_agreement"]), f"{row['kl']:.4f}", str(row["documents"])]

    HEAD = ["index MB", "sums MB", "pages MB", "MB a step", "perplexity / full", "mean change",
            "top-1 agreement, %", "KL", "documents"]

    def _caption(self, length, rows):
        return (f"{rows[0]['model']}, documents of {length:,} tokens, "
                f"{rows[0]['tail']} tokens behind each:")

    def systems(self) -> str:
        """Every system at three budgets."""
        parts, order = [], list(dict.fromkeys(row.name for row in catalogue.baselines()))
        for length, rows in self.of("systems").items():
            names = order + sorted({r["system"] for r in rows} - set(order))
            if "HNSW" in names and "HNSW" not in order:  # measured where hnswlib is
                names.remove("HNSW")
                names.insert(names.index("RetrievalAttention"), "HNSW")
            rows.sort(key=lambda r: (names.index(r["system"]), r["factor"]))
            parts.append(self._caption(length, rows))
            parts.append(table(["system", "budget", *self.HEAD],
                               [[r["system"], f"{r['factor']:g}", *self._measures(r)]
                                for r in rows]))
            series = [plot.Series(name, [(r["bytes"] / 1e6, r["mean_change"]) for r in rows
                                         if r["system"] == name and r["mean_change"] > 0])
                      for name in names]
            parts.append(self.draw(
                f"systems_{length}", f"Change of a token's log-probability, {length:,} tokens",
                [one for one in series if one.points],
                plot.Axis("MB read of the context in a step", True),
                plot.Axis("mean |change|", True)))
        return "\n\n".join(parts)

    def candidates(self) -> str:
        """Variants of the product's index against it."""
        parts, order = [], [row.name for row in catalogue.candidates()]
        for length, rows in self.of("candidates").items():
            base = next((r for r in rows if r["system"] == "ours"), None)
            if base is None:
                continue
            rows.sort(key=lambda r: order.index(r["system"]) if r["system"] in order else 999)
            parts.append(self._caption(length, rows))
            body = []
            for r in rows:
                met = (r["mean_change"] <= TARGET["change"]
                       and r["perplexity_ratio"] <= TARGET["ratio"]
                       and r["bytes"] <= base["bytes"])
                body.append([r["system"], f"{r['read']['index'] / 1e6:.1f}",
                             f"{r['bytes'] / 1e6:.2f}", percent(r["bytes"] / base["bytes"], 0),
                             with_error(r["perplexity_ratio"], r["ratio_error"], 4),
                             with_error(r["mean_change"], r["change_error"], 4),
                             percent(r["top1_agreement"]), f"{r['kl']:.4f}",
                             str(r["documents"]), "yes" if met else ""])
            parts.append(table(["candidate", "index MB", "MB a step", "% of ours' bytes",
                                "perplexity / full", "mean change", "top-1 agreement, %", "KL",
                                "documents", "meets all"], body))
        return "\n\n".join(parts)

    def plain(self, name: str, rows_of) -> str:
        """A table of measures in the catalogue's order."""
        parts, order = [], [row.name for row in rows_of]
        for length, rows in self.of(name).items():
            rows.sort(key=lambda r: order.index(r["system"]) if r["system"] in order else 999)
            parts += [self._caption(length, rows), table(
                ["variant", *self.HEAD], [[r["system"], *self._measures(r)] for r in rows])]
        return "\n\n".join(parts)

    def growing(self) -> str:
        """Long generation, by position."""
        parts, order = [], [row.name for row in catalogue.growing()]
        for length, rows in self.of("growing").items():
            rows.sort(key=lambda r: order.index(r["system"]) if r["system"] in order else 999)
            size = rows[0]["tail"] // len(rows[0]["by_position"])
            ends = [size * (i + 1) for i in range(len(rows[0]["by_position"]))]
            parts += [self._caption(length, rows), table(
                ["system", "MB a step", "perplexity / full", "mean change",
                 *(f"to {end:,}" for end in ends)],
                [[r["system"], f"{r['bytes'] / 1e6:.2f}", f"{r['perplexity_ratio']:.4f}",
                  f"{r['mean_change']:.4f}", *(f"{p['mean_change']:.4f}"
                                               for p in r["by_position"])] for r in rows])]
            parts.append(self.draw(
                f"growing_{length}", f"Mean change by position behind {length:,} tokens",
                [plot.Series(r["system"], [(end, p["mean_change"]) for end, p in
                                           zip(ends, r["by_position"])]) for r in rows],
                plot.Axis("tokens generated"), plot.Axis("mean |change|", True)))
        return "\n\n".join(parts)

    def needles(self) -> str:
        """Exact match by task."""
        parts = []
        for length in sorted({row["length"] for row in self.needle}):
            here = [r for r in self.needle if r["length"] == length]
            columns = sorted({(r["task"], r["needles"]) for r in here},
                             key=lambda c: (c[1] is not None, c[0]))
            order = ["full", *(r.name for r in catalogue.baselines()),
                     *(r.name for r in catalogue.candidates())]
            names = sorted({r["system"] for r in here}, key=order.index)
            cells = {(r["system"], r["task"], r["needles"]): r for r in here}
            body = []
            for name in names:
                found = [cells.get((name, *column)) for column in columns]
                plain = [r for r, c in zip(found, columns) if r and c[1] is None]
                whole = len(plain) == sum(c[1] is None for c in columns)
                share = collect.mean(100 * r["right"] / r["questions"] for r in plain)
                body.append([name, f"{collect.mean(r['bytes'] for r in plain) / 1e6:.2f}"
                             if name != "full" else "",
                             *(with_interval(f"{100 * r['right'] / r['questions']:.1f}",
                                             r["right"], r["questions"]) if r else "-"
                               for r in found), f"{share:.1f}" if whole else "-"])
            heads = [task.replace("_", " ") + (f", {needles} needles" if needles else "")
                     + f" ({_questions(here, task, needles)})" for task, needles in columns]
            parts += [f"{size_name(length)}, exact match in per cent (questions) [95 % interval]",
                      table(["system", "MB a step", *heads, "average of the tasks"], body)]
        return "\n\n".join(parts)

    def local(self) -> str:
        """Hits of an LRU cache, and distances."""
        if not self.locality:
            return ""
        rows, series = [], []
        for one in sorted(self.locality, key=lambda r: (r["model"], r["tokens"])):
            rows.append([one["model"], f"{one['tokens']:,}", str(one["steps"]),
                         f"{one['pages_a_step']:.0f}", f"{one['pages']:,}",
                         *(percent(hit) for hit in one["hits"].values()),
                         percent(one["first_touches"]), percent(one["ever_touched"]),
                         ", ".join(percent(x, 0) for x in one["again_at_the_next_step"])])
            total = sum(h["pages_a_step"] for h in one["by_head"])
            curve = [sum(h["reach"][i] * h["pages_a_step"] for h in one["by_head"]) / total
                     for i in range(len(one["edges"]))]
            series.append(plot.Series(f"{one['model']}, {one['tokens']:,}", [
                (100 * e, 100 * c) for e, c in zip(one["edges"], curve) if e >= 2 ** -9]))
        return "\n\n".join([
            table(["model", "tokens", "steps", "pages a step", "pages", "5 %", "10 %", "20 %",
                   "40 %", "first touches, %", "ever touched, %", "again at the next step, %, "
                   "by layer"], rows),
            self.draw("locality", "Pages hit by an LRU cache", series,
                      plot.Axis("cache, % of all pages", True), plot.Axis("hits, %"))])

    def promise(self) -> str:
        """The promised mass against what it promises."""
        if not self.unseen:
            return ""
        rows, groups, series = [], [], []
        for one in sorted(self.unseen, key=lambda r: (r["model"], r["tokens"])):
            name = f"{one['model']}, {one['tokens']:,}"
            c = one["rank_correlation"]
            rows.append([one["model"], f"{one['tokens']:,}", f"{one['predicted']:.4f}",
                         f"{one['true']:.4f}", f"{one['error']:.4f}", f"{one['change']:.4f}",
                         *(f"{c[k]:.2f}" for k in ("true_mass", "output_error",
                                                   "change_of_the_token"))])
            groups += [[name, str(i + 1), *(f"{x:.4f}" for x in g)]
                       for i, g in enumerate(one["groups"])]
            series.append(plot.Series(name, [(g[0], g[2]) for g in one["groups"]]))
        return "\n\n".join([
            table(["model", "tokens", "predicted unseen", "true unseen", "error of the output",
                   "change of the token", "rank correlation with the true mass",
                   "with the output's error", "of a token's mean with its change"], rows),
            self.draw("unseen", "Error of attention's output by predicted unseen mass", series,
                      plot.Axis("predicted unseen mass"), plot.Axis("relative error")),
            "Reads sorted by the prediction, tenth by tenth:",
            table(["documents", "tenth", "predicted unseen", "true unseen", "error of the output"],
                  groups)])

    def builds(self) -> str:
        """How long indexes take to build, all layers; candidates with an index of their own."""
        rows, seen = [], set()
        for row in self.text:
            if row["build_s"] >= 0.001 and (row["table"] == "systems" or row["table"] ==
                                            "candidates" and row["system"] in OWN_INDEX):
                key = row["system"], row["tokens"]
                if key not in seen and row["factor"] == 1.0:
                    seen.add(key)
                    rows.append((row["tokens"], -row["build_s"], row["system"]))
        return table(["tokens", "system", "build of all layers and heads, s"],
                     [[f"{t:,}", name, f"{-b:.3f}"] for t, b, name in sorted(rows)])

    def keys(self) -> str:
        """Indexes over keys, averaged over layers."""
        rows = []
        for name in dict.fromkeys(one["index"] for one in self.indexes):
            here = [one for one in self.indexes if one["index"] == name]
            row = [name, f"{here[0]['keys']:,}",
                   f"{1000 * collect.mean(one['build_s'] for one in here):.0f}"]
            for kind in ("own", "queries"):
                row += [f"{collect.mean(one[kind][what] for one in here):{form}}"
                        for what, form in (("recall", ".2f"), ("scored", ",.0f"), ("us", ".0f"))]
            if name == "RetrievalAttention":
                row[5] = row[8] = "-"  # its search is PyTorch's small steps: no time to compare
            rows.append(row)
        return rows and table(
            ["index", "keys", "build, ms of CPU", "asked by keys: recall", "keys scored", "us",
             "asked by queries: recall", "keys scored", "us"], rows)

    def blocks(self) -> dict:
        """What makes each block of the document."""
        return {
            "setup": self.setup, "systems": self.systems, "candidates": self.candidates,
            "promised": lambda: self.plain("promise", catalogue.promised()),
            "micro": lambda: self.plain("micro", catalogue.micro()), "growing": self.growing,
            "needles": self.needles, "locality": self.local, "unseen": self.promise,
            "builds": self.builds, "indexes": self.keys,
            **study_report.blocks(self.lines, self.text)}

    def _pages(self, target: pathlib.Path) -> dict[str, pathlib.Path]:
        """Returns the page that has each block: evaluation.md or one in the folder beside it."""
        found = {}
        for page in (target, *sorted((target.parent / "evaluation").glob("*.md"))):
            for name in re.findall(r"<!-- ([\w-]+): begin -->", page.read_text(encoding="utf-8")):
                found.setdefault(name, page)
        return found

    def write(self, target: pathlib.Path, only: tuple[str, ...] = ()) -> None:
        """Replaces the blocks of the pages and writes the figures; or only the blocks named.

        Raises ValueError for a block that there is not, before anything is written.
        """
        blocks = self.blocks()
        if unknown := [name for name in only if name not in blocks]:
            raise ValueError(f"no block {', '.join(unknown)}; there are {', '.join(blocks)}")
        pages = self._pages(target)
        for name in only or blocks:
            replace_block(pages.get(name, target), name, f"\n{blocks[name]() or 'Not measured.'}\n")
        if only:
            return
        (self.folder / "results.json").write_text(json.dumps(
            {"setup": self.setups, "text": self.text, "needle": self.needle,
             "unseen": self.unseen, "indexes": self.indexes}, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")
        (self.folder / "locality.json").write_text(json.dumps(
            self.locality, separators=(",", ":")) + "\n", encoding="utf-8")


def _questions(rows, task, needles):
    counts = {r["questions"] for r in rows if (r["task"], r["needles"]) == (task, needles)}
    return "/".join(map(str, sorted(counts)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=pathlib.Path, nargs="+", help="of evaluate.py")
    parser.add_argument("folder", type=pathlib.Path, help="has evaluation.md")
    parser.add_argument("--only", type=lambda text: tuple(text.split(",")), default=(),
                        help="blocks to write, with commas: what others rest on may be elsewhere")
    arguments = parser.parse_args()
    try:
        lines = collect.read_lines(arguments.results)
        if not lines:
            sys.exit(f"report: no measurements in {', '.join(map(str, arguments.results))}")
        Report(lines, arguments.folder).write(arguments.folder / "evaluation.md", arguments.only)
    except (OSError, ValueError) as error:
        sys.exit(f"report: {error}")


if __name__ == "__main__":
    main()
