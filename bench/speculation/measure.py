#!/usr/bin/env python3
"""Asks a server each request with and without drafts, and tells tokens a second, what was accepted, and whether the
answers are the same.

    retroinfer serve --model DIR --speculation auto --http 127.0.0.1:8000 &
    bench/speculation/measure.py --out figures.json [--workload edit,extract,chat] [--requests 20]

Workloads, from files of this repository (or of --texts):
  edit     a source file of about --edit-characters: one of its names is to be changed, the answer is the whole file
           (with --prediction the request says that the answer is expected to be like the file)
  extract  documentation of about --extract-characters: passages are to be copied
  chat     short questions, whose answers repeat little

A request is asked three times: once for its prompt to be cached, then without and with drafts, the order changing
from request to request. Tokens a second are those of the decode steps (usage.timings.decode_ms). `--out` is read first:
requests that it has are not asked again, so that a run that was cut off goes on. Exit status 1: an answer differs.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import statistics
import sys
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOPICS = ("the arena", "decode steps", "segments", "the scheduler", "locks and threads", "failures", "policies",
          "the block cache", "prefill lanes", "tenants", "the store's disk", "sampling", "preemption", "the gateway",
          "names of prefixes", "metrics", "weights", "the access log", "constraints", "window layers")
QUESTIONS = ("Explain what a hash table is.", "How do I reverse a list in Python?", "What is the capital of Australia?",
             "Write a haiku about rain.", "What does HTTP status 429 mean?", "Give three tips for better sleep.",
             "What is a monad?", "Write a C++ function that counts the words of a text.",
             "Why is the sky blue?", "Compare TCP and UDP in a few sentences.")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the gateway")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--workload", default="edit,extract,chat")
    parser.add_argument("--requests", type=int, default=20, help="of each workload")
    parser.add_argument("--max-tokens", type=int, default=600, help="of an answer")
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--policy", choices=("wave", "full", "streaming"), help="default: the server's")
    parser.add_argument("--prediction", action="store_true", help="send the files to be edited as predictions, too")
    parser.add_argument("--texts", type=pathlib.Path, default=ROOT)
    parser.add_argument("--edit-characters", type=int, default=12_000)
    parser.add_argument("--extract-characters", type=int, default=90_000)
    options = parser.parse_args()
    for name in options.workload.split(","):
        if name not in ("edit", "extract", "chat"):
            parser.error(f"there is no workload {name!r}")
    return options


def files_of(root, suffixes):
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in ("build", "node_modules") and not name.startswith(".")]
        found += [pathlib.Path(folder) / name for name in names if pathlib.Path(name).suffix in suffixes]
    return sorted(found)


def edit_prompt(options, number):
    files = [path for path in files_of(options.texts, (".cc", ".h", ".py", ".cpp", ".rs"))
             if path.stat().st_size >= options.edit_characters * 2 // 3]
    if not files:
        sys.exit(f"measure.py: {options.texts} has no source file of {options.edit_characters * 2 // 3} bytes")
    path = files[number * max(1, len(files) // options.requests) % len(files)]
    text = path.read_text(encoding="utf-8", errors="replace")[:options.edit_characters]
    names = collections.Counter(re.findall(r"\b[A-Za-z_]{6,}\b", text))
    name = names.most_common(1 + number % 3)[-1][0]
    return (f"```\n{text}\n```\n\nRename `{name}` to `renamed_{number}` in this file. Answer with the whole file and "
            "nothing else."), text


def extract_prompt(options, number):
    text = "\n\n".join(path.read_text(encoding="utf-8", errors="replace")
                       for path in files_of(options.texts, (".md",)))
    if not text:
        sys.exit(f"measure.py: {options.texts} has no documentation (*.md)")
    # Another part each time, as far as there is enough.
    room = max(1, len(text) - options.extract_characters)
    begin = number * 7919 % room
    part = text[begin:begin + options.extract_characters]
    return f"{part}\n\nCopy, word for word, all passages of this text about {TOPICS[number % len(TOPICS)]}.", ""


def prompt_of(options, workload, number):
    """The prompt, and what the answer is expected to be like."""
    if workload == "edit":
        return edit_prompt(options, number)
    if workload == "extract":
        return extract_prompt(options, number)
    return f"{QUESTIONS[number % len(QUESTIONS)]} (Question {number + 1}.)", ""


def ask(options, prompt, prediction, speculation, max_tokens):
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "seed": 1,
            "temperature": options.temperature, "reuse": "exact", "speculation": speculation}
    if options.policy:
        body["policy"] = options.policy
    if options.prediction and prediction:
        body["prediction"] = {"type": "content", "content": prediction}
    request = urllib.request.Request(options.url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=3600) as response:
        answer = json.load(response)
    choice, usage = answer["choices"][0], answer["usage"]
    details = usage["completion_tokens_details"]
    return {"text": choice["message"]["content"], "prompt_tokens": usage["prompt_tokens"],
            "tokens": usage["completion_tokens"], "decode_ms": usage["timings"]["decode_ms"],
            "accepted": details["accepted_prediction_tokens"], "rejected": details["rejected_prediction_tokens"]}


def measure(options, workload, number):
    prompt, prediction = prompt_of(options, workload, number)
    ask(options, prompt, prediction, "off", 1)
    answers = {}
    for speculation in ("off", "auto") if number % 2 == 0 else ("auto", "off"):
        answers[speculation] = ask(options, prompt, prediction, speculation, options.max_tokens)
    plain, tried = answers["off"], answers["auto"]
    return {"workload": workload, "number": number, "prompt_tokens": plain["prompt_tokens"],
            "tokens": plain["tokens"], "same": plain["text"] == tried["text"],
            "off_ms": plain["decode_ms"], "auto_ms": tried["decode_ms"],
            "accepted": tried["accepted"], "rejected": tried["rejected"]}


def summary(reports):
    steps = [report for report in reports if report["tokens"] > 1]
    if not steps:
        return {"requests": len(reports), "tokens": sum(report["tokens"] for report in reports)}
    tokens = sum(report["tokens"] - 1 for report in steps)  # the first one comes from the prompt
    return {"requests": len(reports), "tokens": tokens,
            "off_tokens_per_second": round(1e3 * tokens / max(1e-3, sum(report["off_ms"] for report in steps)), 2),
            "auto_tokens_per_second": round(1e3 * tokens / max(1e-3, sum(report["auto_ms"] for report in steps)), 2),
            "median_speedup": round(statistics.median(report["off_ms"] / max(1e-3, report["auto_ms"])
                                                      for report in steps), 3),
            "accepted": sum(report["accepted"] for report in reports),
            "rejected": sum(report["rejected"] for report in reports),
            "different": sum(not report["same"] for report in reports)}


def main():
    options = parse_options()
    figures = json.loads(options.out.read_text()) if options.out.exists() else {}
    settings = {name: str(value) for name, value in vars(options).items()
                if name not in ("out", "url", "workload", "requests")}
    if figures.setdefault("settings", settings) != settings:
        sys.exit(f"measure.py: {options.out} is of other settings: {figures['settings']}")
    reports = figures.setdefault("requests", [])
    known = {(report["workload"], report["number"]) for report in reports}
    for workload in options.workload.split(","):
        for number in range(options.requests):
            if (workload, number) in known:
                continue
            reports.append(measure(options, workload, number))
            figures["summary"] = {name: summary([report for report in reports if report["workload"] == name])
                                  for name in sorted({report["workload"] for report in reports})}
            whole = options.out.with_suffix(".part")
            whole.write_text(json.dumps(figures, indent=1) + "\n")
            whole.replace(options.out)
            print(json.dumps(reports[-1]), flush=True)
    print(json.dumps(figures.get("summary", {}), indent=1))
    return 1 if any(not report["same"] for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
