#!/usr/bin/env python3
"""Holds one conversation over HTTP and prints what each turn computed.

    retroinfer serve --model DIR --http 127.0.0.1:8000 &
    bench/conversations/talk_to_server.py --document docs/architecture.md --reuse generated

The first user message is the start of a document and a question, the others are short. Answers go back as the
text that the client received, so that the server tokenises every turn anew with its own chat template: what
conversations_bench, which continues token ids, cannot show. One line of JSON a turn; the last line says how many
times the fewest tokens the turns behind the first computed. The fewest are the tokens behind the prompt and the
answer before (`generated`) or behind the prompt before (`exact`), counted as the server reports them; a template
that adds or drops tokens between turns shows up as more. Exit status 1: a turn computed more than --at-most times
the fewest and more than --slack tokens above them.
"""
import argparse
import json
import pathlib
import sys
import time
import urllib.error
import urllib.request

QUESTIONS = (
    "What is this text about? Answer in a few sentences.",
    "What does the store own?",
    "Write a small C++ function that adds two vectors, with a comment.",
    "Now in Python, and name three pitfalls as a list.",
    "Thanks! Explain the second pitfall.",
)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the gateway")
    parser.add_argument("--api-key-file", type=pathlib.Path)
    parser.add_argument("--document", required=True, type=pathlib.Path)
    parser.add_argument("--characters", type=int, default=9000, help="of the document")
    parser.add_argument("--reuse", choices=("generated", "exact"), default="generated")
    parser.add_argument("--policy", choices=("wave", "full"), help="default: the server's")
    parser.add_argument("--max-tokens", type=int, default=120, help="of an answer")
    parser.add_argument("--at-most", type=float, help="times the fewest tokens; else exit status 1")
    parser.add_argument("--slack", type=int, default=80, help="tokens above the fewest that are always allowed: "
                        "a block of 64 tokens, the sink and the answer's last token")
    return parser.parse_args()


def complete(options, messages):
    body = {"messages": messages, "max_tokens": options.max_tokens, "temperature": 0, "reuse": options.reuse}
    if options.policy:
        body["policy"] = options.policy
    headers = {"Content-Type": "application/json"}
    if options.api_key_file:
        headers["Authorization"] = "Bearer " + options.api_key_file.read_text(encoding="utf-8").strip()
    request = urllib.request.Request(options.url + "/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def converse(options):
    """Yields one report a turn: tokens of the prompt, of the answer, found and computed, and the fewest possible."""
    document = options.document.read_text(encoding="utf-8")[:options.characters]
    # The system message tells the runs with `generated` and `exact` apart, which would find each other's prompts.
    messages = [{"role": "system", "content": f"You are a helpful assistant. ({options.reuse})"}]
    known = 0  # tokens that a turn before has computed and that this turn may find
    for index, question in enumerate(QUESTIONS):
        content = question if index else document + "\n\n" + question
        messages.append({"role": "user", "content": content})
        begin = time.monotonic()
        answer = complete(options, messages)
        seconds = time.monotonic() - begin
        usage = answer["usage"]
        prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        yield {"turn": index + 1, "prompt_tokens": prompt, "completion_tokens": completion, "cached_tokens": cached,
               "computed_tokens": prompt - cached, "fewest_tokens": prompt - known, "seconds": round(seconds, 2),
               "finish_reason": answer["choices"][0]["finish_reason"]}
        known = prompt + completion if options.reuse == "generated" else prompt
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})


def main():
    options = parse_options()
    computed, fewest = 0, 0
    for turn in converse(options):
        print(json.dumps(turn), flush=True)
        if turn["turn"] > 1:
            computed += turn["computed_tokens"]
            fewest += turn["fewest_tokens"]
    turns = len(QUESTIONS) - 1
    print(json.dumps({"reuse": options.reuse, "computed_a_turn": computed / turns, "fewest_a_turn": fewest / turns,
                      "times_the_fewest": round(computed / fewest, 3)}))
    if options.at_most and computed > options.at_most * fewest and computed > fewest + turns * options.slack:
        sys.exit(f"computed {computed} tokens where {fewest} would do")


if __name__ == "__main__":
    try:
        main()
    except (OSError, KeyError, ValueError) as error:
        detail = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else error
        sys.exit(f"talk_to_server.py: {detail}")
