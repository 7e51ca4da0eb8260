"""Measures exact match by task and length, with greedy generation.

    python3 -m tools.needle.evaluate --policy full --policy wave --results results.jsonl
    python3 -m tools.needle.evaluate --backend transformers --length 4096
    python3 -m tools.needle.evaluate --backend grpc --address localhost:50051 --policy wave

Results go into a JSON file; report.py makes the table and the plot of the model's README.
"""

import argparse
import json
import pathlib
import sys
import time

from . import bpe, generate, prompt, tasks

LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
POLICIES = ("full", "wave", "wave-paper")
# Documents and questions about each: at least 100 questions a task.
QUESTIONS_PER_DOCUMENT = {
    tasks.SINGLE: 3, tasks.MULTI_KEY: 16, tasks.MULTI_VALUE: 16, tasks.MULTI_QUERY: 16,
    tasks.VARIABLE_TRACKING: 8, tasks.COMMON_WORDS: 1, tasks.FREQUENT_WORDS: 1}
MAX_ANSWER_TOKENS = 64


def is_right(question: tasks.Question, text: str) -> bool:
    """Whether an answer is exactly right; tasks without an order compare sets."""
    found = text.strip().split(", ")
    if question.task in tasks.UNORDERED_TASKS:
        return sorted(found) == sorted(question.answers)
    return tuple(found) == question.answers


class ReferenceBackend:
    """The project's own PyTorch model; a document is prefilled once for all policies."""

    def __init__(self, arguments):
        import torch
        from . import model as llama, session, wave
        torch.backends.cuda.matmul.allow_tf32 = True
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = llama.load(arguments.model, self._device)
        self._encoder = bpe.Encoder(arguments.model)
        self._session = session
        self._settings = {"full": None, "wave": wave.DEFAULT, "wave-paper": wave.PAPER}

    def answers(self, document, questions, policies) -> dict[str, list[str]]:
        """Returns the answers to the questions, by policy."""
        encoder = self._encoder
        begin, end = (encoder.special(token)
                      for token in (prompt.BEGIN_OF_TEXT, prompt.END_OF_TEXT))
        session = self._session.Session(self._model, [begin, *document.ids(encoder)], end)
        asked = [encoder.encode(prompt.question_text(question.text)) for question in questions]
        given = {}
        for name in policies:
            settings = self._settings[name]
            policy = settings and self._session.WavePolicy(
                session, settings, session.tokens + max(map(len, asked)))
            if policy and policy.dense and "full" in given:
                given[name] = given["full"]
                continue
            rows = session.answer(asked, MAX_ANSWER_TOKENS, policy)
            given[name] = [encoder.decode(row) for row in rows]
        return given


class TransformersBackend:
    """transformers' own implementation, full attention, one prompt at a time."""

    def __init__(self, arguments):
        import torch
        import transformers
        self._torch = torch
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            arguments.model, dtype=torch.bfloat16).to(self._device).eval()

    def answers(self, document, questions, policies) -> dict[str, list[str]]:
        """Returns the answers to the questions; the only policy is "full"."""
        if list(policies) != ["full"]:
            raise ValueError("transformers has full attention only: use --policy full")
        given = []
        for question in questions:
            text = prompt.prompt_text(document.text, question.text)
            inputs = self._tokenizer(text, return_tensors="pt").to(self._device)
            with self._torch.inference_mode():
                output = self._model.generate(**inputs, max_new_tokens=MAX_ANSWER_TOKENS)
            new = output[0, inputs["input_ids"].shape[1]:]
            given.append(self._tokenizer.decode(new, skip_special_tokens=True))
        return {"full": given}


class GrpcBackend:
    """A running server."""

    def __init__(self, arguments):
        from . import server_client
        self._client = server_client.Client(arguments.address, arguments.timeout)

    def answers(self, document, questions, policies) -> dict[str, list[str]]:
        """Returns the answers to the questions, by policy."""
        return {policy: [self._client.generate(
                    prompt.prompt_text(document.text, question.text), policy, MAX_ANSWER_TOKENS)
                    for question in questions] for policy in policies}


BACKENDS = {"reference": ReferenceBackend, "transformers": TransformersBackend,
            "grpc": GrpcBackend}


def evaluate(backend, generator: generate.Generator, group: list[str], length: int,
             questions: int, policies, needles: int | None = None,
             ) -> dict[tuple[str, str], list[bool]]:
    """Asks at least `questions` questions of each task of a group whose documents are the same.

    Returns which answers are right, by policy and task.
    """
    right: dict[tuple[str, str], list[bool]] = {
        (policy, task): [] for task in group for policy in policies}
    index = 0
    while len(right[policies[0], group[0]]) < questions:
        document, asked = generator.make(group[0], length, index, needles)
        asked = [question for task in group for question in [
            q for q in asked if q.task == task][:QUESTIONS_PER_DOCUMENT[task]]]
        for policy, texts in backend.answers(document, asked, policies).items():
            for question, text in zip(asked, texts):
                right[policy, question.task].append(is_right(question, text))
        index += 1
    return right


def task_groups(chosen: list[str]) -> list[list[str]]:
    """Groups the tasks that ask about the same documents: the two about word lists."""
    groups = [[task] for task in chosen if task not in tasks.WORD_LIST_TASKS]
    lists = [task for task in tasks.WORD_LIST_TASKS if task in chosen]
    return groups + [lists] if lists else groups


def _check(parser, arguments) -> None:
    for length in arguments.length:
        if not tasks.MIN_LENGTH <= length <= tasks.MAX_LENGTH:
            parser.error(f"length {length}: the model takes {tasks.MIN_LENGTH} to "
                         f"{tasks.MAX_LENGTH} tokens")
    for task in arguments.task:
        if task not in tasks.TASKS:
            parser.error(f"task {task!r}: choose from {', '.join(tasks.TASKS)}")
    if arguments.backend == "grpc" and not arguments.address:
        parser.error("--backend grpc needs --address, for example localhost:50051 or unix:/path")
    if arguments.backend == "grpc" and "wave-paper" in arguments.policy:
        parser.error("a server has the policies full and wave; its index is set where it starts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=BACKENDS, default="reference")
    parser.add_argument("--model", type=pathlib.Path, default=generate.DEFAULT_MODEL)
    parser.add_argument("--policy", action="append", choices=POLICIES,
                        help="may be repeated (default: full)")
    parser.add_argument("--length", type=int, action="append",
                        help=f"may be repeated (default: {', '.join(map(str, LENGTHS))})")
    parser.add_argument("--task", action="append", help="may be repeated (default: all)")
    parser.add_argument("--needles", type=int, help="sentences with facts (default: by task)")
    parser.add_argument("--questions", type=int, default=100,
                        help="least questions of a task and length (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1000, help="(default: %(default)s)")
    parser.add_argument("--address", help="of the server, for --backend grpc")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a request may take")
    parser.add_argument("--results", type=pathlib.Path, help="JSON lines are appended to this file")
    arguments = parser.parse_args()
    arguments.policy = arguments.policy or ["full"]
    arguments.length = arguments.length or list(LENGTHS)
    arguments.task = arguments.task or list(tasks.TASKS)
    _check(parser, arguments)
    generator = generate.Generator(bpe.Encoder(arguments.model), "eval", arguments.seed)
    try:
        _run(arguments, BACKENDS[arguments.backend](arguments), generator)
    except (ValueError, OSError) as error:
        sys.exit(f"evaluate: {error}")


def _run(arguments, backend, generator) -> None:
    for length in arguments.length:
        for group in task_groups(arguments.task):
            began = time.monotonic()
            right = evaluate(backend, generator, group, length, arguments.questions,
                             arguments.policy, arguments.needles)
            print(f"{length} {', '.join(group)}: {time.monotonic() - began:.1f} s")
            for (policy, task), marks in right.items():
                line = {"backend": arguments.backend, "policy": policy, "task": task,
                        "length": length, "right": sum(marks), "questions": len(marks),
                        "seed": arguments.seed}
                if arguments.needles:
                    line["needles"] = arguments.needles
                print(json.dumps(line), flush=True)
                if arguments.results:
                    with arguments.results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
