#!/usr/bin/env python3
"""Models over several GPUs beside one: decode steps over long contexts, what misses take over the bus, and the first
token of a long prompt.

    bench/ranks/measure.py --bin-dir FOLDER --out FILE.json [--ranks 1,2,4] [--only NAME,...] [--list]

FOLDER holds gpu_worker, kv_store_service, http_gateway and retroinfer: build/release/bin, or what scripts/bundle.sh
copied (LD_LIBRARY_PATH=FOLDER/lib). Random weights; contexts are synthetic (--synthetic-context), with the reuse of
recorded text; prompts are random tokens, read in full. A figure of decode steps is of a time in which all requests
of the batch decode, counted by the worker's own metrics. Writes after each case, so that what was measured is kept
whatever happens; --out goes on where it ended. Where a case fails, its error stands in its place, and the exit code
is 1.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench.support.measured_server import Server  # noqa: E402

CONTEXT = 122_880
MILLION = 1 << 20
PROMPT = 117_760
MIB = 1 << 20
GIB = 1 << 30
INPUT = 16  # tokens of a prompt behind its synthetic context
# A segment of 1,024 tokens more for each context: short segments take some KiB more than the long one that `check`
# counts in their place.
SPARE = 1024

FP8 = ["--weights-dtype", "fp8", "--kv-dtype", "int8"]
BF16 = ["--kv-dtype", "int8"]


class Case:
    """Requests behind synthetic contexts of one server: `batches` of them together, one after the other."""

    def __init__(self, name, shape, context, batches, options):
        self.name, self.shape, self.context = name, shape, context
        self.batches, self.options = batches, options

    def arena_bytes(self, ranks, settings):
        """What the largest batch reserves, in whole MiB, as the server's own planning counts it."""
        options = [*self.options, *settings.option]
        command = [str(pathlib.Path(settings.bin_dir) / "retroinfer"), "check", "--model-shape", self.shape,
                   "--tensor-parallel", str(ranks), "--users", str(max(self.batches)), "--json",
                   "--context", str(self.context + INPUT + settings.output + SPARE)]
        for name in ("--kv-dtype", "--index-dtype"):
            if (value := value_of(name, options)) is not None:
                command += [name, value]
        if value_of("--device", options) != "cpu":
            command += ["--gpu-memory", "70GiB"]  # a GPU's default index; how much of it there is does not matter
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if not answer.stdout.startswith("{"):  # what does not fit this machine is told, too
            raise RuntimeError(f"'{' '.join(command)}' says: {answer.stderr.strip()}")
        return -(-json.loads(answer.stdout)["target_arena_bytes"] // MIB) * MIB


def value_of(name, options):
    """The last value of an option, given as two words or as one with '='."""
    found = None
    for word, behind in zip(options, [*options[1:], None]):
        if word == name:
            found = behind
        elif word.startswith(name + "="):
            found = word.removeprefix(name + "=")
    return found


def cases(ranks, largest_8b, largest_70b):
    """What is measured with so many ranks; `largest`: contexts of 120K in the largest batch."""
    # Slots for hardly any page: steps are as fast as the bus. What slots are given is each rank's.
    few_slots = [*FP8, "--block-cache-bytes", str(GIB // ranks)]
    found = [Case("8b", "llama-3.1-8b", CONTEXT, [1, largest_8b], FP8),
             Case("8b-1m", "llama-3.1-8b", MILLION, [1], FP8),
             Case("8b-misses", "llama-3.1-8b", CONTEXT, [6], few_slots)]
    if ranks > 1:
        found.append(Case("70b", "llama-3.1-70b", CONTEXT, [1, largest_70b], FP8))
    if ranks > 2:
        found.append(Case("70b-bf16", "llama-3.1-70b", CONTEXT, [1], BF16))
        found.append(Case("70b-1m", "llama-3.1-70b", MILLION, [1], FP8))
    return found


def smoke_cases(ranks):
    options = ["--device", "cpu", "--dense-below", "2048", "--kv-dtype", "int8"]
    return [Case("tiny", "tiny", 9000, [1, 2], options)] if ranks < 3 else []


def wait_for(server, condition, what, timeout_s):
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            now = server.metrics()
            raise RuntimeError(f"{what}: not within {timeout_s} s; {now['requests_running']:.0f} are admitted, "
                               f"{now['requests_waiting']:.0f} wait; the log ends: {server.log_tail()}")
        if server.process.poll() is not None:
            raise RuntimeError("the server has ended")
        time.sleep(0.1)


def rates(server, seconds, steps, timeout_s):
    """What the worker did in at least so many seconds and steps from now on."""
    before, begin = server.metrics(), time.monotonic()
    while True:
        time.sleep(0.1)
        after, end = server.metrics(), time.monotonic()
        done = {name: after[name] - before.get(name, 0) for name in after} | {"seconds": end - begin}
        if (end - begin >= seconds and done["decode_steps_total"] >= steps) or end - begin > timeout_s:
            return done
        if server.process.poll() is not None:
            raise RuntimeError("the server has ended")


def least_steps(batch):
    """That tell a batch from one with a request fewer, whenever between two steps the counters were read."""
    return 2 * batch + 20


def had_all(done, batch):
    steps = done["decode_steps_total"]
    return steps >= least_steps(batch) and done["generation_tokens_total"] >= batch * (steps - 1)


def decode(server, batch, settings):
    """Steps of `batch` requests that decode together."""
    load = server.begin(batch, batch, INPUT, settings.output)
    try:
        wait_for(server, lambda: had_all(rates(server, 0, least_steps(batch), settings.fill_seconds), batch),
                 f"{batch} requests decode", settings.fill_seconds)
        time.sleep(settings.warm_seconds)
        one = rates(server, settings.seconds, least_steps(batch), settings.fill_seconds)
        if not had_all(one, batch):
            raise RuntimeError("requests have ended while they were measured")
    finally:
        server.end(load, stop=True)
    wait_for(server, lambda: server.metrics()["requests_running"] == 0, "the load ends", 60)
    steps, hits, misses = one["decode_steps_total"], one["page_hits_total"], one["page_misses_total"]
    read = one["arena_read_bytes_total"] + one.get("rank_arena_read_bytes_total", 0)
    return {"batch": batch, "steps": steps, "tokens_per_second": one["generation_tokens_total"] / one["seconds"],
            "step_ms": 1e3 * one["seconds"] / steps if steps else None,
            "page_hits": hits / (hits + misses) if hits + misses else None,
            "misses_a_step": misses / steps if steps else None,
            "misses_gb_per_s": read / 1e9 / one["seconds"],  # of all ranks
            "waited_for_ranks_us": 1e6 * one.get("rank_wait_seconds_total", 0) / steps if steps else None}


def measure_case(case, ranks, settings):
    arena_bytes = case.arena_bytes(ranks, settings)
    options = ["--load-format", "dummy", "--model-shape", case.shape, "--tensor-parallel", str(ranks),
               "--synthetic-context", str(case.context), "--max-model-len", str(settings.output + 32),
               "--speculation", "off", "--max-batch", str(max(case.batches)), "--arena-bytes", str(arena_bytes),
               *case.options, *settings.option]
    begin = time.monotonic()
    with Server(settings, options) as server:
        loaded = time.monotonic() - begin
        found = {"case": case.name, "ranks": ranks, "shape": case.shape, "context": case.context,
                 "arena_gib": arena_bytes / GIB, "serves_after_s": round(loaded, 1),
                 "slots": server.metrics()["slots"], "decode": []}
        for batch in case.batches:
            try:
                found["decode"].append(decode(server, batch, settings))
            except (RuntimeError, OSError) as error:
                return found | {"error": str(error)}
        return found


def first_token(ranks, settings):
    """Of one long prompt, alone; the second of two, with unlike tokens."""
    options = ["--load-format", "dummy", "--model-shape", "llama-3.1-8b", "--tensor-parallel", str(ranks), *FP8,
               "--activations-dtype", "fp8", "--max-model-len", "131072", "--arena-bytes", str(24 * GIB),
               *settings.option]
    with Server(settings, options) as server:
        runs = [server.run(1, 1, PROMPT, 2)["median_ttft_ms"] for _ in range(2)]
    return {"case": "first-token", "ranks": ranks, "prompt": PROMPT, "first_token_ms": runs[-1], "first_run_ms": runs[0]}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", default=str(ROOT / "build/release/bin"))
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--only", help="cases, separated by commas")
    parser.add_argument("--largest-8b", type=int, default=10, help="contexts of 120K for each rank (default: 10)")
    parser.add_argument("--largest-70b", type=int, default=4, help="contexts of 120K of the 70B (default: 4)")
    parser.add_argument("--option", action="append", default=[], help="passed on to serve, as --option=--name=value")
    parser.add_argument("--output", type=int, default=2000,
                        help="tokens that a request may write: more than a measurement takes (default: 2000)")
    parser.add_argument("--seconds", type=float, default=2.5, help="that steps are counted for")
    parser.add_argument("--warm-seconds", type=float, default=2, help="of steps before that")
    parser.add_argument("--fill-seconds", type=float, default=90, help="that contexts may take")
    parser.add_argument("--smoke", action="store_true", help="a tiny shape on the CPU")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    return parser.parse_args()


def main():
    settings = parse_arguments()
    results = json.loads(settings.out.read_text()) if settings.out.exists() else []
    done = {(one["case"], one["ranks"]) for one in results if "error" not in one}
    wanted = settings.only.split(",") if settings.only else None
    todo = []
    for ranks in map(int, settings.ranks.split(",")):
        if settings.smoke:
            found = smoke_cases(ranks)
        else:
            found = cases(ranks, settings.largest_8b * ranks, settings.largest_70b)
            todo.append(("first-token", ranks, lambda ranks=ranks: first_token(ranks, settings)))
        todo += [(case.name, ranks, lambda case=case, ranks=ranks: measure_case(case, ranks, settings))
                 for case in found]
    failed = False
    for name, ranks, measure in todo:
        if (wanted is not None and name not in wanted) or (name, ranks) in done:
            continue
        if settings.list:
            print(name, ranks)
            continue
        begin = time.monotonic()
        try:
            figures = measure()
        except (RuntimeError, OSError, KeyError, subprocess.SubprocessError) as error:
            figures, failed = {"case": name, "ranks": ranks, "error": str(error)}, True
        failed = failed or "error" in figures
        figures["took_s"] = round(time.monotonic() - begin, 1)
        results = [one for one in results if (one["case"], one["ranks"]) != (name, ranks)] + [figures]
        settings.out.write_text(json.dumps(results, indent=1))
        print(json.dumps(figures), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
