#!/usr/bin/env python3
"""A chat about a document that the server keeps: it is read once, also across restarts (serve --cache-dir).

    examples/chat_on_context.py --file book.txt --name book

Questions come from standard input, a line each.
"""
import argparse
import pathlib
import sys

import retroinfer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--address", default="127.0.0.1:50051")
parser.add_argument("--api-key-file", type=pathlib.Path)
parser.add_argument("--file", required=True, type=pathlib.Path)
parser.add_argument("--name", required=True, help="of the context that is saved")
parser.add_argument("--cache-salt", default="", help="whose context it is")
options = parser.parse_args()


def main():
    document = {"role": "system", "content": options.file.read_text(encoding="utf-8")}
    api_key = options.api_key_file and options.api_key_file.read_text(encoding="utf-8").strip()
    with retroinfer.Client(options.address, api_key=api_key) as client:
        saved = client.contexts.save(options.name, messages=[document], add_generation_prompt=False,
                                     replace=True, cache_salt=options.cache_salt)
        print(f"{saved.context.num_tokens:,} tokens are saved as {saved.context.name}, "
              f"{saved.computed_tokens:,} were computed for that", flush=True)
        for line in filter(str.strip, sys.stdin):
            # Each question by itself, behind the document: what they share is in the cache.
            messages = [document, {"role": "user", "content": line.strip()}]
            answer = client.generate(messages=messages, temperature=0, cache_salt=options.cache_salt)
            print(f"{answer.text.strip()}   ({answer.finished.prompt_tokens:,} tokens of prompt, "
                  f"{answer.finished.cached_tokens:,} of it cached)", flush=True)


try:
    main()
except (OSError, ValueError, retroinfer.RetroInferError) as error:
    sys.exit(f"chat_on_context.py: {error}")
except KeyboardInterrupt:
    sys.exit(130)
