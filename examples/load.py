#!/usr/bin/env python3
"""Sends many requests and says how long their first tokens took.

    examples/load.py --requests 100 --concurrency 16

`retroinfer bench` measures more, and more exactly; this shows how a program of one's own does it.
"""
import argparse
import asyncio
import pathlib
import statistics
import sys
import time

import retroinfer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--address", default="127.0.0.1:50051")
parser.add_argument("--api-key-file", type=pathlib.Path)
parser.add_argument("--requests", type=int, default=32)
parser.add_argument("--concurrency", type=int, default=8)
parser.add_argument("--max-tokens", type=int, default=64)
parser.add_argument("--prompt-words", type=int, default=200)
options = parser.parse_args()


async def one(client, limit, index):
    """Returns the time to the first token and the tokens; None if the server was too busy three times."""
    prompt = f"{index}: " + "word " * options.prompt_words
    async with limit:
        for _ in range(3):
            begin = time.monotonic()
            first = None
            try:
                async for event in client.stream(prompt, max_tokens=options.max_tokens, ignore_eos=True):
                    if isinstance(event, retroinfer.Output) and first is None:
                        first = time.monotonic() - begin
                    elif isinstance(event, retroinfer.Finished):
                        return first, event.completion_tokens
            except retroinfer.RetroInferError as error:
                if error.retry_after is None:
                    raise
                await asyncio.sleep(error.retry_after)
    return None


async def main():
    api_key = options.api_key_file and options.api_key_file.read_text(encoding="utf-8").strip()
    limit = asyncio.Semaphore(options.concurrency)
    async with retroinfer.AsyncClient(options.address, api_key=api_key) as client:
        begin = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:  # the first error ends the others
                tasks = [group.create_task(one(client, limit, index)) for index in range(options.requests)]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        results = [task.result() for task in tasks]
        elapsed = time.monotonic() - begin
    done = [result for result in results if result is not None]
    print(f"{len(done)} of {len(results)} requests, {sum(tokens for _, tokens in done) / elapsed:,.0f} tokens/s")
    if done:
        firsts = sorted(first for first, _ in done)
        print(f"first token: median {statistics.median(firsts) * 1000:.0f} ms, longest {firsts[-1] * 1000:.0f} ms")


try:
    asyncio.run(main())
except (OSError, ValueError, retroinfer.RetroInferError) as error:
    sys.exit(f"load.py: {error}")
except KeyboardInterrupt:
    sys.exit(130)
