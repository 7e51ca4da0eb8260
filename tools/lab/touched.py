"""What share of a context's pages an answer touches, from recorded retrievals.

    python3 -m tools.lab.touched TRACE.xz ... [--question 64] [--answer 200] [--runs FILE]

An answer is that many consecutive steps of a trace. The question before it would be as many steps if its tokens attended by the
index, which they do not: they attend to everything. Windows begin every --stride steps. Pages of clusters that the trace never
read are estimated as full pages of 16 tokens. A chunk is what the disk checks with one checksum (256 KiB, 128 pages), with the
clusters of a head in the order of the index: a read by cluster reads whole chunks. Neighbouring pages that the question of the
first window touches are a run, which a disk can read at once; --runs writes those of the last trace, for segment_storage_bench.
"""

import argparse
import json
import pathlib
import statistics

from tools.lab import trace

TOKENS_PER_CLUSTER = 16
Key = tuple[int, int]  # head, cluster


def pages_of(steps: list[trace.Step]) -> dict[Key, int]:
    """Returns the pages of each cluster that any of the steps has read."""
    return {(head, cluster.number): cluster.pages
            for step in steps for head, clusters in enumerate(step.heads) for cluster in clusters}


class Context:
    """All clusters of a trace's context: their pages, and the chunks that these lie in."""

    def __init__(self, recorded: trace.Trace, chunk_pages: int):
        known = pages_of(recorded.steps)
        unread = TOKENS_PER_CLUSTER / recorded.tokens_per_page
        self.pages: dict[Key, float] = {}
        self.chunks: dict[Key, set[int]] = {}
        at = 0.0
        for head in range(recorded.layers * recorded.kv_heads):
            for number in range(recorded.steps[0].clusters):
                key = head, number
                self.pages[key] = known.get(key, unread)
                end = at + self.pages[key]
                self.chunks[key] = set(range(int(at // chunk_pages), int(-(-end // chunk_pages))))
                at = end
        self.num_pages = at
        self.num_chunks = int(-(-at // chunk_pages))

    def runs(self, steps: list[trace.Step]) -> list[tuple[int, int]]:
        """Returns the pages that the steps read, from all pages' beginning, as runs of neighbours: the first one, how many."""
        touched = pages_of(steps)
        runs: list[tuple[int, int]] = []
        at = 0.0
        for key, pages in self.pages.items():
            first, at = round(at), at + pages
            if key not in touched or round(at) == first:
                continue
            if runs and sum(runs[-1]) == first:
                first = runs.pop()[0]
            runs.append((first, round(at) - first))
        return runs

    def page_share(self, steps: list[trace.Step]) -> float:
        """Returns the share of all pages that the steps read."""
        return sum(pages_of(steps).values()) / self.num_pages

    def chunk_share(self, steps: list[trace.Step]) -> float:
        """Returns the share of all chunks that have a page which the steps read."""
        touched: set[int] = set()
        for key in pages_of(steps):
            touched |= self.chunks.get(key, set())
        return len(touched) / self.num_chunks


def shares(recorded: trace.Trace, question: int, answer: int, stride: int, chunk_pages: int) -> dict:
    """Returns mean shares over all windows: of an answer, and of a question with its answer."""
    count = len(recorded.steps) - question - answer + 1
    if count < 1:
        raise ValueError(f"{question + answer} steps are wanted, the trace has {len(recorded.steps)}")
    context = Context(recorded, chunk_pages)
    windows = [recorded.steps[first:first + question + answer] for first in range(0, count, stride)]
    runs = [context.runs(window[:question]) for window in windows] if question > 0 else []
    return {"tokens": recorded.steps[0].tokens, "pages": round(context.num_pages), "windows": len(windows),
            "question": statistics.mean(context.page_share(window[:question]) for window in windows),
            "pages_a_run": statistics.mean(context.page_share(window[:question]) * context.num_pages / max(1, len(of))
                                           for window, of in zip(windows, runs)) if runs else 0,
            "answer": statistics.mean(context.page_share(window[question:]) for window in windows),
            "question_and_answer": statistics.mean(context.page_share(window) for window in windows),
            "chunks": statistics.mean(context.chunk_share(window) for window in windows)}


def main() -> None:
    """Prints a line of JSON for each trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=pathlib.Path)
    parser.add_argument("--question", type=int, default=64, help="steps before the answer")
    parser.add_argument("--answer", type=int, default=200, help="steps of the answer")
    parser.add_argument("--stride", type=int, default=92, help="steps between two windows")
    parser.add_argument("--chunk-pages", type=int, default=128, help="pages of a chunk")
    parser.add_argument("--runs", type=pathlib.Path, help="where to write the runs of the first question")
    arguments = parser.parse_args()
    for path in arguments.traces:
        found = shares(trace.load(path), arguments.question, arguments.answer, arguments.stride, arguments.chunk_pages)
        print(json.dumps({"trace": path.name.split(".")[0], **found}), flush=True)
        if arguments.runs is not None:
            recorded = trace.load(path)
            runs = Context(recorded, arguments.chunk_pages).runs(recorded.steps[:arguments.question])
            arguments.runs.write_text("".join(f"{first} {count}\n" for first, count in runs))


if __name__ == "__main__":
    main()
