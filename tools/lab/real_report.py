"""Writes docs/evaluation/real-checkpoints.md's tables from what `evaluate.py --part real` measured.

    python3 -m tools.lab.real_report docs/evaluation/real.jsonl docs/evaluation/real-checkpoints.md

Lines of several runs may stand in one file: the last of a key counts. What stands around the
markers is written by hand.
"""

import collections
import pathlib
import sys

from tools.needle.report import replace_block, table

from .collect import ALL, error_of, mean, read_lines
from .measures import Sums
from .real_text import KEY_FORMS, rows

KINDS = ("code", "prose")


def measured(lines: list[dict], part: str) -> dict[tuple, list[dict]]:
    """Returns documents by model, length, row and kind of text."""
    found = collections.defaultdict(list)
    for line in lines:
        if line["key"][0] != part:
            continue
        _, model, tokens, _, name, _, row = line["key"]
        whole = Sums()
        for one in line["bins"]:
            whole = whole.add(Sums(**one))
        found[model, tokens, row, name.split("_")[0]].append(
            {**whole.measures(), "read": line["read"]})
    return found


def cell(documents: list[dict]) -> str:
    """Returns perplexity over full's, the mean change with its error, and top-1 agreement."""
    if not documents:
        return "-"
    change = [one["mean_change"] for one in documents]
    error = error_of(change)
    ratio = mean(one["perplexity_ratio"] for one in documents)
    top = mean(one["top1_agreement"] for one in documents)
    return (f"{ratio:.3f} / {mean(change):.3f}" + (f" ± {error:.3f}" if error else "")
            + f" / {100 * top:.1f}")


def block(lines: list[dict], part: str, order: list[str]) -> str:
    """Returns a table for each model and length."""
    found, parts = measured(lines, part), []
    for model, tokens in sorted({key[:2] for key in found}):
        body = []
        for row in order:
            here = {kind: found.get((model, tokens, row, kind), []) for kind in KINDS}
            documents = [one for kind in KINDS for one in here[kind]]
            if not documents:
                continue
            read = [mean(one["read"].get(kind, 0.0) for one in documents) / 1e6 for kind in ALL]
            size = [f"{part:.1f}" for part in [*read, sum(read)]] if sum(read) else []
            body.append([row, *size, *(cell(here[kind]) for kind in KINDS)])
        counts = [max(len(found.get((model, tokens, row, kind), [])) for row in order)
                  for kind in KINDS]
        sizes = ["index MB", "sums MB", "pages MB", "MB a step"] if len(body[0]) > 3 else []
        parts += [f"{model}, documents of {tokens:,} tokens ({counts[0]} of code, {counts[1]} of "
                  "prose), 512 tokens behind each; perplexity over full's / mean change / top-1 %:",
                  table(["setting", *sizes, *KINDS], body)]
    return "\n\n".join(parts)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python3 -m tools.lab.real_report RESULTS.jsonl PAGE.md")
    lines, page = read_lines([pathlib.Path(sys.argv[1])]), pathlib.Path(sys.argv[2])
    replace_block(page, "systems", block(lines, "real", [row.name for row in rows()]))
    replace_block(page, "forms", block(lines, "real forms", list(KEY_FORMS)))


if __name__ == "__main__":
    main()
