#!/usr/bin/env python3
"""What requests of different kinds do to each other on one server, over gRPC.

    bench/scheduler/measure.py --bin-dir FOLDER --on gpu --out FILE.json
    bench/scheduler/measure.py --bin-dir FOLDER --on cpu --out FILE.json [--model models/needle] [--only questions]

FOLDER holds gpu_worker, kv_store_service, http_gateway and retroinfer: build/release/bin, or what scripts/bundle.sh
copied (LD_LIBRARY_PATH=FOLDER/lib). On a GPU: random weights of the 8B shape, about five minutes; on
a CPU: the demo model. Each load is one or several `retroinfer bench` side by side. Prints a table and
writes everything measured as JSON; a load that fails is told and left out of the table, the others go
on, and the exit code is 1.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench.support.measured_server import Server  # noqa: E402


def summary(figures):
    return {key: round(figures[key], 3) for key in
            ("output_throughput", "request_throughput", "median_ttft_ms", "p99_ttft_ms",
             "mean_ttft_ms", "median_itl_ms", "p99_itl_ms", "duration", "completed")
            if figures.get(key) is not None}


class Measuring:
    def __init__(self, only=None):
        self.only = None if only is None else [name.strip() for name in only.split(",")]
        self.loads = {}
        self.rows = []
        self.failed = []

    def wants(self, *names):
        return self.only is None or any(name in self.only for name in names)

    def wants_only(self, *names):
        return self.only is not None and all(name in names for name in self.only)

    def load(self, name, measure):
        if not self.wants(name):
            return
        begun = time.monotonic()
        try:
            figures, rows = measure()
        except (RuntimeError, subprocess.SubprocessError, OSError, KeyError) as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            self.failed.append({"load": name, "error": str(error)})
            return
        self.loads.setdefault(name, []).append(figures)
        self.rows += rows
        for row in rows:
            print(f"{row['what']:<72} {row['value']:>10} {row['unit']:<9} {row['target']}", flush=True)
        print(f"    ({name}: {time.monotonic() - begun:.0f} s)", flush=True)


def row(what, value, unit, target=""):
    return {"what": what, "value": round(value, 2), "unit": unit, "target": target}


def chats(server, prompts, at_a_time, input_len, output_len, targets, **more):
    figures = server.run(prompts, at_a_time, input_len, output_len, **more)
    name = f"{prompts} chats, {at_a_time} at a time"
    rows = [row(f"{name}: output", figures["output_throughput"], "tokens/s", targets[0]),
            row(f"{name}: first token, median", figures["median_ttft_ms"], "ms", targets[1]),
            row(f"{name}: first token, p99", figures["p99_ttft_ms"], "ms", targets[2])]
    return summary(figures), rows


def prompt_beside_streams(server, sizes):
    """One prompt at a time beside four streams, and alone."""
    length, stream_len, count = sizes
    alone = server.run(count, 1, length, 2, policy="full")
    streams = server.begin(4, 4, 256, stream_len, policy="full")
    time.sleep(2)
    beside = server.run(count, 1, length, 2, policy="full")
    streams = server.end(streams, stop=True)
    figures = {"alone": summary(alone), "beside": summary(beside), "streams": summary(streams)}
    return figures, [
        row(f"{length} tokens alone: first token", alone["median_ttft_ms"], "ms"),
        row(f"{length} tokens beside four streams: first token", beside["median_ttft_ms"], "ms",
            "100 (8B, H100)")]


def long_beside_streams(server, long_len, short_len, stream_len, short_rate):
    alone = server.run(1, 1, long_len, 2)
    streams = server.begin(4, 4, 256, stream_len, policy="full")
    time.sleep(2)
    lengthy = server.begin(1, 1, long_len, 2)
    time.sleep(0.5)
    shorts = server.begin(400, 8, short_len, 2, request_rate=short_rate, policy="full")
    lengthy = server.end(lengthy)
    shorts = server.end(shorts, stop=True)
    streams = server.end(streams)  # of requests that are stopped there are no times between tokens
    times = lengthy["median_ttft_ms"] / alone["median_ttft_ms"]
    figures = {"alone": summary(alone), "beside": summary(lengthy), "shorts": summary(shorts),
               "streams": summary(streams)}
    return figures, [
        row(f"{long_len} tokens alone: first token", alone["median_ttft_ms"], "ms"),
        row("  beside four streams and short prompts, times that", times, "", "1.35"),
        row("  streams meanwhile: p99 between tokens", streams["p99_itl_ms"], "ms", "60"),
        row(f"  prompts of {short_len} meanwhile: first token, median", shorts["median_ttft_ms"],
            "ms", "200")]


def many_long(server, count, long_len, short_len, short_rate):
    serial = server.run(count, 1, long_len, 2)
    lengthy = server.begin(count, count, long_len, 2)
    shorts = server.begin(1000, 16, short_len, 16, request_rate=short_rate, policy="full")
    lengthy = server.end(lengthy)
    shorts = server.end(shorts, stop=True)
    figures = {"one_after_another": summary(serial), "together": summary(lengthy),
               "shorts": summary(shorts)}
    return figures, [
        row(f"{count} prompts of {long_len} beside short chats: p99 first token of the chats",
            shorts["p99_ttft_ms"], "ms", "1000"),
        row("  all of them, times one after another", lengthy["duration"] / serial["duration"], "",
            "1.15")]


def questions(server, prefix_len, question_len, clients, count):
    seed = {"prefix_len": prefix_len, "load_seed": 77}
    server.run(1, 1, prefix_len + question_len, 2, **seed)  # leaves the prefix in the arena
    one = server.run(2, 1, prefix_len + question_len, 2, **seed)
    many = server.run(count, clients, prefix_len + question_len, 16, **seed)
    name = f"questions of {question_len} on a cached {prefix_len}"
    return {"one": summary(one), "many": summary(many)}, [
        row(f"{name}, alone: first token", one["median_ttft_ms"], "ms"),
        row(f"{name}, {clients} clients", many["request_throughput"], "a second", "6"),
        row("  first token, median", many["median_ttft_ms"], "ms", "1000")]


def scores(server, context_len, count):
    """What given tokens behind a long context cost, against as many that are generated behind the same one."""
    tokens = random.Random(context_len)
    context = [tokens.randrange(300, 1700) for _ in range(context_len)]
    given = [tokens.randrange(300, 1700) for _ in range(count)]
    figures, rows = {}, []
    for policy in ("full", "wave"):
        prompt = {"prompt": context, "policy": policy, "timeout": 280}
        server.post("/v1/completions", {**prompt, "max_tokens": 1})  # leaves the context in the arena
        generating = server.post("/v1/completions", {**prompt, "max_tokens": count, "ignore_eos": True,
                                                     "temperature": 0})
        scoring = server.post("/score", {**prompt, "continuations": [given]})
        figures[policy] = {"generating_s": generating, "scoring_s": scoring}
        rows += [row(f"{count} tokens behind {context_len}, {policy}: generated in", generating, "s"),
                 row("  scored, times that", scoring / generating, "")]
    return figures, rows


def stepping_aside(server, sizes):
    """Chats of a high class beside long answers of a low one that have all places of the batch."""
    places, input_len, stream_len, count = sizes
    streams = server.begin(places, places, input_len, stream_len, policy="full", priority=2)
    time.sleep(3)
    chats_of_high = server.run(count, 2, 256, 16, policy="full", priority=0)
    was_full = streams.poll() is None
    server.end(streams)
    if not was_full:
        raise RuntimeError("the long answers were over before the chats were")
    log = (server.folder / "serve.log").read_text(errors="replace")
    rates = {way: [float(rate) for rate in re.findall(rf"MB copied {way} the host in .* ms, ([0-9.]+) GB/s", log)]
             for way in ("to", "from")}
    times = {way: [float(ms) for ms in re.findall(rf"MB copied {way} the host in ([0-9.]+) ms", log)]
             for way in ("to", "from")}
    rows = [row(f"chats of a higher class beside {places} long answers: first token, median",
                chats_of_high["median_ttft_ms"], "ms")]
    for way in ("to", "from"):
        if rates[way]:
            rows.append(row(f"  copies {way} the host, median of {len(rates[way])}: {statistics.median(times[way])} ms",
                            statistics.median(rates[way]), "GB/s"))
    return {"chats": summary(chats_of_high), "gb_per_s": rates, "ms": times}, rows


def stopped_early(arguments, options, reserve, sizes):
    """Chats that may generate far more than they do, with dense KV for few of all that they may."""
    count, at_a_time, input_len, max_tokens, tokens = sizes
    drawn = random.Random(input_len)
    bodies = [{"prompt": [drawn.randrange(300, 1700) for _ in range(input_len)], "max_tokens": max_tokens,
               "stop": ["no text has this in it"], "ignore_eos": True, "temperature": 0, "policy": "full",
               "logprobs": 0}  # so that tokens without text have an event, too
              for _ in range(count)]
    with Server(arguments, [*options, "--reserve", reserve]) as server:
        server.wait_for_http()
        server.stream(bodies[0], 16)  # warm
        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(at_a_time) as clients:
            times = list(clients.map(lambda body: server.stream(body, tokens), bodies))
        seconds = time.monotonic() - begun
    got = sum(map(len, times))
    firsts = [1000 * one[0] for one in times]
    name = f"{count} chats that may generate {max_tokens} and stop after {tokens}, --reserve {reserve}"
    return {"seconds": seconds, "tokens": got, "first_token_ms": firsts}, [
        row(f"{name}: output", got / seconds, "tokens/s"),
        row("  first token, median", statistics.median(firsts), "ms")]


def short_beside_long(server, short_len, long_len, count):
    """The CPU's: a short prompt alone, and while a long one is read."""
    alone = server.run(count, 1, short_len, 2)
    lengthy = server.begin(1, 1, long_len, 2)
    time.sleep(1)
    beside = server.run(count, 1, short_len, 2)
    was_there = lengthy.poll() is None
    lengthy = server.end(lengthy)
    if not was_there:
        raise RuntimeError(f"the prompt of {long_len} was read before the short ones were")
    figures = {"alone": summary(alone), "beside": summary(beside), "long": summary(lengthy)}
    return figures, [
        row(f"{short_len} tokens alone: first token, median", alone["median_ttft_ms"], "ms"),
        row(f"  beside a prompt of {long_len}, times that",
            beside["median_ttft_ms"] / alone["median_ttft_ms"], "", "3")]


def on_gpu(arguments, measuring):
    common = ["--load-format", "dummy", "--model-shape", "llama-3.1-8b", "--device", "cuda",
              "--max-model-len", "131072", "--arena-bytes", arguments.arena_bytes]
    if not measuring.wants_only("stopped early", "many chats"):
        with Server(arguments, [*common, "--max-batch", "8"]) as server:
            server.run(8, 8, 1024, 8, policy="full")  # warm
            measuring.load("chats", lambda: chats(server, 64, 8, 1024, 256, ("900", "120", "500"),
                                                  policy="full"))
            measuring.load("prompt beside streams",
                           lambda: prompt_beside_streams(server, (1024, 8000, 20)))
            measuring.load("long beside streams",
                           lambda: long_beside_streams(server, 110000, 512, 1500, 2))
            measuring.load("questions", lambda: questions(server, 100352, 200, 8, 32))
            measuring.load("scores", lambda: scores(server, 100352, 1000))
            measuring.load("many long", lambda: many_long(server, 8, 60000, 512, 2))
            measuring.load("stepping aside", lambda: stepping_aside(server, (8, 4096, 1500, 16)))
    if measuring.wants("stopped early"):
        few = [*common, "--max-batch", "32", "--dense-kv-bytes", "8GiB"]
        for reserve in ("all", "soon"):
            measuring.load("stopped early",
                           lambda: stopped_early(arguments, few, reserve, (96, 32, 1024, 4096, 200)))
    if not measuring.wants("many chats"):
        return
    with Server(arguments, [*common, "--max-batch", "32"]) as server:
        server.run(32, 32, 1024, 8, policy="full")
        measuring.load("many chats", lambda: chats(server, 128, 32, 1024, 256, ("2200", "", ""),
                                                   policy="full"))


def on_cpu(arguments, measuring):
    model = arguments.model or str(ROOT / "models" / "needle")
    if not measuring.wants_only("stopped early"):
        with Server(arguments, ["--model", model, "--device", "cpu", "--arena-bytes", "512MiB",
                                "--max-model-len", "32768"]) as server:
            server.run(4, 4, 256, 8)
            measuring.load("short beside long", lambda: short_beside_long(server, 256, 24000, 8))
            measuring.load("chats", lambda: chats(server, 64, 8, 512, 64, ("", "", "")))
            measuring.load("prompt beside streams",
                           lambda: prompt_beside_streams(server, (512, 4000, 8)))
            measuring.load("long beside streams",
                           lambda: long_beside_streams(server, 16000, 256, 1200, 1))
            measuring.load("questions", lambda: questions(server, 12288, 200, 8, 24))
            measuring.load("scores", lambda: scores(server, 12288, 400))
            measuring.load("stepping aside", lambda: stepping_aside(server, (8, 1024, 1500, 16)))
    if not measuring.wants("stopped early"):
        return
    few = ["--model", model, "--device", "cpu", "--arena-bytes", "256MiB", "--max-model-len", "8192",
           "--max-batch", "8", "--dense-kv-bytes", "48MiB"]
    for reserve in ("all", "soon"):
        measuring.load("stopped early",
                       lambda: stopped_early(arguments, few, reserve, (32, 8, 256, 4096, 100)))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", required=True)
    parser.add_argument("--on", choices=("gpu", "cpu"), required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", help="with --on cpu")
    parser.add_argument("--arena-bytes", default="32GiB", help="with --on gpu")
    parser.add_argument("--only", help="some loads, by their names: chats, questions, long beside streams, ...")
    parser.add_argument("--log", help="a file that the servers' logs are put into, the worst rounds among them")
    arguments = parser.parse_args()
    measuring = Measuring(arguments.only)
    begun = time.monotonic()
    try:
        (on_gpu if arguments.on == "gpu" else on_cpu)(arguments, measuring)
    except (RuntimeError, subprocess.SubprocessError, OSError) as error:
        print(error, file=sys.stderr)
        measuring.failed.append({"load": "server", "error": str(error)})
    report = {"on": arguments.on, "cpus": os.cpu_count(), "seconds": time.monotonic() - begun,
              "table": measuring.rows, "loads": measuring.loads, "failed": measuring.failed}
    pathlib.Path(arguments.out).write_text(json.dumps(report, indent=2) + "\n")
    return 1 if measuring.failed else 0


if __name__ == "__main__":
    sys.exit(main())
