#!/usr/bin/env python3
"""Latency and goodput of one server under a growing load, and a plot of them.

    bench/scheduler/load_curve.py measure --bin-dir FOLDER --on cpu|gpu --out FILE.json [--seconds 20]
    bench/scheduler/load_curve.py plot FILE.json PLOT.svg

`measure` first finds what the server can do, with as many chats at a time as its batch has places; this is the load
of 1. Then chats come in Poisson processes of a quarter of it to three times as many. The server refuses whom it
would let wait for more than a second (--max-expected-wait); good is a chat whose first token came within two.
FOLDER is as for measure.py. On a GPU: random weights of the 8B shape, policy full.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(pathlib.Path(__file__).resolve().parent)]

from measure import Server  # noqa: E402
from tools.lab import plot  # noqa: E402

LOADS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
PLACES = 8
FIGURES = ("request_throughput", "output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_itl_ms",
           "p99_itl_ms", "duration", "completed", "failed", "good", "request_goodput")


def server_options(arguments):
    common = ["--max-batch", str(PLACES), "--max-expected-wait", "1s"]
    if arguments.on == "gpu":
        return common + ["--load-format", "dummy", "--model-shape", "llama-3.1-8b", "--device", "cuda",
                         "--max-model-len", "16384", "--arena-bytes", "8GiB"]
    model = arguments.model or str(ROOT / "models" / "needle")
    return common + ["--model", model, "--device", "cpu", "--max-model-len", "16384", "--arena-bytes", "256MiB"]


def figures_of(server, prompts, at_a_time, shape, **more):
    """Runs chats; of those that the server refused only their number is told."""
    process = server.begin(prompts, at_a_time, *shape, policy="full", slo_first_token="2s", **more)
    _, errors = process.communicate(timeout=600)
    if not process.result.exists():
        raise RuntimeError(errors.decode(errors="replace")[-500:])
    figures = json.loads(process.result.read_text())
    if figures["completed"] == 0:
        raise RuntimeError(f"no chat was served: {figures.get('errors')}")
    return {name: figures[name] for name in FIGURES if name in figures}


def measure(arguments):
    shape = (1024, 128) if arguments.on == "gpu" else (256, 32)
    points = []
    with Server(arguments, server_options(arguments)) as server:
        figures_of(server, 2 * PLACES, PLACES, shape)  # warm
        full = figures_of(server, 12 * PLACES, PLACES, shape)
        capacity = full["request_throughput"]
        print(f"{capacity:.2f} chats a second, {PLACES} at a time", flush=True)
        for load in LOADS:
            rate = load * capacity
            prompts = max(20, round(arguments.seconds * rate))
            point = figures_of(server, prompts, 1024, shape, request_rate=f"{rate:.4f}")
            points.append({"load": load, "rate": rate, **point})
            print(f"{load:5.2f}  first token {point['median_ttft_ms']:8.1f} {point['p99_ttft_ms']:8.1f} ms  "
                  f"tokens {point['median_itl_ms']:6.1f} {point['p99_itl_ms']:6.1f} ms  good "
                  f"{point['request_goodput']:6.2f} a second  refused {point['failed']}", flush=True)
    report = {"on": arguments.on, "input_len": shape[0], "output_len": shape[1], "capacity": capacity,
              "points": points}
    pathlib.Path(arguments.out).write_text(json.dumps(report, indent=2) + "\n")


def draw(report):
    """Returns the report as the text of an SVG file."""
    def series(name, figure, factor=1.0):
        return plot.Series(name, [(point["load"], max(0.01, factor * point[figure])) for point in report["points"]])

    title = f"Chats of {report['input_len']} + {report['output_len']} tokens; 1 = {report['capacity']:.1f} a second"
    per_cent = 100 / report["capacity"]
    return plot.svg(title,
                    [series("first token, median (ms)", "median_ttft_ms"), series("first token, p99 (ms)", "p99_ttft_ms"),
                     series("between tokens, median (ms)", "median_itl_ms"),
                     series("between tokens, p99 (ms)", "p99_itl_ms"),
                     series("goodput (% of a load of 1)", "request_goodput", per_cent)],
                    plot.Axis("load"), plot.Axis("ms, %", log=True))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--bin-dir", required=True)
    measuring.add_argument("--on", choices=("gpu", "cpu"), required=True)
    measuring.add_argument("--out", required=True)
    measuring.add_argument("--model", help="with --on cpu")
    measuring.add_argument("--seconds", type=float, default=20, help="of each load")
    plotting = commands.add_parser("plot")
    plotting.add_argument("report")
    plotting.add_argument("plot")
    arguments = parser.parse_args(arguments)
    try:
        if arguments.command == "measure":
            measure(arguments)
        else:
            report = json.loads(pathlib.Path(arguments.report).read_text())
            pathlib.Path(arguments.plot).write_text(draw(report), encoding="utf-8")
    except (RuntimeError, subprocess.SubprocessError, OSError, KeyError, ValueError) as error:
        print(f"load_curve: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
