"""The needle model behind documents that were prefilled exactly and by rules: exact match, by task.

    python3 -m tools.lab.needle_prefill --length 32768 --rules 'antidiagonal 16' --out FILE
    python3 -m tools.lab.needle_prefill --report FILE

The document is prefilled by a rule, its questions and answers attend to all of it exactly.
"""

import argparse
import dataclasses
import pathlib
import re
import time

import torch

from tools.needle import bpe, evaluate, generate, model as llama, prompt, tasks
from tools.needle.report import table
from tools.needle.session import Session

from .block_choice import Choice
from .block_sparse import Counts
from .needle_tasks import every_sentence, many
from .prefill_programs import arguments_of_runs, run_or_report
from .prefill_tasks import EXACT
from .results import Results
from .sources import NEEDLE
from .sparse_prefill import prefill, rules

SEED = 7000  # as the laboratory's other tables
CROWDED = "crowded"  # every sentence is a needle


class ByRule(Session):
    """A document that was prefilled by a rule."""

    def __init__(self, model, ids, end: int, rule: Choice | None):
        self._rule, self.counts = rule, Counts()
        super().__init__(model, ids, end)

    @torch.inference_mode()
    def _prefill(self, ids) -> None:
        def keep(_, k, v):
            self.keys.append(k[0].float())
            self.values.append(v[0].float())
        prefill(self._model, torch.tensor(ids, device=self._device), self._rule, self.counts, keep)


def plan(length: int) -> list[tuple[str, int, str, int | None]]:
    """Returns label, document, task and needles, one document of each task before a second one."""
    found = [(number, task, number, task, None) for task, documents in many()
             for number in range(documents)]
    found += [(number, CROWDED, 100 + number, tasks.MULTI_KEY, every_sentence(length))
              for number in range(4)]
    return [one[1:] for one in sorted(found, key=lambda one: one[0])]


def run(arguments: argparse.Namespace) -> None:
    """Asks what is missing, until the time is over."""
    began = time.monotonic()
    results, encoder = Results(arguments.out), bpe.Encoder(arguments.model)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = llama.load(arguments.model, arguments.device, arguments.dtype)
    maker = generate.Generator(encoder, "eval", SEED)
    begin, end = map(encoder.special, (prompt.BEGIN_OF_TEXT, prompt.END_OF_TEXT))
    wanted = [None] + [choice for choice in rules(arguments.dense)
                       if re.search(arguments.rules, choice.name())]
    for length in arguments.length:
        for label, number, task, needles in plan(length):
            keys = {rule: ["needle prefill", length, label, number, rule.name() if rule else EXACT]
                    for rule in wanted}
            if all(map(results.has, keys.values())):
                continue
            if time.monotonic() - began > arguments.seconds:
                return
            made, asked = maker.make(task, length, number, needles)
            asked = [one for one in asked if one.task == task]
            asked = asked[:evaluate.QUESTIONS_PER_DOCUMENT[task]]
            rows = [encoder.encode(prompt.question_text(one.text)) for one in asked]
            for rule in wanted:
                document = ByRule(model, [begin, *made.ids(encoder)], end, rule)
                said = map(encoder.decode, document.answer(rows, evaluate.MAX_ANSWER_TOKENS))
                results.add(keys[rule], {
                    "right": [evaluate.is_right(*pair) for pair in zip(asked, said)],
                    **dataclasses.asdict(document.counts)})


def report(lines: list[dict]) -> str:
    """Returns a table: a row for each length, task and rule. Tasks that no rule changed are left
    out, but for all together."""
    groups: dict[tuple, dict] = {}
    for line in lines:
        if line["key"][0] == "needle prefill":
            _, length, label, number, rule = line["key"]
            for kind in (label, "all"):
                groups.setdefault((length, kind, rule), {})[label, number] = line
    body, changed = [], set()
    for (length, kind, rule), found in sorted(groups.items()):
        exact = groups.get((length, kind, EXACT), {})
        pairs = [(a, b) for key, line in found.items() if key in exact
                 for a, b in zip(exact[key]["right"], line["right"])]
        if not pairs:
            continue
        before, after = (sum(side) for side in zip(*pairs))
        if any(a != b for a, b in pairs):
            changed.add((f"{length:,}", kind))
        seen = sum(line["seen"] for line in found.values())
        blocks = sum(line["attended"] for line in found.values())
        body.append([f"{length:,}", kind, rule, f"{100 * blocks / seen:.1f}" if seen else "",
                     f"{100 * after / len(pairs):.1f}",
                     f"{100 * (after - before) / len(pairs):+.1f}",
                     f"{sum(a > b for a, b in pairs)} / {sum(a < b for a, b in pairs)}",
                     str(len(pairs))])
    return table(["tokens", "task", "prefill", "blocks, %", "right, %", "change, points",
                  "worse / better", "questions"],
                 [row for row in body if row[1] == "all" or tuple(row[:2]) in changed])


def main() -> None:
    """Asks, or prints the table of what was asked."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments_of_runs(parser)
    parser.add_argument("--model", type=pathlib.Path, default=NEEDLE)
    parser.add_argument("--length", type=int, action="append", help="tokens of a document")
    parser.add_argument("--rules", default="antidiagonal 16, units of 64",
                        help="a regular expression: rules whose names match")
    run_or_report(parser, ["length", "out"], run, report)


if __name__ == "__main__":
    main()
