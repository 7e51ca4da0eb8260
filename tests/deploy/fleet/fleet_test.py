#!/usr/bin/env python3
"""Three nodes on the CPU behind the real HAProxy, with deploy/fleet/haproxy.cfg and the client of
deploy/fleet/ask.py: questions about a document reach the node that has read it, also when nodes are killed,
come back, or are drained for an upgrade.

usage: fleet_test.py BIN_DIR [--documents 30] [--questions 300] [--seed N]
"""
import argparse
import collections
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "deploy/fleet"))
MODEL = ROOT / "models/needle"
LENGTH = 8500  # tokens: one segment of 8192 that questions about a document share
NODES = 3
SKIPPED = 77
TIMEOUT_S = 300


def fail(text):
    raise AssertionError(text)


def check(condition, text):
    if not condition:
        fail(text)


def eventually(condition, what, timeout_s=TIMEOUT_S):
    deadline = time.monotonic() + timeout_s
    while not condition():
        check(time.monotonic() < deadline, f"{what}: not within {timeout_s} s")
        time.sleep(0.05)


class Process:
    """A program with its log, in a folder."""

    def __init__(self, folder, name, command, **environment):
        self.name = name
        self.log_path = folder / f"{name}.log"
        with open(self.log_path, "ab") as log:
            self.log_begin = log.tell()
            clean = {key: value for key, value in os.environ.items() if not key.startswith("RETROINFER_")}
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, env={**clean, **environment})

    def log(self):
        return self.log_path.read_bytes()[self.log_begin:].decode(errors="replace")

    def find(self, pattern):
        check(self.process.poll() is None, f"{self.name} ended:\n{self.log()[-3000:]}")
        return re.search(pattern, self.log())

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=TIMEOUT_S)


class Node:
    """A kv_store_service and a gpu_worker with a cache of their own."""

    def __init__(self, bin_dir, folder, index):
        self.bin_dir = bin_dir
        self.name = f"node-{index}"
        self.folder = folder / self.name
        self.folder.mkdir()
        self.socket = self.folder / "api.sock"
        self.store = self.worker = None
        self.port = 0

    def start(self):
        common = ["--socket-dir", self.folder / "sockets", "--metrics-address", "127.0.0.1:0"]
        self.store = Process(self.folder, "store", [self.bin_dir / "kv_store_service", *common,
                                                   "--arena-bytes", "1GiB"])
        self.worker = Process(self.folder, "worker", [
            self.bin_dir / "gpu_worker", *common, "--model", MODEL, "--listen", f"unix:{self.socket}",
            "--threads", "1", "--memory", "1GiB", "--max-model-len", "9000", "--device", "cpu"])

    def wait(self):
        eventually(lambda: self.worker.find("serving"), f"{self.name} serves")
        self.port = int(self.worker.find(r"metrics on port (\d+)")[1])

    def metric(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        values = re.findall(rf"^retroinfer_{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        check(values, f"{self.name} has no metric {name}")
        return sum(map(float, values))

    def kill(self):
        self.worker.end(signal.SIGKILL)
        self.store.end(signal.SIGKILL)

    def end(self):
        for process in (self.worker, self.store):
            if process is not None:
                process.end()


class Balancer:
    def __init__(self, folder, nodes):
        self.socket = folder / "balancer.sock"
        self.admin = folder / "admin.sock"
        self.process = Process(
            folder, "haproxy", [shutil.which("haproxy"), "-f", ROOT / "deploy/fleet/haproxy.cfg"],
            LISTEN=f"unix@{self.socket}", INSIDE=f"unix@{folder}/inside.sock", STATUS=f"unix@{folder}/status.sock", ADMIN_SOCKET=str(self.admin),
            **{f"NODE_{i}": f"unix@{node.socket}" for i, node in enumerate(nodes)})
        eventually(lambda: self.process.find("") and self.admin.exists(), "haproxy starts")

    def command(self, text):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.admin))
            connection.sendall(text.encode() + b"\n")
            return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()

    def servers(self):
        """State and number of sessions by node."""
        rows = [line.split(",") for line in self.command("show stat nodes 4 -1").splitlines()]
        names = rows[0]
        return {row[1]: dict(zip(names, row)) for row in rows[1:] if len(row) > 17}

    def is_up(self, node):
        return self.servers()[node.name]["status"].startswith("UP")


class Gateway:
    """An http_gateway whose worker is the balancer."""

    def __init__(self, bin_dir, folder):
        self.socket = folder / "http.sock"
        self.process = Process(folder, "gateway", [bin_dir / "http_gateway", "--http", f"unix:{self.socket}",
                                                   "--worker", f"unix:{folder}/inside.sock"])
        eventually(lambda: self.process.find("serving"), "the gateway serves")

    def ask(self, prompt):
        """Returns the text, and how many tokens of the prompt were cached."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(str(self.socket))
            body = json.dumps({"prompt": prompt, "max_tokens": 24, "temperature": 0}).encode()
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: fleet\r\nContent-Type: application/json\r\n"
                               b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            response = http.client.HTTPResponse(connection)
            response.begin()
            text = response.read().decode()
        check(response.status == 200, text)
        answer = json.loads(text)
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


class Load:
    """Asks questions from several threads, and knows where each answer came from."""

    def __init__(self, client, questions, concurrency):
        self.client = client
        self.questions = collections.deque(questions)
        self.answers = []  # (document, cached tokens, right, seconds)
        self.failures = []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._work) for _ in range(concurrency)]
        for thread in self.threads:
            thread.start()

    def _work(self):
        while True:
            with self.lock:
                if not self.questions:
                    return
                document, prompt, answer = self.questions.popleft()
            begin = time.monotonic()
            try:
                text, finished = self.client.ask(prompt, max_tokens=24, timeout_s=TIMEOUT_S)
                with self.lock:
                    self.answers.append((document, finished.cached_tokens, text.strip() == answer,
                                         time.monotonic() - begin))
            except Exception as error:  # pylint: disable=broad-except
                with self.lock:
                    self.failures.append(f"document {document}: {error!r}"[:300])

    def wait(self):
        for thread in self.threads:
            thread.join()
        if self.client.asked_again:
            print(f"asked a second time: {dict(self.client.asked_again)}", flush=True)
            self.client.asked_again.clear()
        check(not self.failures, f"{len(self.failures)} questions failed: {self.failures[:3]}")
        return self.answers


class Fleet:
    def __init__(self, arguments, folder):
        import ask
        self.arguments = arguments
        self.random = random.Random(arguments.seed)
        self.nodes = [Node(arguments.bin_dir, folder, i) for i in range(NODES)]
        self.balancer = Balancer(folder, self.nodes)
        self.client = ask.Client(f"unix:{self.balancer.socket}")

    def start(self):
        for node in self.nodes:
            node.start()
        self.make_documents()
        for node in self.nodes:
            node.wait()
        eventually(lambda: all(map(self.balancer.is_up, self.nodes)), "haproxy finds all nodes healthy")

    def make_documents(self):
        result = subprocess.run(
            [sys.executable, "-m", "tools.needle.generate", "--task", "multi_key", "--length", str(LENGTH),
             "--count", str(self.arguments.documents), "--questions", "16", "--seed",
             str(self.arguments.seed)], cwd=ROOT, capture_output=True, text=True, check=False)
        check(result.returncode == 0, f"the generator failed:\n{result.stderr}")
        self.documents = collections.defaultdict(list)
        for line in map(json.loads, result.stdout.splitlines()):
            number = int(line["document_id"].rsplit("-", 1)[1])
            self.documents[number].append((number, line["prompt"], line["answer"]))

    def questions(self, count):
        """Each document at least once, the others drawn; in no order."""
        numbers = list(self.documents)
        drawn = numbers[:count] + self.random.choices(numbers, k=max(0, count - len(numbers)))
        self.random.shuffle(drawn)
        return [self.random.choice(self.documents[number]) for number in drawn]

    def load(self, count):
        return Load(self.client, self.questions(count), self.arguments.concurrency)

    def home(self, number):
        """The node that questions about a document go to now, by the balancer's counts."""
        before = self.balancer.servers()
        Load(self.client, [self.documents[number][0]], 1).wait()
        after = self.balancer.servers()
        chosen = [name for name in after if after[name]["lbtot"] != before[name]["lbtot"]]
        check(len(chosen) == 1, f"one question went to {chosen}")
        return chosen[0]

    def ask_over_http(self, gateway):
        """Of each document, one question: it goes where questions over gRPC go, and finds the document there."""
        for number, questions in self.documents.items():
            home = self.home(number)
            before = self.balancer.servers()[home]["lbtot"]
            _, prompt, answer = questions[-1]
            text, cached = gateway.ask(prompt)
            check(text.strip() == answer, f"over HTTP: {text!r}, not {answer!r}")
            check(cached > 0 and self.balancer.servers()[home]["lbtot"] != before,
                  f"document {number} was not found on {home}: {cached} tokens cached")

    def homes(self):
        return {number: self.home(number) for number in self.documents}

    def close(self):
        self.client.close()
        self.balancer.process.end(signal.SIGTERM)
        for node in self.nodes:
            node.end()


def report(what, answers, seen):
    """Checks the answers; prints the share of the second and later questions that hit."""
    hits = later = 0
    for document, cached, _, _ in answers:
        if document in seen:
            later += 1
            hits += cached > 0
        seen.add(document)
    wrong = sum(not right for _, _, right, _ in answers)
    print(f"{what}: {len(answers)} questions, {wrong} wrong, {hits} of {later} second and later ones hit "
          f"({100 * hits / max(later, 1):.1f} %); slowest {max(a[3] for a in answers):.1f} s", flush=True)
    check(wrong <= len(answers) / 50, f"{what}: {wrong} wrong answers")
    return hits, later


def check_gauges(nodes):
    """The three by which gateways choose (deploy/fleet/inference-pool.yaml)."""
    pool = (ROOT / "deploy/fleet/inference-pool.yaml").read_text(encoding="utf-8")
    names = re.findall(r"-metric=retroinfer_(\w+)", pool)
    check(len(names) == 3, f"the pool names {names}")
    for node in nodes:
        for name in names:
            check(0 <= node.metric(name) <= 1, f"{name} of an idle node is {node.metric(name)}")


def run(arguments, folder):
    fleet = Fleet(arguments, folder)
    balancer, nodes = fleet.balancer, fleet.nodes
    try:
        fleet.start()
        check_gauges(nodes)
        seen = set()
        hits, later = report("three nodes", fleet.load(arguments.questions).wait(), seen)
        check(hits >= 0.95 * later, "fewer than 95 % of the second and later questions hit")
        gateway = Gateway(arguments.bin_dir, folder)
        try:
            fleet.ask_over_http(gateway)
        finally:
            gateway.process.end()
        print(f"over HTTP: all {len(fleet.documents)} documents are found where they are")
        homes = fleet.homes()
        shares = collections.Counter(homes.values())
        print(f"documents by node: {dict(sorted(shares.items()))}")
        # The node with most documents loses them, and gets them back.
        victim = next(node for node in nodes if node.name == shares.most_common(1)[0][0])
        load = fleet.load(arguments.questions // 3)
        eventually(lambda: len(load.answers) >= 2 or not load.questions, "a load runs")
        victim.kill()
        report(f"{victim.name} killed under load", load.wait(), seen)
        eventually(lambda: not balancer.is_up(victim), "haproxy finds the node dead")
        moved = fleet.homes()
        for number, home in homes.items():
            check((moved[number] != home) == (home == victim.name),
                  f"document {number} was on {home}, is on {moved[number]} without {victim.name}")
        print(f"without {victim.name}: its {shares[victim.name]} documents moved, no other")
        victim.start()
        victim.wait()
        eventually(lambda: balancer.is_up(victim), "haproxy finds the node again")
        check(fleet.homes() == homes, "documents did not come back to their nodes")
        print(f"{victim.name} came back: all documents are where they were")
        # An upgrade: SIGTERM, as Kubernetes and systemd do; what runs ends, what comes goes elsewhere.
        drained = next(node for node in nodes if node.name == shares.most_common(2)[-1][0])
        load = fleet.load(arguments.questions // 3)
        eventually(lambda: len(load.answers) >= 2 or not load.questions, "a load runs")
        code = drained.worker.end(signal.SIGTERM)
        check(code == 0, f"the drained worker ended with {code}")
        drained.store.end()
        drained.start()
        drained.wait()
        report(f"{drained.name} drained and started again under load", load.wait(), seen)
        eventually(lambda: balancer.is_up(drained), "haproxy finds the drained node again")
        check(fleet.homes() == homes, "documents did not come back after the upgrade")
    finally:
        with contextlib.suppress(Exception):
            print(f"haproxy says:\n{balancer.process.log()[-1500:]}")
        fleet.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin_dir", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--documents", type=int, default=30)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--concurrency", type=int, default=3, help="questions at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if shutil.which("haproxy") is None:
        print("SKIPPED: haproxy is not installed (scripts/bootstrap.sh)")
        return SKIPPED
    try:
        import grpc  # pylint: disable=unused-import
    except ImportError:
        print("SKIPPED: python3-grpcio is not installed (scripts/bootstrap.sh)")
        return SKIPPED
    folder = pathlib.Path(tempfile.mkdtemp(prefix="retroinfer-fleet-"))
    try:
        run(arguments, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("all of it is right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
