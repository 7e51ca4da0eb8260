#!/usr/bin/env python3
"""The demonstration behind scripts/demo.sh: serve a model of this tree and compare full and wave.

models/needle is asked about a long document; models/code continues a file (demo_text.py).
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import demo_text

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "needle"
MIN_TOKENS, MAX_TOKENS = 1024, 131072
POLICIES = ("full", "wave")
ANSWER_TOKENS = 64
PAGE_ADDRESS = "127.0.0.1:8000"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal that ends the demonstration."""


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/demo.sh", description="Serves a model and compares full and wave attention.")
    parser.add_argument("--model", choices=("needle", "code"), default="needle",
                        help="needle: hides facts in a document and asks for them; code: continues "
                             "a file of this project's Python source, and says how often the two "
                             "agree (default: needle)")
    parser.add_argument("--tokens", type=int, default=16384,
                        help=f"length of document and question, or of the source and what follows "
                             f"it, {MIN_TOKENS} to {MAX_TOKENS}; at the longest a question's answer "
                             "is counted, too (default: 16384)")
    parser.add_argument("--questions", type=int, help="facts to ask needle for, 1 to 16 (default: 3)")
    parser.add_argument("--seed", type=int,
                        help="of needle's document (default: another one each time)")
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)  # the arguments only
    parser.add_argument("--bin-dir", default=str(ROOT / "build/release/bin"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not MIN_TOKENS <= arguments.tokens <= MAX_TOKENS:
        parser.error(f"--tokens {arguments.tokens}: the model reads {MIN_TOKENS} to {MAX_TOKENS}")
    if arguments.model == "code":
        for name in ("questions", "seed"):
            if getattr(arguments, name) is not None:
                parser.error(f"--{name} {getattr(arguments, name)}: belongs to --model needle; code "
                             "continues the same text each time")
        return arguments
    arguments.questions = 3 if arguments.questions is None else arguments.questions
    arguments.seed = int(time.time()) if arguments.seed is None else arguments.seed
    if not 1 <= arguments.questions <= 16:
        parser.error(f"--questions {arguments.questions}: 1 to 16 can be asked")
    if not 0 <= arguments.seed < 2**63:
        parser.error(f"--seed {arguments.seed}: 0 to {2**63 - 1}")
    return arguments


def make_questions(arguments):
    """Asks the generator for one document and several questions about it.

    Document, question and answer must fit into the positions of the model together.
    """
    length = min(arguments.tokens, MAX_TOKENS - ANSWER_TOKENS)
    command = [sys.executable, "-m", "tools.needle.generate", "--task", "multi_key",
               "--length", str(length), "--questions", str(arguments.questions),
               "--seed", str(arguments.seed)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"demo: the generator failed:\n{result.stderr}")
    return [json.loads(line) for line in result.stdout.splitlines()]


class Server:
    """`retroinfer serve` in a process group of its own, stopped when the block ends."""

    def __init__(self, bin_dir, work_dir, model):
        self.model = str(model)
        self.program = str(pathlib.Path(bin_dir) / "retroinfer")
        self.work_dir = pathlib.Path(work_dir)
        self.address = f"unix:{self.work_dir}/api.sock"
        self.log_path = self.work_dir / "server.log"

    def __enter__(self):
        command = [self.program, "serve", "--model", self.model, "--listen", self.address,
                   "--socket-dir", str(self.work_dir / "sockets"), "--arena-bytes", "1GiB",
                   "--metrics-address", "127.0.0.1:0", "--store-metrics-address", "127.0.0.1:0"]
        self.log = open(self.log_path, "wb")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT,
                                        start_new_session=True)
        return self

    def __exit__(self, *unused):
        # A second Ctrl-C must not leave it behind.
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self.log.close()

    def wait_until_ready(self, timeout_s=600):  # a busy machine takes minutes
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            probe = subprocess.run([self.program, "ps", "--address", self.address, "--socket-dir",
                                    str(self.work_dir / "sockets")],
                                   capture_output=True, check=False)
            if probe.returncode == 0:
                return
            time.sleep(0.2)
        sys.exit(f"demo: the server did not start:\n{self.log_path.read_text(errors='replace')}")

    def generate(self, prompt, policy, max_tokens, flags=(), shown=True):
        """Streams the answer to the terminal and returns the statistics, or None if it failed."""
        json_path = self.work_dir / "answer.json"
        json_path.unlink(missing_ok=True)
        command = [self.program, "generate", "--raw", "--address", self.address, "--file",
                   self._file(prompt), "--policy", policy, "--temperature", "0",
                   "--max-tokens", str(max_tokens), "--json-file", str(json_path), *flags]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, check=False,
                                stdout=None if shown else subprocess.DEVNULL)
        if result.returncode != 0 or not json_path.exists():
            return None
        return json.loads(json_path.read_text(encoding="utf-8"))

    def score(self, text, context_tokens):
        """Scores what is behind the context under all policies; None if it failed."""
        command = [self.program, "score", "--address", self.address, self._file(text), "--policy",
                   ",".join(POLICIES), "--context", str(context_tokens), "--json", "--quiet"]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                check=False)
        return json.loads(result.stdout) if result.returncode == 0 else None

    def _file(self, text):
        path = self.work_dir / "prompt.txt"
        path.write_text(text, encoding="utf-8")
        return str(path)


def ask_all(server, questions):
    rows = []
    for question in questions:
        print(f"\nQ: {question['question']}   (the document says: {question['answer']})")
        for policy in POLICIES:
            print(f"{policy:>5}:", end="", flush=True)
            answer = server.generate(question["prompt"], policy, ANSWER_TOKENS)
            rows.append((policy, question, answer))
    return rows


def report(rows):
    print("\npolicy  right  from cache  first token  ms/token  KV read  answer")
    all_right = True
    any_indexing = False
    for policy, question, answer in rows:
        if answer is None:
            print(f"{policy:<7} no     (the request failed)")
            all_right = False
            continue
        right = answer["text"].strip() == question["answer"]
        # Its segments are indexed beside the decode steps, on the same cores.
        indexing = policy == "wave" and 2 * answer["cached_tokens"] < answer["prompt_tokens"]
        any_indexing |= indexing
        all_right &= right
        print(f"{policy:<7} {'yes' if right else 'NO':<6} {answer['cached_tokens']:>10,} {answer['ttft_s']:>10.2f} s "
              f"{answer['ms_per_token']:>9.1f}{'*' if indexing else ' '}{100 * answer['kv_read_ratio']:>7.1f}%  "
              f"{answer['text'].strip()}")
    if any_indexing:
        print("* the document was read for this answer: its clusters were still being indexed meanwhile")
    return all_right


def tell_of_the_page(arguments):
    """The demonstration's server ends with it: says how to start one that has the page for people."""
    program = os.path.relpath(pathlib.Path(arguments.bin_dir) / "retroinfer")
    model = os.path.relpath(ROOT / "models" / arguments.model)
    print(f"\nAsk in a browser: {program} serve --model {model} --http {PAGE_ADDRESS}\n"
          f"and open http://{PAGE_ADDRESS}")


def stop(number, _):
    raise Stopped(number)


def run(arguments, work_dir):
    """Returns the exit code."""
    if arguments.model == "code":
        return demo_text.run(Server(arguments.bin_dir, work_dir, demo_text.MODEL), arguments.tokens)
    print(f"making a document of {arguments.tokens} tokens (seed {arguments.seed})", flush=True)
    questions = make_questions(arguments)
    with Server(arguments.bin_dir, work_dir, MODEL) as server:
        server.wait_until_ready()
        all_right = report(ask_all(server, questions))
    print("all answers are right" if all_right else "NOT all answers are right")
    return 0 if all_right else 1


def main():
    arguments = parse_arguments()
    if arguments.check:
        return 0
    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, stop)
    work_dir = None
    try:
        work_dir = tempfile.mkdtemp(prefix="retroinfer-demo-")
        code = run(arguments, work_dir)
        if code == 0:
            tell_of_the_page(arguments)
        return code
    except Stopped as stopped:
        print(f"demo: stopped by {signal.Signals(stopped.args[0]).name}", file=sys.stderr)
        return 128 + stopped.args[0]
    finally:
        if work_dir is not None:
            shutil.rmtree(work_dir, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
