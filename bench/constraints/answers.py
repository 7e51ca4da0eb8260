#!/usr/bin/env python3
"""Asks a served model for answers of many schemas and keeps them, for tools/constraints/check_values.py.

    bench/constraints/answers.py --bin-dir BIN --model FOLDER --schemas FILE --out FILE [--runs 10000]
                                 [--kills 3] [--serve-option=...]

Starts `retroinfer serve` and its gateway. Each run is one chat request with response_format json_schema, at temperature
1, with a seed of its own; every eighth has a higher priority, so that others are preempted where memory is short. The
worker is killed (SIGKILL) --kills times on the way; a request that falls with it is asked again. FILE of schemas: JSON
lines, as tools/constraints/make_schemas.py writes them. Python's own library alone.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, arguments):
        self.folder = tempfile.TemporaryDirectory(prefix="answers-")
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.log = open(pathlib.Path(self.folder.name) / "log", "wb")
        self.process = subprocess.Popen(
            [arguments.bin_dir / "retroinfer", "serve", "--model", arguments.model, f"--http=127.0.0.1:{port}",
             f"--socket-dir={self.folder.name}/s", *arguments.serve_option],
            stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)
        self.await_ready(600)

    def await_ready(self, seconds):
        deadline = time.monotonic() + seconds
        while True:
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"answers.py: the server is not ready\n{self.tail()}")
            time.sleep(0.2)

    def tail(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")[-4000:]

    def kill_worker(self):
        """Kills the worker below this `serve` alone."""
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                name = (entry / "comm").read_text().strip()
            except (OSError, IndexError, ValueError):
                continue
            if parent == self.process.pid and name == "gpu_worker":
                os.kill(int(entry.name), signal.SIGKILL)
                return
        sys.exit("answers.py: found no gpu_worker to kill")

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


def ask(server, schema, seed, max_tokens):
    body = {"messages": [{"role": "user", "content": "Write one example of what the schema describes."}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
            "temperature": 1, "seed": seed, "max_tokens": max_tokens, "priority": 0 if seed % 8 == 0 else 1}
    request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)["choices"][0]


def run(server, schemas, seed, arguments, counts):
    number = seed % len(schemas)
    while True:
        try:
            choice = ask(server, schemas[number], seed, arguments.max_tokens)
            break
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            if error.code < 500 and error.code != 429:
                return {"schema": schemas[number], "seed": seed, "refused": text}
        except (OSError, ValueError):
            pass
        with counts["lock"]:
            counts["again"] += 1
        time.sleep(0.5)
    text, reason = choice["message"]["content"], choice["finish_reason"]
    # An answer that max_tokens has cut is the beginning of a value.
    return {"schema": schemas[number], "seed": seed, "finish_reason": reason,
            "values": [text] if reason == "stop" else [], "cut": text if reason != "stop" else None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", type=pathlib.Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--schemas", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--serve-option", action="append", default=[])
    arguments = parser.parse_args()
    schemas = [json.loads(line) for line in arguments.schemas.read_text().splitlines()]
    server = Server(arguments)
    counts = {"again": 0, "lock": threading.Lock()}
    begun = time.monotonic()
    finished = {}
    try:
        with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool, arguments.out.open("w") as out:
            futures = [pool.submit(run, server, schemas, seed, arguments, counts) for seed in range(arguments.runs)]
            kill_at = {arguments.runs * (i + 1) // (arguments.kills + 1) for i in range(arguments.kills)}
            for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
                answer = future.result()
                finished[answer.get("finish_reason", "refused")] = finished.get(answer.get("finish_reason", "refused"), 0) + 1
                out.write(json.dumps(answer) + "\n")
                if done in kill_at:
                    server.kill_worker()
        with urllib.request.urlopen(server.url + "/stats", timeout=30) as answer:
            stats = json.load(answer)
    except urllib.error.HTTPError:
        stats = {}
    finally:
        server.close()
    preemptions = pathlib.Path(server.log.name).read_text(errors="replace").count(": preempted after ")
    print(json.dumps({"runs": arguments.runs, "schemas": len(schemas), "seconds": round(time.monotonic() - begun, 1),
                      "asked_again": counts["again"], "worker_kills": arguments.kills, "preemptions": preemptions, "ended_by": finished,
                      "stats": stats}))


if __name__ == "__main__":
    main()
