"""The index study: accuracy and bytes read of variants of the wave index, on the same documents.

    python3 -m tools.needle.study --length 32768 --results study.jsonl

Each document is prefilled once; every variant then answers the same questions about it. Variants
with the same clustering share an index. `--misses` also counts, under the paper's index, how
often the token with the largest weight lies in a cluster that was not retrieved.
"""

import argparse
import dataclasses
import json
import pathlib
import time

import torch

from . import bpe, evaluate, generate, model as llama, prompt, tasks
from .session import Session, WavePolicy
from .wave import PAPER, Settings, bytes_read

BEST = Settings(centre=True, rank="max")
_vary = dataclasses.replace

VARIANTS: dict[str, Settings | None] = {
    "full": None,
    "paper": PAPER,
    "centred": Settings(centre=True),
    "max": Settings(rank="max"),
    "centred, max": BEST,
    "radius 1": Settings(radius=1.0),
    "centred, max, radius 0.5": _vary(BEST, radius=0.5),
    "centred, max, deviation 0.5": _vary(BEST, deviation=0.5),
    "centred, max, deviation 1": _vary(BEST, deviation=1.0),
    "centred, max, moment": _vary(BEST, moment=1.0),
    "centred, max, size": _vary(BEST, size=True),
    "centred, max, 20 rounds": _vary(BEST, iterations=20),
    "centred, max, 4 rounds": _vary(BEST, iterations=4),
    "centred, max, spread start": _vary(BEST, start="spread"),
    "centred, max, euclidean": _vary(BEST, euclidean=True),
    "centred, max, at most 32": _vary(BEST, largest=32),
    "centred, max, clusters of 8": _vary(BEST, cluster_tokens=8),
    "centred, max, late layers": _vary(BEST, layer_shares=(0.5, 0.5, 1.0, 1.5, 1.5)),
    "centred, max, early layers": _vary(BEST, layer_shares=(1.5, 1.5, 1.0, 0.5, 0.5)),
    "centred, max, no estimation": _vary(BEST, estimation_ratio=0.0),
    "centred, max, twice the retrieval": _vary(BEST, retrieval_ratio=0.036, least_clusters=128),
    "max, radius 0.25": Settings(rank="max", radius=0.25),
    "max, radius 0.5": Settings(rank="max", radius=0.5),
    "radius 0.5": Settings(radius=0.5),
    "deviation 0.5": Settings(deviation=0.5),
    "max, deviation 0.5": Settings(rank="max", deviation=0.5),
    "max, deviation 0.75": Settings(rank="max", deviation=0.75),
    "spread start": Settings(start="spread"),
    "max, spread start, deviation 0.5": Settings(rank="max", start="spread", deviation=0.5),
}
_CLUSTERING = ("centre", "euclidean", "start", "iterations", "cluster_tokens", "largest")


class Misses:
    """Counts by layer and head of the tokens that dense attention wants most."""

    def __init__(self, least_weight: float = 0.3):
        self._least = least_weight
        self._counts: dict[int, torch.Tensor] = {}
        self._ranks: dict[int, list[torch.Tensor]] = {}

    def add(self, layer, index, logits, ranking, retrieved) -> None:
        """Takes one step: logits [b, h, g, t] of the document, ranking and choice [b, h, c]."""
        weights, tokens = logits.softmax(-1).max(-1)
        clusters = index.owner.expand(len(logits), -1, -1).gather(-1, tokens)
        inside = (weights > self._least) & (clusters < ranking.shape[-1])
        known = clusters.clamp(max=ranking.shape[-1] - 1)
        missed = inside & ~retrieved.gather(-1, known)
        counts = torch.stack([inside.sum(0), missed.sum(0)]).flatten(1)
        self._counts[layer] = self._counts.get(layer, 0) + counts
        rank = (ranking[:, :, None] > ranking.gather(-1, known)[..., None]).sum(-1)
        self._ranks.setdefault(layer, []).append(rank[missed].flatten())

    def lines(self) -> list[dict]:
        """Returns a line a layer: steps with a sharp head, misses by head, median rank of those."""
        found = []
        for layer, (inside, missed) in sorted(self._counts.items()):
            ranks = torch.cat(self._ranks[layer]).float()
            found.append({"layer": layer, "sharp": inside.tolist(), "missed": missed.tolist(),
                          "median_rank": ranks.median().item() if len(ranks) else None})
        return found


class StudyPolicy(WavePolicy):
    """Wave attention that counts the bytes it reads and reports what it did not retrieve."""

    misses: Misses | None = None
    steps = 0
    bytes: torch.Tensor | float = 0.0

    def observe(self, layer, queries, logits, ranking, retrieved, estimated) -> None:
        self.steps += layer == 0
        self.bytes += bytes_read(self.indexes[layer], retrieved, estimated, self.settings)
        if self.misses:
            self.misses.add(layer, self.indexes[layer], logits, ranking, retrieved)


class Study:
    """Runs the variants and keeps the sums."""

    def __init__(self, arguments):
        torch.backends.cuda.matmul.allow_tf32 = True
        self._encoder = bpe.Encoder(arguments.model)
        self._generator = generate.Generator(self._encoder, "eval", arguments.seed)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = llama.load(arguments.model, device)
        self._variants = {name: VARIANTS[name] for name in arguments.variant or VARIANTS}
        self.misses = Misses() if arguments.misses else None
        self.seconds: dict[str, float] = {}

    def run(self, task: str, length: int, questions: int) -> list[dict]:
        """Asks at least `questions` questions; returns a line a variant."""
        lines = {name: {"variant": name, "task": task, "length": length, "right": 0,
                        "questions": 0, "bytes": 0.0, "steps": 0} for name in self._variants}
        index = 0
        while any(line["questions"] < questions for line in lines.values()):
            self._document(task, length, index, lines)
            index += 1
        return list(lines.values())

    def _document(self, task, length, index, lines) -> None:
        document, asked = self._generator.make(task, length, index)
        asked = [q for q in asked if q.task == task][:evaluate.QUESTIONS_PER_DOCUMENT[task]]
        begin, end = map(self._encoder.special, (prompt.BEGIN_OF_TEXT, prompt.END_OF_TEXT))
        session = Session(self._model, [begin, *document.ids(self._encoder)], end)
        rows = [self._encoder.encode(prompt.question_text(q.text)) for q in asked]
        tokens = session.tokens + max(map(len, rows))
        indexes: dict[tuple, list] = {}
        for name, settings in self._variants.items():
            began = time.monotonic()
            policy = settings and self._policy(session, settings, tokens, indexes, name)
            texts = map(self._encoder.decode,
                        session.answer(rows, evaluate.MAX_ANSWER_TOKENS, policy))
            line = lines[name]
            line["right"] += sum(map(evaluate.is_right, asked, texts))
            line["questions"] += len(asked)
            if policy:
                line["bytes"] += float(policy.bytes)
                line["steps"] += policy.steps
            self.seconds[name] = self.seconds.get(name, 0) + time.monotonic() - began

    def _policy(self, session, settings, tokens, indexes, name) -> StudyPolicy:
        clustering = tuple(getattr(settings, field) for field in _CLUSTERING)
        policy = StudyPolicy(session, settings, tokens, indexes.get(clustering))
        indexes[clustering] = policy.indexes
        policy.misses = self.misses if name == "paper" else None
        return policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, default=generate.DEFAULT_MODEL)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--task", action="append", help="may be repeated (default: all)")
    parser.add_argument("--variant", action="append", choices=VARIANTS,
                        help="may be repeated (default: all)")
    parser.add_argument("--questions", type=int, default=48, help="least of a task")
    parser.add_argument("--seed", type=int, default=2000)
    parser.add_argument("--misses", action="store_true", help="count what the paper's index misses")
    parser.add_argument("--results", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    study = Study(arguments)
    with arguments.results.open("a", encoding="utf-8") as file:
        for task in arguments.task or tasks.TASKS:
            for line in study.run(task, arguments.length, arguments.questions):
                file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"{task} {arguments.length} done", flush=True)
        if study.misses:
            for line in study.misses.lines():
                file.write(json.dumps({"misses": line, "length": arguments.length}) + "\n")
    print({name: round(seconds, 1) for name, seconds in study.seconds.items()})


if __name__ == "__main__":
    main()
