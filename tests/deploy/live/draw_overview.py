#!/usr/bin/env python3
"""Draws docs/operate/overview.svg: the dashboard "overview" over some minutes of a changing load.

    tests/deploy/live/draw_overview.py [--bin-dir build/release/bin] [--minutes 5] [--keep FILE]

--keep writes what Prometheus answered to FILE; --from FILE draws that again, without a server.
"""
import argparse
import json
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "deploy" / "live"), str(ROOT / "deploy" / "grafana")]

import load  # noqa: E402
import picture  # noqa: E402
import stack as live  # noqa: E402

DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/overview.json").read_text(encoding="utf-8"))


def measure(arguments):
    stack = live.Stack(arguments.bin_dir, worker_options=load.WORKER_OPTIONS)
    try:
        stack.start_store()
        stack.start_worker()
        stack.start_prometheus()
        stack.wait_for_scrapes(20)
        begin = time.time()
        load.run_for(stack, 60 * arguments.minutes)
        end = time.time()
        step = max(1, round((end - begin) / 150))
        return picture.collect(DASHBOARD, lambda expression: stack.range(
            load.substitute(expression), begin, end, step))
    finally:
        stack.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", default=ROOT / "build/release/bin")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/operate/overview.svg")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--from", type=pathlib.Path, dest="source")
    arguments = parser.parse_args()
    results = json.loads(arguments.source.read_text(encoding="utf-8")) if arguments.source else measure(arguments)
    if arguments.keep:
        arguments.keep.write_text(json.dumps(results), encoding="utf-8")
    arguments.output.write_text(picture.draw(DASHBOARD, results), encoding="utf-8")


if __name__ == "__main__":
    main()
