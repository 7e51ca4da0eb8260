#!/usr/bin/env python3
"""Both services on a machine with a GPU, through what a user has: the programs and the demo model.

    tests/gpu/services_test.py --bin-dir FOLDER [--device cuda] [--model models/needle]

FOLDER holds gpu_worker, kv_store_service and retroinfer: build/release/bin, or what
scripts/bundle.sh copied. Asks questions with both policies, measures both, stops and kills the store
and the worker under load, and looks at what is left when both have ended. Tokens under load are
compared with those of an undisturbed run. Prints what it found; ends with 0 if all of it is right.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
POLICIES = ("full", "wave")
STREAMS = 4  # of a load
TIMES = 5    # that a load is started until all of its streams run at once


class Failure(Exception):
    pass


def check(condition, text):
    if not condition:
        raise Failure(text)


def say(text):
    print(text, flush=True)


def eventually(condition, what, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        check(time.monotonic() < deadline, f"{what}: not within {timeout_s} s")
        time.sleep(0.02)


class Services:
    """kv_store_service and gpu_worker, with sockets and logs in a temporary folder."""

    def __init__(self, arguments):
        self.bin_dir = pathlib.Path(arguments.bin_dir).resolve()
        self.arguments = arguments
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="retroinfer-gpu-"))
        self.address = f"unix:{self.folder}/worker.sock"
        self.processes = {}
        self.ports = {}

    def start(self, name, options):
        log_path = self.folder / f"{name}.log"
        with open(log_path, "ab") as log:
            before = log.tell()
            self.processes[name] = subprocess.Popen(
                [str(self.bin_dir / name), "--socket-dir", str(self.folder),
                 "--metrics-address", "127.0.0.1:0", *options], stdout=log, stderr=log)

        def has_port():
            check(self.processes[name].poll() is None, f"{name} ended:\n{self.log(name)}")
            found = re.findall(rb"metrics on port (\d+)", log_path.read_bytes()[before:])
            if found:
                self.ports[name] = int(found[-1])
            return bool(found)

        eventually(has_port, f"{name} starts")

    def start_store(self):
        self.start("kv_store_service", ["--arena-bytes", self.arguments.arena_bytes])

    def start_worker(self):
        """Returns the seconds until it serves."""
        begin = time.monotonic()
        self.start("gpu_worker", ["--model", str(self.arguments.model), "--listen", self.address,
                                  "--device", self.arguments.device, *self.arguments.worker_option])
        eventually(self.is_serving, "gpu_worker serves", 120)
        return time.monotonic() - begin

    def is_serving(self):
        check(self.processes["gpu_worker"].poll() is None,
              f"gpu_worker ended:\n{self.log('gpu_worker')}")
        return self.client("ps", "--socket-dir", str(self.folder)).wait() == 0

    def client(self, command, *options, stdout=subprocess.DEVNULL):
        return subprocess.Popen(
            [str(self.bin_dir / "retroinfer"), command, "--address", self.address, *options],
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True)

    def metric(self, service, name):
        """Sum over the metric's labels."""
        url = f"http://127.0.0.1:{self.ports[service]}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        values = re.findall(rf"^retroinfer_{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        check(values, f"{service} has no metric {name}")
        return sum(float(value) for value in values)

    def signal(self, name, number):
        self.processes[name].send_signal(number)

    def kill(self, name):
        self.signal(name, signal.SIGKILL)
        self.processes[name].wait()

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")[-4000:]

    def close(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def make_questions(arguments, count):
    """`count` questions about as many documents."""
    result = subprocess.run(
        [sys.executable, "-m", "tools.needle.generate", "--task", "multi_key", "--length",
         str(arguments.length), "--count", str(count), "--seed", "5"],
        cwd=ROOT, capture_output=True, text=True, check=False)
    check(result.returncode == 0, f"the generator failed:\n{result.stderr}")
    return [json.loads(line) for line in result.stdout.splitlines()]


class Test:
    def __init__(self, services, questions):
        self.services = services
        self.questions = questions
        self.expected = None  # tokens of a load
        self.paths = []
        for i, question in enumerate(questions):
            self.paths.append(services.folder / f"prompt-{i}.txt")
            self.paths[-1].write_text(question["prompt"], encoding="utf-8")

    def ask(self, index, policy):
        client = self.services.client(
            "generate", "--raw", "--file", str(self.paths[index]), "--policy", policy, "--temperature", "0",
            "--max-tokens", "32", "--quiet", "--json", stdout=subprocess.PIPE)
        out, err = client.communicate(timeout=120)
        check(client.returncode == 0, f"generate: {err}")
        return json.loads(out)

    def answers(self):
        for policy in POLICIES:
            right, first_token = 0, []
            for i, question in enumerate(self.questions):
                answer = self.ask(i, policy)
                first_token.append(answer["ttft_s"])
                right += answer["text"].strip() == question["answer"]
                if answer["text"].strip() != question["answer"]:
                    say(f"  {policy}: {answer['text']!r}, not {question['answer']!r}")
            say(f"answers, {policy}: {right} of {len(self.questions)} right; "
                f"first token after {sorted(first_token)[len(first_token) // 2]:.3f} s")
            check(right >= len(self.questions) - 1, "too many wrong answers")

    def measure(self):
        for policy in POLICIES:
            client = self.services.client(
                "bench", "--policy", policy, "--num-prompts", "16", "--input-len",
                str(self.services.arguments.length), "--output-len", "128", "--max-concurrency",
                "8", "--json", stdout=subprocess.PIPE)
            out, err = client.communicate(timeout=300)
            check(client.returncode == 0, f"bench: {err}")
            report = json.loads(out)
            check(report["failed"] == 0 and report["completed"] == 16, f"bench: {out}")
            say(f"bench, {policy}: 16 x {self.services.arguments.length} + 128 tokens, 8 at a time: "
                f"{report['output_throughput']:.0f} tokens/s, first token "
                f"{report['median_ttft_ms']:.0f} ms, then {report['median_tpot_ms']:.2f} ms a token")

    def host_time(self):
        """What the engine's thread works a step while eight streams decode."""
        names = ("decode_steps_total", "decode_host_seconds_total", "engine_busy_seconds_total")
        before = self.services.metric("gpu_worker", "prompt_tokens_total")
        client = self.services.client(
            "bench", "--policy", "wave", "--num-prompts", "8", "--max-concurrency", "8",
            "--input-len", str(self.services.arguments.length), "--output-len",
            str(2 * self.services.arguments.load_tokens))
        enough = before + 7.5 * self.services.arguments.length
        eventually(lambda: self.services.metric("gpu_worker", "prompt_tokens_total") > enough,
                   "eight streams decode")
        time.sleep(0.2)
        first = [self.services.metric("gpu_worker", name) for name in names]
        time.sleep(self.services.arguments.stop_seconds)
        eventually(lambda: self.services.metric("gpu_worker", names[0]) > first[0], "a step is over")
        last = [self.services.metric("gpu_worker", name) for name in names]
        check(client.poll() is None, "eight streams ended before they were measured")
        _, err = client.communicate(timeout=300)
        check(client.returncode == 0, f"bench: {err}")
        steps, in_steps, busy = (b - a for a, b in zip(first, last))
        say(f"host, 8 streams of wave: {steps:.0f} steps, the engine's thread works "
            f"{1e6 * in_steps / steps:.0f} us a step in steps, {1e6 * busy / steps:.0f} us in all")

    def start_load(self):
        """Streams that draw tokens from whole distributions, so that any change shows. Returns
        when all of them decode. Where a machine is so busy that one has ended before the last one
        began, they are all started again: then their prompts are found in the cache."""
        for _ in range(TIMES):
            clients = self.try_load()
            if all(client.poll() is None for client in clients):
                return clients
            tokens = self.end_load(clients)
            check(self.expected in (None, tokens), "a load that was repeated has other tokens")
        raise Failure("a load ended before it was whole, every time")

    def try_load(self):
        before = self.services.metric("gpu_worker", "prompt_tokens_total")
        clients = []
        for i in range(STREAMS):
            clients.append(self.services.client(
                "generate", "--raw", "--file", str(self.paths[i]), "--policy", "wave", "--temperature", "1",
                "--seed", str(i), "--ignore-eos", "--max-tokens",
                str(self.services.arguments.load_tokens), "--quiet", "--json",
                stdout=open(self.services.folder / f"load-{i}.json", "w+b")))
        # Prompts are counted when they are computed, and are a little shorter than was asked for.
        enough = before + (STREAMS - 0.5) * self.services.arguments.length
        eventually(lambda: self.services.metric("gpu_worker", "prompt_tokens_total") > enough or
                   any(client.poll() is not None for client in clients), "a load decodes")
        return clients

    def end_load(self, clients):
        """Returns the tokens of each stream."""
        tokens = []
        for i, client in enumerate(clients):
            _, err = client.communicate(timeout=300)
            check(client.returncode == 0, f"generate under load: {err}")
            path = self.services.folder / f"load-{i}.json"
            tokens.append(json.loads(path.read_text(encoding="utf-8"))["token_ids"])
        return tokens

    def undisturbed(self):
        self.expected = self.end_load(self.start_load())
        check(self.end_load(self.start_load()) == self.expected,
              "two undisturbed loads have different tokens")
        say(f"load: {STREAMS} x {len(self.expected[0])} tokens, twice the same")

    def stopped_store(self):
        clients = self.start_load()
        self.services.signal("kv_store_service", signal.SIGSTOP)
        stopped_at = self.services.metric("gpu_worker", "generation_tokens_total")
        time.sleep(self.services.arguments.stop_seconds)
        # A step may take longer than that where a machine is busy.
        generated = lambda: self.services.metric("gpu_worker", "generation_tokens_total") - stopped_at
        eventually(lambda: generated() > 0, "tokens while the store is stopped")
        during = generated()
        self.services.signal("kv_store_service", signal.SIGCONT)
        tokens = self.end_load(clients)
        check(tokens == self.expected, "a stopped store changed the tokens")
        say(f"store stopped under load: {during:.0f} tokens meanwhile, all tokens the same")

    def killed_store(self):
        clients = self.start_load()
        self.services.kill("kv_store_service")
        check(self.end_load(clients) == self.expected, "a killed store changed the tokens")
        self.services.start_store()
        eventually(lambda: self.services.metric("gpu_worker", "store_attached") == 1 and
                   self.services.is_serving(), "the worker finds the new store")
        answer = self.ask(0, "wave")
        check(answer["text"].strip() == self.questions[0]["answer"], "wrong after a killed store")
        check(answer["cached_tokens"] > 0, "the new store has lost the segments")
        say(f"store killed under load: the same tokens; the new one finds {answer['cached_tokens']} "
            "tokens of a prompt")

    def killed_worker(self):
        clients = self.start_load()
        self.services.kill("gpu_worker")
        for client in clients:
            _, err = client.communicate(timeout=60)
            check(client.returncode != 0 and err, "a client did not notice that the worker died")
        eventually(lambda: self.services.metric("kv_store_service", "sequences") == 0 and
                   self.services.metric("kv_store_service", "reserved_extents") == 0,
                   "the store frees what the worker held")
        seconds = self.services.start_worker()
        answer = self.ask(1, "wave")
        check(answer["text"].strip() == self.questions[1]["answer"], "wrong after a killed worker")
        check(answer["cached_tokens"] > 0, "the new worker found no prefix")
        check(self.end_load(self.start_load()) == self.expected, "a new worker has other tokens")
        say(f"worker killed under load: a new one serves after {seconds:.1f} s, finds "
            f"{answer['cached_tokens']} tokens of a prompt, gives the same tokens")

    def nothing_held(self):
        held = ("dense_blocks_used", "meta_blocks_used", "slots_used", "requests_running")
        eventually(lambda: all(self.services.metric("gpu_worker", name) == 0 for name in held),
                   "the worker holds nothing", 10)
        eventually(lambda: self.services.metric("kv_store_service", "sequences") == 0 and
                   self.services.metric("kv_store_service", "mirror_slots_used") == 0,
                   "the store holds nothing", 10)

    def end(self):
        for name in ("gpu_worker", "kv_store_service"):
            begin = time.monotonic()
            self.services.signal(name, signal.SIGTERM)
            try:
                code = self.services.processes[name].wait(timeout=60)
            except subprocess.TimeoutExpired:
                raise Failure(f"{name} does not end on SIGTERM") from None
            check(code == 0, f"{name} ended with {code}:\n{self.services.log(name)}")
            say(f"SIGTERM: {name} ended after {time.monotonic() - begin:.1f} s with exit code 0")
        sockets = [path.name for path in self.services.folder.rglob("*")
                   if stat.S_ISSOCK(path.lstat().st_mode)]
        check(not sockets, f"sockets are left: {sockets}")
        # Shared memory has no name: it is gone with the processes that have it.
        left = [pid for pid in processes_with(str(self.services.folder)) if pid != os.getpid()]
        check(not left, f"processes are left: {left}")
        say("no socket and no process is left")


def processes_with(text):
    """Ids of the processes that have `text` in their command line."""
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and text.encode() in (entry / "cmdline").read_bytes():
                yield int(entry.name)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin-dir", default=str(ROOT / "build/release/bin"))
    parser.add_argument("--device", default="cuda", help="of the worker (default: %(default)s)")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/needle")
    parser.add_argument("--arena-bytes", default="4GiB")
    parser.add_argument("--worker-option", action="append", default=[],
                        help="passed on to gpu_worker, as --worker-option=--name=value")
    parser.add_argument("--questions", type=int, default=16, help="at least 4")
    parser.add_argument("--length", type=int, default=16384, help="tokens of a document")
    parser.add_argument("--load-tokens", type=int, default=8000,
                        help="that each stream of a load generates")
    parser.add_argument("--stop-seconds", type=float, default=1,
                        help="how long the store is stopped under load")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    questions = make_questions(arguments, max(STREAMS, arguments.questions))
    services = Services(arguments)
    begin = time.monotonic()
    try:
        services.start_store()
        say(f"gpu_worker serves after {services.start_worker():.1f} s")
        test = Test(services, questions)
        test.answers()
        test.measure()
        test.host_time()
        test.undisturbed()
        test.stopped_store()
        test.killed_store()
        test.killed_worker()
        test.nothing_held()
        test.end()
    except Failure as failure:
        say(f"FAILED: {failure}")
        for name in services.processes:
            say(f"--- {name}\n{services.log(name)}")
        return 1
    finally:
        services.close()
    say(f"all is right, after {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
