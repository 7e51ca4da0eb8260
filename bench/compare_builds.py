#!/usr/bin/env python3
"""Times the stages of decoding and of prompts with the programs of two builds, in turns, on one GPU.

usage: compare_builds.py BEFORE AFTER [--rounds 3] [--only NAME,...] [--results FILE]
       compare_builds.py --render FILE

BEFORE and AFTER are folders with the programs of bench/. Each round runs every command once with each
build, so that a slow minute of the machine meets both; a figure is the median of the rounds. Prints a
table of stages in Markdown, the stages that changed by more than 2 % in bold, and keeps all figures in
--results (JSON), which --render prints again. A program with many stages is summed up in a line. Where
a build has another default, the command names the setting.

Figures of the host are not compared with 2 % in mind: they vary by more between runs of one build.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "gpu_report"))
from sections import objects  # noqa: E402


@dataclasses.dataclass
class Stages:
    name: str
    program: str
    arguments: list
    read: callable  # from what the program prints to {stage: (figure, unit)}


def read_layer(output):
    found = {}
    for stage, batch, us in re.findall(r"^(.{34}) +(\d+) +([\d.]+)", output, re.M):
        found[f"{stage.strip()}, batch {batch}"] = (float(us), "us")
    return found


def read_products(output):
    found = {}
    for what, rows, us in re.findall(r"^(\S.*\S) +(\d+) rows +([\d.]+) us", output, re.M):
        found[f"{' '.join(what.split())}, {rows} rows"] = (float(us), "us")
    return found


def read_step(output):
    report = next(objects(output))
    settings = report["settings"]
    of = f"{settings['policy']}, {settings['context_tokens']:,} tokens, batch {settings['batch']}"
    return {f"a step: {of}": (report["step_ms_median"], "ms"),
            f"host work of a step: {of}": (report["host_us_per_step"], "us")}


def read_first_token(output):
    report = next(objects(output))
    tokens = report["settings"]["tokens"]
    return {f"first token of {tokens:,}, {policy}": (report[policy]["first_token_s"], "s")
            for policy in ("full", "wave")}


def read_index(output):
    return {name.strip(): (float(ms), "ms") for name, ms in
            re.findall(r"^(.{26}) +([\d.]+) +[\d.]+ (?:TFLOP|GB)/s +\d+ ms", output, re.M)}


def steps(name, *arguments):
    return Stages(name, "decode_throughput_bench",
                  ["--backend", "cuda", "--warm-up", "200", "--steps", "128", *arguments], read_step)


WAVE = ["--context", "122880", "--cache-share", "0.2", "--index-dtype", "bf16", "--retrieval", "0.018"]
ALL = [
    Stages("layer", "wave_stages_bench", ["--max-batch", "6", "--index-dtype", "bf16"], read_layer),
    Stages("products", "linear_cuda_bench", [], read_products),
    Stages("index", "index_construction_bench", [], read_index),
    Stages("first_token", "first_token_bench",
           ["--backend", "cuda", "--tokens", "65536", "--rounds", "1", "--decode-steps", "4"],
           read_first_token),
    steps("full", "--policy", "full", "--context", "32768"),
    steps("wave1", "--batch", "1", *WAVE),
    steps("wave6", "--batch", "6", *WAVE),
]


def run(folder, stages):
    done = subprocess.run([str(folder / stages.program), *stages.arguments], capture_output=True,
                          text=True, check=False, env=os.environ)
    if done.returncode != 0:
        raise RuntimeError(f"{folder / stages.program} {' '.join(stages.arguments)} ended with "
                           f"{done.returncode}: {done.stderr[-500:]}")
    return stages.read(done.stdout)


MANY = 40  # stages of a program; more are summed up


def change_of(figure):
    before, after = (statistics.median(figure[build]) for build in ("before", "after"))
    return before, after, 100 * (after / before - 1)


def shown(change):
    return f"**{change:+.1f} %**" if abs(change) > 2 else f"{change:+.1f} %"


def table(figures):
    """Of {stage: {"of": NAME, "unit": U, "before": [...], "after": [...]}}."""
    lines = ["| stage | before | after | change |", "|---|---:|---:|---:|"]
    both = {stage: figure for stage, figure in figures.items() if figure["before"] and figure["after"]}
    for name in dict.fromkeys(figure["of"] for figure in both.values()):
        of_name = {stage: figure for stage, figure in both.items() if figure["of"] == name}
        if len(of_name) > MANY:
            changes = [change_of(figure)[2] for figure in of_name.values()]
            lines.append(f"| {name}, {len(of_name)} stages: the median change | | | "
                         f"{shown(statistics.median(changes))} ({min(changes):+.1f} to {max(changes):+.1f}) |")
            continue
        for stage, figure in of_name.items():
            before, after, change = change_of(figure)
            lines.append(f"| {stage} | {before:.4g} {figure['unit']} | {after:.4g} {figure['unit']} "
                         f"| {shown(change)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path, nargs="?")
    parser.add_argument("after", type=pathlib.Path, nargs="?")
    parser.add_argument("--render", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("stages.json"))
    options = parser.parse_args()
    if options.render:
        print(table(json.loads(options.render.read_text())))
        return 0
    if options.after is None:
        parser.error("needs the folders of two builds, BEFORE and AFTER, or --render FILE")
    names = options.only.split(",") if options.only else [stages.name for stages in ALL]
    unknown = set(names) - {stages.name for stages in ALL}
    if unknown:
        parser.error(f"no stages {', '.join(sorted(unknown))}; there are "
                     + ", ".join(stages.name for stages in ALL))
    figures, ok = {}, True
    for stages in ALL:
        if stages.name not in names:
            continue
        for _ in range(options.rounds):
            for build, folder in (("before", options.before), ("after", options.after)):
                try:
                    found = run(folder, stages)
                except (RuntimeError, StopIteration) as error:
                    print(f"{stages.name}: {error}", file=sys.stderr)
                    ok = False
                    continue
                for stage, (value, unit) in found.items():
                    figure = figures.setdefault(
                        stage, {"of": stages.name, "unit": unit, "before": [], "after": []})
                    figure[build].append(value)
        options.results.write_text(json.dumps(figures, indent=1))
    print(table(figures))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
