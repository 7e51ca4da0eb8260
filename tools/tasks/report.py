"""Writes the tables of real tasks from what evaluate.py measured.

    python3 -m tools.tasks.report docs/evaluation/tasks.jsonl docs/evaluation/real-checkpoints.md
    python3 -m tools.tasks.report tasks.jsonl                   # prints them

Lines of several runs may stand in one file: the last of a key counts. A question counts where it
was measured under the setting and under `full` of the same server, so that rows can be compared.
"""

import argparse
import collections
import math
import pathlib
import sys

from tools.lab.results import read_lines
from tools.needle.report import replace_block, table

from . import ruler

FULL = "full"
PARTS = {"ruler": "tasks", "manuals": "manual", "long": "long"}
NEVER = -100.0  # stands for the log-probability of what the model holds for impossible


def mean(values) -> float:
    """Returns the mean, 0 of none."""
    values = list(values)
    return sum(values) / len(values) if values else 0.0


def _groups(lines, part):
    """Returns lines by model, label and length, then by what was asked, then by setting."""
    found: dict = collections.defaultdict(lambda: collections.defaultdict(dict))
    for line in lines:
        if line["key"][0] != part:
            continue
        *asked, model, label, setting = line["key"]
        found[model, label, tuple(_where(part, asked))][tuple(asked)][setting] = line
    return found


def _where(part, asked):
    """Returns what belongs into a table's title."""
    return asked[1:2] if part != "long" else asked[1:3]


def logprob(line: dict) -> float:
    """Returns the log-probability of the right answer."""
    return sum(NEVER if one is None else max(NEVER, one) for one in line["logprobs"])


def compared(asked: dict, setting: str) -> list[tuple[dict, dict]]:
    """Returns (full's line, the setting's line) of each question that has both."""
    return [(by[FULL], by[setting]) for _, by in sorted(asked.items(), key=str)
            if FULL in by and setting in by]


def question_row(pairs: list[tuple[dict, dict]]) -> list[str]:
    """Returns the cells of a row of questions."""
    changes = [logprob(there) - logprob(full) for full, there in pairs]
    tokens = sum(len(full["logprobs"]) for full, _ in pairs)
    each = sum(abs((b if b is not None else NEVER) - (a if a is not None else NEVER))
               for full, there in pairs
               for a, b in zip(full["logprobs"], there["logprobs"])) / max(1, tokens)
    right = [[one[n]["right"] for one in pairs] for n in (0, 1)]
    lost, won = (sum(b < a if lost else b > a for a, b in zip(*right)) for lost in (True, False))
    return [f"{len(pairs)}", *(f"{100 * mean(one):.1f}" for one in right), f"{lost} / {won}",
            f"{mean(logprob(full) for full, _ in pairs):.2f}", f"{mean(changes):+.3f}",
            f"{mean(map(abs, changes)):.3f}", f"{min(changes):+.2f}", f"{each:.4f}",
            f"{100 * mean(there['kv_read'] for _, there in pairs):.0f}"]


QUESTION_HEAD = ["questions", "right, full %", "right %", "lost / won", "log p, full", "change",
                 "size", "worst", "a token", "KV read %"]


def questions(lines: list[dict], part: str) -> str:
    """Returns the tables of RULER's tasks or of manuals, a row for each task and setting."""
    blocks = []
    for (model, label, (length,)), asked in sorted(_groups(lines, part).items(), key=str):
        settings = sorted({one for by in asked.values() for one in by} - {FULL})
        body = []
        for setting in settings:
            kinds = sorted({key[2] for key in asked}, key=lambda one: (_order(one), one))
            for kind in kinds:
                pairs = compared({k: v for k, v in asked.items() if k[2] == kind}, setting)
                if pairs:
                    body.append([setting, kind, *question_row(pairs)])
            pairs = compared(asked, setting)
            if pairs and len(kinds) > 1:
                body.append([setting, "**all**", *question_row(pairs)])
        if body:
            blocks.append(f"{model}, {label}, {length:,} tokens:\n\n"
                          + table(["setting", "asked", *QUESTION_HEAD], body))
    return "\n\n".join(blocks)


def _order(task):
    return list(ruler.TASKS).index(task) if task in ruler.TASKS else 0


def long_answers(lines: list[dict]) -> str:
    """Returns tables of perplexity and repeated 8-grams by stretch of an answer."""
    blocks = []
    for (model, label, (context, tokens)), asked in sorted(_groups(lines, "long").items(), key=str):
        rows = collections.defaultdict(list)
        for key, by in asked.items():
            for setting, line in by.items():
                rows[key[3], setting].append(line)
        width = max(len(line["stretches"]) for some in rows.values() for line in some)
        body = []
        for (mode, setting), some in sorted(rows.items()):
            cells = [_stretch([line["stretches"][n] for line in some
                               if n < len(line["stretches"])]) for n in range(width)]
            whole = _stretch([one for line in some for one in line["stretches"]])
            body.append([mode, setting, f"{len(some)}", *cells, whole, f"{_worst(some):.0f}",
                         f"{100 * mean(line['kv_read'] for line in some):.0f}"])
        head = ["drawn", "setting", "answers", *(f"{n + 1}K" for n in range(width)), "all",
                "most repeated %", "KV read %"]
        blocks.append(f"{model}, {label}, {tokens:,} tokens behind {context:,}; perplexity under "
                      "full / repeated 8-grams %:\n\n" + table(head, body))
    return "\n\n".join(blocks)


def _stretch(parts):
    tokens, grams = (sum(one[name] for one in parts) for name in ("tokens", "grams"))
    if not tokens:
        return "-"
    perplexity = math.exp(-sum(one["logprob"] for one in parts) / tokens)
    repeated = 100 * sum(one["repeated"] for one in parts) / max(1, grams)
    return f"{perplexity:.2f} / {repeated:.0f}"


def _worst(lines):
    """Returns the largest share of repeated 8-grams in the last stretch of an answer, in %."""
    return max(100 * line["stretches"][-1]["repeated"] / max(1, line["stretches"][-1]["grams"])
               for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("page", type=pathlib.Path, nargs="?")
    arguments = parser.parse_args()
    lines = read_lines([arguments.results])
    blocks = {PARTS[part]: long_answers(lines) if part == "long" else questions(lines, part)
              for part in PARTS}
    for name, block in blocks.items():
        if block and arguments.page:
            replace_block(arguments.page, name, block)
        elif block:
            print(f"{block}\n")
    if not any(blocks.values()):
        print(f"{arguments.results} has no question that was measured under {FULL} and another "
              "setting, and no long answer", file=sys.stderr)


if __name__ == "__main__":
    main()
