#!/usr/bin/env python3
"""Compares what builds of the worker do on the host for a decode step: eight streams of policy wave, in turns.

    tests/gpu/host_time.py --rounds 3 BUILD_A BUILD_B

A build is a folder as services_test.py wants it. Each round starts both services of each build anew. The last lines
give medians in microseconds a step: of the engine's thread in steps, and in all it does.
"""
import argparse
import pathlib
import re
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import services_test  # noqa: E402  (beside this file)


def measure(arguments, build):
    """Returns microseconds a step, in steps and in all."""
    settings = argparse.Namespace(**{**vars(arguments), "bin_dir": build})
    services = services_test.Services(settings)
    said = []
    services_test.say = said.append
    try:
        services.start_store()
        services.start_worker()
        services_test.Test(services, []).host_time()
    finally:
        services.close()
    figures = re.search(r"works (\d+) us a step in steps, (\d+) us in all", said[-1])
    return tuple(int(figure) for figure in figures.groups())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", type=pathlib.Path, default=services_test.ROOT / "models/needle")
    parser.add_argument("--arena-bytes", default="4GiB")
    parser.add_argument("--worker-option", action="append", default=[])
    parser.add_argument("--length", type=int, default=16384, help="tokens of a prompt")
    parser.add_argument("--load-tokens", type=int, default=8000)
    parser.add_argument("--stop-seconds", type=float, default=1)
    arguments = parser.parse_args()
    found = {build: [] for build in arguments.builds}
    for _ in range(arguments.rounds):
        for build in arguments.builds:
            found[build].append(measure(arguments, build))
            print(build, *found[build][-1], flush=True)
    for build, figures in found.items():
        in_steps, in_all = (statistics.median(column) for column in zip(*figures))
        print(f"{build}: {in_steps:.0f} us a step in steps, {in_all:.0f} us in all, medians of {len(figures)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except services_test.Failure as failure:
        sys.exit(f"host_time.py: {failure}")
