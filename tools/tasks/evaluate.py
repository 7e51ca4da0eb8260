"""Asks a server real tasks under several policies, and writes what came out as JSON lines.

    python3 -m tools.tasks.evaluate --part ruler --bin-dir BIN --model FOLDER --length 16384 \
        --setting full --setting wave --out tasks.jsonl

Starts `retroinfer serve` itself, once for each --serve LABEL=OPTIONS, or asks the one at --url.
Ends by itself: after --seconds nothing new is begun. Started again with the same --out it goes on
with what is missing. tools/tasks/report.py makes the tables.
"""

import argparse
import concurrent.futures
import math
import pathlib
import re
import shlex
import sys
import threading
import time

from tools.lab.results import Results

from . import asking, long_answers, ruler
from .client import Client, Setting
from .server import Server, stop_by_signals

PARTS = ("ruler", "manuals", "long")


def jobs(arguments: argparse.Namespace):
    """Yields the jobs of the chosen parts."""
    if "ruler" in arguments.part:
        yield from asking.of_ruler(arguments, arguments.task or list(ruler.TASKS))
    if "manuals" in arguments.part:
        yield from asking.of_manuals(arguments)
    if "long" in arguments.part:
        yield from long_answers.jobs(arguments)


class Run:
    """Measures until all is done or the time is over."""

    def __init__(self, arguments: argparse.Namespace):
        self._arguments = arguments
        self._results = Results(arguments.out)
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self.missing = self.failed = 0
        # What wave has read is found by full, and not the other way round.
        self._settings = sorted(arguments.setting, key=lambda one: one.policy != "wave")

    def seconds(self) -> float:
        """Returns how long it has taken."""
        return time.monotonic() - self._began

    def serve(self, label: str, options: list[str]) -> None:
        """Starts services and measures what is missing under them."""
        wanted = self._wanted(label)
        if not wanted:
            return
        if self.seconds() >= self._arguments.seconds:
            self.missing += sum(len(settings) for _, settings in wanted)
            return
        with Server(self._arguments.bin_dir, self._arguments.model, options) as server:
            device = re.findall(r"computing on (.+? \([^\n]*\))", server.log())
            self._results.add(["setup", label, int(time.time())],
                              {"options": options, "model": self._arguments.name,
                               "device": device[-1] if device else "?"})
            self.measure(label, wanted, server, Client(server.url, self._arguments.timeout))

    def measure(self, label, wanted, server, client) -> None:
        """Runs jobs, several at a time."""
        _, longest = client.model()
        if max(self._arguments.length) > longest:
            raise ValueError(f"--length {max(self._arguments.length)}: the server takes at most "
                             f"{longest} tokens")
        pool = concurrent.futures.ThreadPoolExecutor(self._arguments.concurrency)
        try:
            list(pool.map(lambda one: self._one(label, *one, server, client), wanted))
        finally:  # where a signal ends it, the server must not wait for answers
            pool.shutdown(wait=False, cancel_futures=True)

    def ask(self, label: str) -> None:
        """Measures what is missing on the server at --url."""
        self.measure(label, self._wanted(label), None,
                     Client(self._arguments.url, self._arguments.timeout))

    def _wanted(self, label):
        found = []
        for job in jobs(self._arguments):
            settings = [one for one in self._settings
                        if not self._results.has(self._key(label, job, one))]
            if settings:
                found.append((job, settings))
        return found

    def _key(self, label, job, setting):
        return [*job.key, self._arguments.name, label, setting.name]

    def _one(self, label, job, settings, server, client):
        for setting in settings:
            if self.seconds() >= self._arguments.seconds:
                with self._lock:
                    self.missing += 1
                continue
            began = time.monotonic()
            try:
                content = job.measure(server, client, setting)
            except (OSError, ValueError) as error:
                with self._lock:
                    self.failed += 1
                print(f"{job.name} under {setting.name}: {error}", file=sys.stderr, flush=True)
                continue
            took = time.monotonic() - began
            with self._lock:
                self._results.add(self._key(label, job, setting), {**content, "seconds": took})
            print(f"[{self.seconds():5.0f} s] {job.name} under {setting.name}: "
                  f"{_shown(content)}{took:.1f} s", flush=True)
        job.drop()


def _shown(content):
    if "right" not in content:
        return ""
    return f"right {content['right']:.2f}, log-probability {sum(content['logprobs']):.2f}, "


def servers(texts: list[str]) -> list[tuple[str, list[str]]]:
    """Reads LABEL=OPTIONS."""
    found = []
    for text in texts or ["default="]:
        label, equals, options = text.partition("=")
        if not equals or not re.fullmatch(r"[\w.,+-]+", label):
            raise ValueError(f"--serve {text}: needs LABEL=OPTIONS")
        found.append((label, shlex.split(options)))
    if len({label for label, _ in found}) < len(found):
        raise ValueError("--serve: each needs a label of its own")
    return found


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", action="append", choices=PARTS, required=True,
                        help="may be repeated")
    parser.add_argument("--bin-dir", type=pathlib.Path, help="folder of the services' programs")
    parser.add_argument("--url", help="of a server's HTTP API, in place of --bin-dir")
    parser.add_argument("--model", type=pathlib.Path, required=True,
                        help="that is served; with --url only its name counts")
    parser.add_argument("--name", help="of the model in results (default: the folder's)")
    parser.add_argument("--serve", action="append", metavar="LABEL=OPTIONS",
                        help="options of `retroinfer serve`; may be repeated (default: none, label "
                             "default)")
    parser.add_argument("--setting", action="append", metavar="POLICY[:RATIO]",
                        help="full, wave, wave:0.07, streaming; may be repeated (default: full and "
                             "wave)")
    parser.add_argument("--length", type=int, action="append",
                        help="tokens of prompt and answer, may be repeated (default: 16384)")
    parser.add_argument("--task", action="append", choices=list(ruler.TASKS),
                        help="of ruler, may be repeated (default: all)")
    parser.add_argument("--questions", type=int, default=10,
                        help="of each task of ruler (default: %(default)s)")
    parser.add_argument("--haystack", type=pathlib.Path,
                        help="a text in whose sentences ruler hides needles (default: made-up)")
    parser.add_argument("--manual-questions", type=int, default=100,
                        help="the first so many (default: all 100)")
    parser.add_argument("--manuals", type=pathlib.Path, metavar="FOLDER",
                        help="of tools/tasks/manuals.py, for --part manuals")
    parser.add_argument("--texts", type=pathlib.Path, metavar="FOLDER",
                        help="of tools/lab/corpora.py, or of other .txt, for --part long")
    parser.add_argument("--answer-tokens", type=int, default=2048,
                        help="of a long answer, counted in --length (default: %(default)s)")
    parser.add_argument("--mode", action="append", choices=list(long_answers.MODES),
                        help="of long answers, may be repeated (default: both)")
    parser.add_argument("--documents", type=int, default=3,
                        help="of long answers (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=2,
                        help="jobs at a time (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a request may take")
    parser.add_argument("--seconds", type=float, default=420,
                        help="begin nothing new after this time (default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON lines; goes on there")
    arguments = parser.parse_args()
    try:
        arguments.setting = [Setting.parse(text) for text in arguments.setting or ["full", "wave"]]
        arguments.serve = servers(arguments.serve)
    except ValueError as error:
        parser.error(str(error))
    arguments.length = arguments.length or [16384]
    arguments.name = arguments.name or arguments.model.name
    _check(parser, arguments)
    return arguments


def _check(parser, arguments):
    if bool(arguments.bin_dir) == bool(arguments.url):
        parser.error("needs --bin-dir FOLDER or --url ADDRESS")
    if arguments.url and len(arguments.serve) > 1:
        parser.error("--url is one server: it takes one --serve LABEL=, whose label counts")
    if "manuals" in arguments.part and not arguments.manuals:
        parser.error("--part manuals needs --manuals FOLDER: see tools/tasks/manuals.py")
    if "long" in arguments.part and not arguments.texts:
        parser.error("--part long needs --texts FOLDER: see tools/lab/corpora.py")
    least = max(512, arguments.answer_tokens + 512 if "long" in arguments.part else 0)
    if min(arguments.length) < least:
        parser.error(f"--length {min(arguments.length)}: at least {least} tokens are needed")
    for name in ("questions", "manual_questions", "answer_tokens", "documents", "concurrency"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be above 0")
    if not math.isfinite(arguments.seconds) or arguments.seconds <= 0:
        parser.error("--seconds must be above 0")


def main() -> None:
    arguments = parse()
    stop_by_signals()
    run = Run(arguments)
    try:
        for label, options in arguments.serve:
            if arguments.url:
                run.ask(label)
            else:
                run.serve(label, options)
    except (OSError, ValueError) as error:
        sys.exit(f"evaluate: {error}")
    print(f"{run.seconds():.0f} s; {run.missing} measurements are missing, {run.failed} failed"
          + (f": start again with --out {arguments.out}" if run.missing else ""), flush=True)
    sys.exit(1 if run.failed else 0)


if __name__ == "__main__":
    main()
