#!/usr/bin/env python3
"""Asks a question about a long document.

    examples/ask_document.py --file book.txt "Who is the narrator?"
"""
import argparse
import sys

import retroinfer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--address", default="127.0.0.1:50051")
parser.add_argument("--file", required=True)
parser.add_argument("--policy", choices=("wave", "full"), default="wave")
parser.add_argument("--temperature", type=float)
parser.add_argument("question")
options = parser.parse_args()

with open(options.file, encoding="utf-8") as file:
    document = file.read()
sampling = {} if options.temperature is None else {"temperature": options.temperature}
messages = [{"role": "system", "content": document}, {"role": "user", "content": options.question}]
with retroinfer.Client(options.address) as client, \
        client.stream(messages=messages, policy=options.policy, **sampling) as stream:
    for event in stream:
        if isinstance(event, retroinfer.Progress):
            print(f"\r{event.processed_tokens:,} of {event.total_tokens:,} tokens read", end="", file=sys.stderr)
            if event.processed_tokens == event.total_tokens:
                print(file=sys.stderr)
        elif isinstance(event, retroinfer.Output):
            print(event.text, end="", flush=True)
        else:
            print()
            print(f"{event.cached_tokens:,} tokens were cached; first token after "
                  f"{event.timings.first_token or 0:.2f} s; read {event.kv_read_ratio:.0%} of the KV",
                  file=sys.stderr)
