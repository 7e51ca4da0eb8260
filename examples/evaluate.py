#!/usr/bin/env python3
"""Answers a file of tasks under both policies, and says how many are right.

    python3 -m tools.needle.generate --task multi_key --length 16000 --questions 20 > tasks.jsonl
    examples/evaluate.py tasks.jsonl

Each line of the file is an object with "prompt" and "answer"; an answer is right that begins with it.
"""
import argparse
import asyncio
import json

import retroinfer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--address", default="127.0.0.1:50051")
parser.add_argument("--concurrency", type=int, default=4)
parser.add_argument("--max-tokens", type=int, default=32)
parser.add_argument("tasks", nargs="+")
options = parser.parse_args()


async def is_right(client, limit, task, policy):
    async with limit:
        answer = await client.generate(task["prompt"], policy=policy, temperature=0, max_tokens=options.max_tokens)
    return answer.text.strip().startswith(task["answer"].strip()), answer.finished.kv_read_ratio


async def main():
    tasks = []
    for name in options.tasks:
        with open(name, encoding="utf-8") as file:
            tasks += map(json.loads, filter(str.strip, file))
    limit = asyncio.Semaphore(options.concurrency)
    async with retroinfer.AsyncClient(options.address) as client:
        for policy in ("wave", "full"):
            results = await asyncio.gather(*(is_right(client, limit, task, policy) for task in tasks))
            right = sum(result for result, _ in results)
            share = sum(ratio for _, ratio in results) / max(1, len(results))
            print(f"{policy:5} {right} of {len(tasks)} right, {share:.0%} of the KV read")


asyncio.run(main())
