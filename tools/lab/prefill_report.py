"""Writes docs/evaluation/sparse-prefill.md's tables from what the programs of prefill measured.

    python3 -m tools.lab.prefill_report docs/evaluation/sparse-prefill.jsonl docs/evaluation/sparse-prefill.md

Lines of several runs may stand in one file: the last of a key counts. What stands around the
markers is written by hand.
"""

import pathlib
import re
import sys

from tools.needle.report import replace_block

from . import indexed_tails, needle_prefill, prefill_tasks, sparse_prefill, tail_tasks
from .results import read_lines

PROGRAMS = {"text": sparse_prefill, "answers": prefill_tasks, "needles": needle_prefill,
            "tails": indexed_tails, "tail-answers": tail_tasks}


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python3 -m tools.lab.prefill_report RESULTS.jsonl PAGE.md")
    lines, page = read_lines([pathlib.Path(sys.argv[1])]), pathlib.Path(sys.argv[2])
    for name in re.findall(r"<!-- ([\w-]+): begin -->", page.read_text(encoding="utf-8")):
        replace_block(page, name, PROGRAMS[name].report(lines))


if __name__ == "__main__":
    main()
