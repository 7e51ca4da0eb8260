#!/usr/bin/env python3
"""Asks a question about a long document.

    examples/ask_document.py --file book.txt "Who is the narrator?"
"""
import argparse
import pathlib
import sys

import retroinfer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--address", default="127.0.0.1:50051")
parser.add_argument("--api-key-file", type=pathlib.Path)
parser.add_argument("--file", required=True, type=pathlib.Path)
parser.add_argument("--policy", choices=("wave", "full"), default="wave")
parser.add_argument("--temperature", type=float)
parser.add_argument("question")
options = parser.parse_args()


def main():
    document = options.file.read_text(encoding="utf-8")
    if not document.strip():
        raise ValueError(f"{options.file} is empty")
    api_key = options.api_key_file and options.api_key_file.read_text(encoding="utf-8").strip()
    sampling = {} if options.temperature is None else {"temperature": options.temperature}
    messages = [{"role": "system", "content": document}, {"role": "user", "content": options.question}]
    with retroinfer.Client(options.address, api_key=api_key) as client, \
            client.stream(messages=messages, policy=options.policy, **sampling) as stream:
        for event in stream:
            if isinstance(event, retroinfer.Progress):
                print(f"\r{event.processed_tokens:,} of {event.total_tokens:,} tokens read", end="", file=sys.stderr)
                if event.processed_tokens == event.total_tokens:
                    print(file=sys.stderr)
            elif isinstance(event, retroinfer.Output):
                print(event.text, end="", flush=True)
            elif isinstance(event, retroinfer.Finished):
                print()
                print(f"{event.cached_tokens:,} tokens were cached; first token after "
                      f"{event.timings.first_token or 0:.2f} s; read {event.kv_read_ratio:.0%} of the KV",
                      file=sys.stderr)


try:
    main()
except (OSError, ValueError, retroinfer.RetroInferError) as error:
    sys.exit(f"ask_document.py: {error}")
except KeyboardInterrupt:  # leaving the stream has ended the generation in the server
    sys.exit(130)
