"""What share of a context's pages an answer touches, from recorded retrievals.

    python3 -m tools.lab.touched TRACE.xz ... [--question 64] [--answer 200]

An answer is that many consecutive steps of a trace; the question before it would be as many steps if its tokens attended by
the index, which they do not: they attend to everything. Windows begin every --stride steps. All pages are estimated from the
tokens of the index's clusters, by the mean fill of the pages that the trace has.
"""

import argparse
import json
import pathlib
import statistics

from tools.lab import trace


def touched_pages(steps: list[trace.Step]) -> int:
    """Returns the pages of all clusters that any of the steps has read, each once."""
    pages: dict[tuple[int, int], int] = {}
    for step in steps:
        for head, clusters in enumerate(step.heads):
            for cluster in clusters:
                pages[head, cluster.number] = cluster.pages
    return sum(pages.values())


def all_pages(recorded: trace.Trace, tokens_per_cluster: int = 16) -> float:
    """Estimates the pages of all clusters: what was never read is taken to be like what was."""
    pages: dict[tuple[int, int], int] = {}
    for step in recorded.steps:
        for head, clusters in enumerate(step.heads):
            for cluster in clusters:
                pages[head, cluster.number] = cluster.pages
    # A cluster that was never read may be small: a full page for each is the least of a cluster of 16 tokens.
    least = tokens_per_cluster / recorded.tokens_per_page
    everything = recorded.steps[0].clusters * recorded.layers * recorded.kv_heads
    return sum(pages.values()) + (everything - len(pages)) * least


def shares(recorded: trace.Trace, question: int, answer: int, stride: int) -> dict:
    """Returns the mean share of all pages that an answer, and a question before it too, touches."""
    whole = all_pages(recorded)
    count = len(recorded.steps) - question - answer + 1
    if count < 1:
        raise ValueError(f"{question + answer} steps are wanted, the trace has {len(recorded.steps)}")
    answers, both = [], []
    for first in range(0, count, stride):
        steps = recorded.steps[first:first + question + answer]
        answers.append(touched_pages(steps[question:]) / whole)
        both.append(touched_pages(steps) / whole)
    return {"tokens": recorded.steps[0].tokens, "pages": round(whole), "windows": len(both),
            "answer": statistics.mean(answers), "question_and_answer": statistics.mean(both),
            "most": max(both)}


def main() -> None:
    """Prints a line of JSON for each trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=pathlib.Path)
    parser.add_argument("--question", type=int, default=64, help="steps before the answer")
    parser.add_argument("--answer", type=int, default=200, help="steps of the answer")
    parser.add_argument("--stride", type=int, default=92, help="steps between two windows")
    arguments = parser.parse_args()
    for path in arguments.traces:
        found = shares(trace.load(path), arguments.question, arguments.answer, arguments.stride)
        print(json.dumps({"trace": path.name.split(".")[0], **found}), flush=True)


if __name__ == "__main__":
    main()
