"""Real tasks whose question attends to its text through the wave index: right answers, by setting.

    python3 -m tools.lab.tail_tasks --model FOLDER --length 31744 --out FILE
    python3 -m tools.lab.tail_tasks --report FILE

The prompt is cut as `prefill: indexed` cuts it: what is before its last 256 to 319 tokens is read
exactly, the rest and the right answer follow it token by token. Measured are -log p of the right
answer, and whether each token of it was the most probable one. Three settings: everything exact;
the answer through the index, the question exact (policy wave today); both through the index.
"""

import argparse
import math

import torch

from tools.needle.report import table

from .block_choice import SINK
from .document import Document
from .indexed_tails import systems
from .prefill_programs import Models, arguments_of_models, run_or_report
from .prefill_tasks import Chat, arguments_of_questions, ask_all, kind_of
from .results import Results
from .system import Step, System
from .systems.full import Full
from .systems.wave import Wave

BLOCK = 64  # tokens of a block of KV that is found again
SETTINGS = ("exact", "answer by the index", "both by the index")


class AfterQuestion(System):
    """Another system for the rows behind a question, exact attention for the question."""

    def __init__(self, inner: Wave, rows: int):
        self.name, self._inner, self._rows = inner.name, inner, rows
        self.build = inner.build

    def key(self):
        return self._inner.key()

    def choose(self, index, step: Step):
        choice = self._inner.choose(index, step)
        asked = (step.behind <= self._rows)[:, None, None, None]
        choice.exact = choice.exact | asked
        for estimate in choice.estimates:
            estimate.logits = estimate.logits.masked_fill(asked, -math.inf)
        return choice


def head_of(prompt: int, tail: int) -> int:
    """Returns how many tokens of a prompt are read exactly (decision 0098)."""
    return SINK + BLOCK * ((prompt - tail - SINK) // BLOCK)


def run(arguments: argparse.Namespace) -> None:
    """Asks what is missing, until the time is over."""
    def ask_by_settings(models, chat, sample, results, key):
        ask(models, chat, sample, results, key, arguments.tail)
    ask_all(arguments, "tail task", SETTINGS, ask_by_settings)


@torch.inference_mode()
def ask(models: Models, chat: Chat, sample, results: Results, key: list, tail: int) -> None:
    """Measures one right answer under each setting."""
    prompt, lead, given = chat.prompt(sample.text), *chat.answer(sample)
    model, _ = models.of(key[3])
    head = head_of(len(prompt), tail)
    document = Document(model, prompt[:head])
    behind = torch.tensor(prompt[head:] + given, device=models.device)
    first = len(prompt) - head + len(lead)  # of the tokens that are measured
    index, question = systems()[0], len(prompt) - head
    for name, system in zip(SETTINGS, (Full(), AfterQuestion(index, question), index)):
        hidden, _ = document.follow(system, behind[:-1])
        found = models.logits(hidden[first - 1:]).log_softmax(-1)
        wanted = behind[first:]
        results.add([*key, name], {
            "surprise": round(-found.gather(-1, wanted[:, None]).sum().item(), 4),
            "right": int((found.argmax(-1) == wanted).all()), "head": head,
            "tokens": len(wanted)})


def report(lines: list[dict]) -> str:
    """Returns a table: a row for each length, group of tasks and setting."""
    groups: dict[tuple, dict] = {}
    for line in lines:
        if line["key"][0] == "tail task":
            _, model, part, length, task, number, _, setting = line["key"]
            for kind in (kind_of(part, task), "all"):
                groups.setdefault((length, kind, setting), {})[model, part, task, number] = line
    body = []
    for (length, kind, setting), found in sorted(groups.items()):
        exact = groups.get((length, kind, SETTINGS[0]), {})
        pairs = [(exact[key], line) for key, line in found.items() if key in exact]
        before, after = (sum(line["right"] for line in side) for side in zip(*pairs))
        tokens = sum(line["tokens"] for line in found.values())
        change = sum(b["surprise"] - a["surprise"] for a, b in pairs)
        body.append([f"{length:,}", kind, setting, f"{100 * after / len(pairs):.1f}",
                     f"{100 * (after - before) / len(pairs):+.1f}",
                     f"{sum(a['right'] > b['right'] for a, b in pairs)} / "
                     f"{sum(a['right'] < b['right'] for a, b in pairs)}",
                     f"{change / len(pairs):+.3f}", f"{change / tokens:+.4f}", str(len(pairs))])
    return table(["tokens", "tasks", "question and answer", "right, %", "change, points",
                  "worse / better", "change of -log p", "of a token", "questions"], body)


def main() -> None:
    """Asks, or prints the table of what was asked."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments_of_models(parser)
    arguments_of_questions(parser)
    parser.add_argument("--tail", type=int, default=256, help="tail_tokens of the request")
    run_or_report(parser, ["model", "length", "out"], run, report)


if __name__ == "__main__":
    main()
