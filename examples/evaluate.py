#!/usr/bin/env python3
"""Scores the answers of a file of tasks under both policies, and says how many are right.

    python3 -m tools.needle.generate --task multi_key --length 16000 --questions 20 > tasks.jsonl
    examples/evaluate.py tasks.jsonl

Each line of the file is an object with "prompt" and "answer". An answer is right if greedy generation would write it; no
answer is generated for that: a call scores what the file has, and its log-probability says how sure the model is of it,
which differs between policies long before an answer becomes wrong.
"""
import argparse
import asyncio
import json
import pathlib
import sys

import retroinfer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--address", default="127.0.0.1:50051")
parser.add_argument("--api-key-file", type=pathlib.Path)
parser.add_argument("--concurrency", type=int, default=4)
parser.add_argument("tasks", nargs="+", type=pathlib.Path)
options = parser.parse_args()


def read_tasks():
    tasks = [json.loads(line) for path in options.tasks
             for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not tasks or not all(isinstance(task, dict) and {"prompt", "answer"} <= task.keys() for task in tasks):
        raise ValueError('every line of the files must be an object with "prompt" and "answer", and there must be one')
    return [(task["prompt"], " " + task["answer"].strip()) for task in tasks]


async def score(client, limit, prompt, answer, policy):
    async with limit:
        scores = await client.score(prompt, [answer], policy=policy)
    return scores.continuations[0], scores.kv_read_ratio


async def main():
    tasks = read_tasks()
    api_key = options.api_key_file and options.api_key_file.read_text(encoding="utf-8").strip()
    limit = asyncio.Semaphore(options.concurrency)
    async with retroinfer.AsyncClient(options.address, api_key=api_key) as client:
        for policy in ("full", "wave"):
            try:
                async with asyncio.TaskGroup() as group:  # the first error ends the others
                    scored = [group.create_task(score(client, limit, *task, policy)) for task in tasks]
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
            results = [task.result() for task in scored]
            right = sum(answer.is_greedy for answer, _ in results)
            tokens = sum(len(answer.tokens) for answer, _ in results)
            logprob = sum(answer.logprob for answer, _ in results) / tokens
            share = sum(ratio for _, ratio in results) / len(results)
            print(f"{policy:5} {right} of {len(tasks)} right, log-probability {logprob:.4f} a token, "
                  f"{share:.0%} of the KV read")


try:
    asyncio.run(main())
except (OSError, ValueError, retroinfer.RetroInferError) as error:
    sys.exit(f"evaluate.py: {error}")
except KeyboardInterrupt:
    sys.exit(130)
