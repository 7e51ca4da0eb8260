"""Writes results into Markdown, between marker comments, and draws the plot.

    python3 -m tools.needle.report results models/needle/results.jsonl models/needle/README.md
    python3 -m tools.needle.report study study.jsonl docs/decisions/0004-wave-index-ranking.md

`results` takes what evaluate.py wrote and also draws accuracy.svg beside the file; `study` takes
what study.py wrote. Text outside the markers stays as it is.
"""

import argparse
import collections
import json
import math
import pathlib
import sys

from . import tasks

FEW_QUESTIONS = 50  # with fewer an interval stands beside what was right
POLICY_NAMES = {"full": "full", "wave": "wave", "wave-paper": "wave, the paper's index"}


def replace_block(path: pathlib.Path, name: str, block: str) -> None:
    """Replaces what stands between the markers of `name`.

    Raises ValueError when the file does not have them.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = path.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        raise ValueError(f"{path} needs the lines {begin} and {end}")
    head, rest = text.split(begin, 1)
    tail = rest.split(end, 1)[1]
    path.write_text(f"{head}{begin}\n{block}\n{end}{tail}", encoding="utf-8")


def table(header: list[str], rows: list[list[str]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def size_name(length: int) -> str:
    """Returns 128K for 131072."""
    return f"{length // 1024}K"


def interval(right: int, questions: int) -> tuple[float, float]:
    """Returns Wilson's interval of 95 % for the share of right answers."""
    if not 0 <= right <= questions or questions == 0:
        raise ValueError(f"{right} right of {questions} questions")
    z, share = 1.959964, right / questions
    centre = share + z * z / (2 * questions)
    half = z * math.sqrt(share * (1 - share) / questions + (z / (2 * questions)) ** 2)
    scale = 1 + z * z / questions
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def with_interval(text: str, right: int, questions: int) -> str:
    """Returns `text` with the interval in per cent behind it, if few were asked."""
    if questions >= FEW_QUESTIONS:
        return text
    low, high = (100 * end for end in interval(right, questions))
    return f"{text} [{low:.0f}, {high:.0f}]"


class Results:
    """Exact match by policy, task and length."""

    def __init__(self, lines: list[dict]):
        self._share = {}
        self._shown = {}
        self.questions = {}
        for line in lines:
            if "needles" in line:
                continue
            key = line["policy"], line["task"], line["length"]
            self._share[key] = 100 * line["right"] / line["questions"]
            self._shown[key] = _shown(line)
            self.questions[line["task"]] = line["questions"]
        self.lengths = sorted({length for _, _, length in self._share})
        self.policies = [p for p in POLICY_NAMES if any(key[0] == p for key in self._share)]
        self.tasks = [task for task in tasks.TASKS if task in self.questions]

    def share(self, policy: str, task: str, length: int) -> float:
        """Returns the percentage of right answers."""
        return self._share[policy, task, length]

    def mean(self, policy: str, length: int) -> float:
        """Returns the average over the tasks."""
        shares = [self.share(policy, task, length) for task in self.tasks]
        return sum(shares) / len(shares)

    def by_task(self, policy: str) -> str:
        """Returns the table of one policy."""
        rows = [[task.replace("_", " "), str(self.questions[task]),
                 *(self._shown[policy, task, length] for length in self.lengths)]
                for task in self.tasks]
        rows.append(["average of the tasks", "",
                     *(f"{self.mean(policy, length):.1f}" for length in self.lengths)])
        return table(["task", "questions a cell", *map(size_name, self.lengths)], rows)


def _shown(line: dict) -> str:
    return with_interval(f"{100 * line['right'] / line['questions']:.1f}", line["right"],
                         line["questions"])


def needles_table(lines: list[dict]) -> str:
    """Returns the table of runs with another number of needles."""
    rows = collections.defaultdict(dict)
    for line in lines:
        if "needles" in line:
            key = line["length"], line["needles"], line["questions"]
            rows[key][line["policy"]] = _shown(line)
    return table(["length", "needles", "questions", *POLICY_NAMES.values()], [
        [size_name(length), str(needles), str(questions), *map(shares.get, POLICY_NAMES)]
        for (length, needles, questions), shares in sorted(rows.items())])


def draw(results: Results, path: pathlib.Path) -> None:
    """Draws the averages by length."""
    import matplotlib
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "needle"
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(7, 3.6))
    for policy, mark in zip(results.policies, "osD"):
        axes.plot(range(len(results.lengths)),
                  [results.mean(policy, length) for length in results.lengths],
                  marker=mark, label=POLICY_NAMES[policy])
    axes.set_xticks(range(len(results.lengths)), map(size_name, results.lengths))
    axes.set_xlabel("length, tokens")
    axes.set_ylabel("exact match, %\n(average of the tasks)")
    axes.set_ylim(80, 101)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def write_results(lines: list[dict], target: pathlib.Path) -> None:
    """Writes the tables of evaluate.py's results and the plot."""
    results = Results(lines)
    parts = []
    for policy in results.policies:
        parts += [f"Exact match in per cent, {POLICY_NAMES[policy]} attention:"
                  if policy == "full" else f"Exact match in per cent, {POLICY_NAMES[policy]}:",
                  results.by_task(policy)]
    if any("needles" in line for line in lines):
        parts += ["Multi-key with more needles, up to every sentence being one:",
                  needles_table(lines)]
    draw(results, target.parent / "accuracy.svg")
    parts.append("![Exact match by length and policy](accuracy.svg)")
    replace_block(target, "results", "\n" + "\n\n".join(parts) + "\n")


def write_study(lines: list[dict], target: pathlib.Path, block: str) -> None:
    """Writes the table of study.py's variants, and that of the paper's misses if counted."""
    right, read = collections.Counter(), collections.Counter()
    for line in (line for line in lines if "variant" in line):
        key = line["variant"], line["length"]
        right[*key, line["task"]] += 100 * line["right"] / line["questions"]
        read[*key, "bytes"] += line["bytes"]
        read[*key, "steps"] += line["steps"]
    variants = list(dict.fromkeys(line["variant"] for line in lines if "variant" in line))
    lengths = sorted({length for _, length, _ in right})
    rows = []
    for variant in variants:
        row = [variant]
        for length in lengths:
            shares = [value for key, value in right.items() if key[:2] == (variant, length)]
            steps = read[variant, length, "steps"]
            row.append(f"{sum(shares) / len(shares):.1f}")
            row.append(f"{read[variant, length, 'bytes'] / steps / 1e6:.2f}" if steps else "")
        rows.append(row)
    header = ["variant"] + [part for length in lengths for part in (size_name(length), "MB")]
    parts = [table(header, rows)]
    misses = [line for line in lines if "misses" in line]
    if misses:
        parts.append(_misses_table(misses))
    replace_block(target, block, "\n" + "\n\n".join(parts) + "\n")


def _misses_table(lines: list[dict]) -> str:
    rows = []
    for line in lines:
        found = line["misses"]
        sharp, missed = sum(found["sharp"]), sum(found["missed"])
        shares = [f"{100 * m / s:.0f}" if s >= 20 else "-"
                  for s, m in zip(found["sharp"], found["missed"])]
        rows.append([size_name(line["length"]), str(found["layer"]), str(sharp),
                     f"{100 * missed / max(1, sharp):.1f}", ", ".join(shares),
                     f"{found['median_rank'] or 0:.0f}"])
    return table(["length", "layer", "sharp reads", "missed, %", "by head, %",
                  "median rank of the missed"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("results", "study"))
    parser.add_argument("source", type=pathlib.Path, help="JSON lines")
    parser.add_argument("target", type=pathlib.Path, help="Markdown file with markers")
    parser.add_argument("--block", default="study", help="marker's name, for study")
    arguments = parser.parse_args()
    try:
        text = arguments.source.read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
        if arguments.kind == "results":
            write_results(lines, arguments.target)
        else:
            write_study(lines, arguments.target, arguments.block)
    except (OSError, ValueError) as error:
        sys.exit(f"report: {error}")


if __name__ == "__main__":
    main()
