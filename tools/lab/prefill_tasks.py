"""Real tasks behind prompts that were prefilled exactly and by rules: right answers, by rule.

    python3 -m tools.lab.prefill_tasks --model FOLDER --length 31744 --rules 'antidiagonal 16' --out FILE
    python3 -m tools.lab.prefill_tasks --report FILE

The tasks are RULER's or, with --manuals, questions on manuals (tools/tasks). What is generated
attends to everything, so that a difference is the prefill's alone. Measured are the share of the
right answers that stand in a greedy answer, and -log p of the right answer where it is given.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import pathlib
import re
import time

import torch

from tools.needle.report import table
from tools.tasks import asking, ruler

from . import kept_samples
from .block_choice import Choice
from .prefill_answers import Prefilled
from .prefill_programs import Models, arguments_of_models, note_setup, run_or_report
from .results import Results
from .sparse_prefill import rules

SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
EXACT = "exact"
AHEAD = 6  # samples that are made while others are measured


class Chat:
    """The tokenizer of a checkpoint that chats by ChatML."""

    def __init__(self, model: pathlib.Path):
        from tokenizers import Tokenizer
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.end = self._tokenizer.token_to_id("<|im_end|>")
        if self.end is None:
            raise ValueError(f"{model} has no <|im_end|>: chats by ChatML are known")

    def prompt(self, text: str) -> list[int]:
        """Returns the tokens of a user's message and the beginning of the answer."""
        return self.ids(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n"
                        "<|im_start|>assistant\n")

    def count(self, text: str) -> int:
        """Returns how many tokens a prompt has."""
        return len(self.prompt(text))

    def ids(self, text: str) -> list[int]:
        """Returns the tokens of a text."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def answer(self, sample) -> tuple[list[int], list[int]]:
        """Returns the tokens of an answer's beginning, and of it with the right answer."""
        lead, given = self.ids(sample.lead), self.ids(sample.lead + sample.reference)
        while lead and given[:len(lead)] != lead:
            lead.pop()  # a token may hold the end of the lead and the reference's beginning
        return lead, given

    def text(self, ids: list[int]) -> str:
        """Returns the text of tokens."""
        return self._tokenizer.decode(ids)


def questions(arguments: argparse.Namespace) -> list[asking.Question]:
    """Returns what is asked."""
    if arguments.manuals:
        return list(asking.of_manuals(arguments))
    return list(asking.of_ruler(arguments, arguments.task or list(ruler.TASKS)))


def run(arguments: argparse.Namespace) -> None:
    """Asks what is missing, until the time is over."""
    wanted = [None] + [choice for choice in rules(arguments.dense)
                       if re.search(arguments.rules, choice.name())]

    def ask_by_rules(models, chat, sample, results, key):
        ask(models, chat, sample, wanted, results, key)
    ask_all(arguments, "prefill task", [_name(rule) for rule in wanted], ask_by_rules)


def ask_all(arguments: argparse.Namespace, program: str, names: list[str], ask_one) -> None:
    """Asks each question of which a result is missing, until the time is over: its key is the
    program, the model, the question and one of the names. ask_one(models, chat, sample, results,
    key) adds those of all names."""
    began, chat = time.monotonic(), Chat(arguments.model)
    if arguments.only_samples:
        kept_samples.make(arguments.only_samples, questions(arguments), chat)
        return
    results, models = Results(arguments.out), Models(arguments)
    note_setup(results, arguments)
    asked = kept_samples.with_kept(questions(arguments), arguments.samples)
    todo = [(one, [program, models.name(one.key[1]), *one.key]) for one in asked]
    todo = [(one, key) for one, key in todo
            if not all(results.has([*key, name]) for name in names)]
    for key, sample in coming(todo, chat):
        if time.monotonic() - began > arguments.seconds:
            break
        ask_one(models, chat, sample, results, key)


def coming(todo: list[tuple[asking.Question, list]], chat: Chat):
    """Yields keys and samples, which are made while others are measured."""
    with concurrent.futures.ThreadPoolExecutor(AHEAD) as pool:
        waiting = collections.deque()
        try:
            for number in range(len(todo) + AHEAD):
                if number < len(todo):
                    waiting.append((todo[number][1], pool.submit(todo[number][0].make, chat)))
                if waiting and (len(waiting) > AHEAD or number >= len(todo)):
                    key, made = waiting.popleft()
                    yield key, made.result()
        finally:
            for _, made in waiting:
                made.cancel()


def ask(models: Models, chat: Chat, sample, wanted, results: Results, key: list) -> None:
    """Answers one question under each rule and writes what came out."""
    prompt = torch.tensor(chat.prompt(sample.text), device=models.device)
    lead, given = chat.answer(sample)
    began = time.monotonic()
    made = Prefilled(models, prompt, wanted, max(sample.most, len(given)) + 1)
    answers = made.answers(sample.most, chat.end)
    surprise = made.surprise(given, len(lead))
    seconds = round(time.monotonic() - began, 2)
    for rule, answer, one, counts in zip(wanted, answers, surprise, made.counts):
        text = chat.text(answer)
        results.add([*key, _name(rule)], {
            "right": sample.right(text), "answer": text, "reference": sample.reference,
            "surprise": round(one, 4), "prompt_tokens": len(prompt), "seconds": seconds,
            **dataclasses.asdict(counts)})


def _name(rule: Choice | None) -> str:
    return rule.name() if rule else EXACT


def report(lines: list[dict]) -> str:
    """Returns a table: a row for each length, group of tasks and rule."""
    groups: dict[tuple, list] = {}
    for line in lines:
        if line["key"][0] == "prefill task":
            _, model, part, length, task, number, _, rule = line["key"]
            kinds = [kind_of(part, task)] + (["all of RULER"] if part == "ruler" else [])
            for kind in kinds:
                groups.setdefault((length, kind, rule), []).append(
                    ((model, part, length, task, number), line))
    body = []
    for (length, kind, rule), found in sorted(groups.items()):
        exact = dict(groups[length, kind, EXACT])
        pairs = [(exact[key], line) for key, line in found if key in exact]
        share = [sum(line["right"] for line in side) / len(pairs) for side in zip(*pairs)]
        worse = sum(a["right"] > b["right"] for a, b in pairs)
        better = sum(a["right"] < b["right"] for a, b in pairs)
        surprise = sum(b["surprise"] - a["surprise"] for a, b in pairs) / len(pairs)
        seen = sum(line["seen"] for _, line in found)
        blocks = f"{100 * sum(line['attended'] for _, line in found) / seen:.1f}" if seen else ""
        body.append([f"{length:,}", kind, rule, blocks, f"{100 * share[1]:.1f}",
                     f"{100 * (share[1] - share[0]):+.1f}", f"{worse} / {better}",
                     f"{surprise:+.3f}", str(len(pairs))])
    return table(["tokens", "tasks", "prefill", "blocks, %", "right, %", "change, points",
                  "worse / better", "change of -log p", "questions"], body)


def kind_of(part: str, task: str) -> str:
    """Returns the group of a task."""
    if part == "manuals":
        return "manuals"
    return "needles" if task.startswith("niah") else {"vt": "tracking", "cwe": "counting",
                                                      "fwe": "counting"}.get(task, "questions")


def arguments_of_questions(parser: argparse.ArgumentParser) -> None:
    """Adds which questions are asked."""
    parser.add_argument("--length", type=int, action="append", help="tokens of prompt and answer")
    parser.add_argument("--samples", type=pathlib.Path, help="take questions that this file keeps from it")
    parser.add_argument("--only-samples", type=pathlib.Path,
                        help="ask nothing; make questions and keep them in this file")
    parser.add_argument("--task", action="append", choices=list(ruler.TASKS), help="(default: all)")
    parser.add_argument("--questions", type=int, default=5, help="of a task")
    parser.add_argument("--manuals", type=pathlib.Path, help="a folder of manuals, to ask on them")
    parser.add_argument("--manual-questions", type=int, default=100)
    parser.add_argument("--haystack", type=pathlib.Path, help="a text that needles are hidden in")
    parser.add_argument("--seed", type=int, default=39)


def main() -> None:
    """Asks, or prints the table of what was asked."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments_of_models(parser)
    arguments_of_questions(parser)
    parser.add_argument("--rules", default="antidiagonal 16, units of 64",
                        help="a regular expression: rules whose names match")
    run_or_report(parser, ["model", "length", "out"], run, report)


if __name__ == "__main__":
    main()
