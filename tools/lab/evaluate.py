"""Measures systems on models, and writes JSON lines as it goes.

    python3 -m tools.lab.evaluate --all --out lab.jsonl --seconds 500
    python3 -m tools.lab.evaluate --part text --length 32768 --out lab.jsonl

Ends by itself: after --seconds no new measurement is begun. Started again with the same --out it
goes on with what is missing. What is in a line, and how long parts take, is in README.md.
"""

import argparse
import math
import pathlib
import platform
import sys
import time
import traceback

import torch

from tools.needle import model as llama

from . import catalogue, checkpoint, jobs, real_text, sources
from .results import Results
from .sources import CODE, NEEDLE

PARTS = ("text", "micro", "growing", "needle", "locality", "promise", "indexes", "formats",
         "formats_needle", "hard_keys", "ablation", "ablation_needle", "size", "real", "real_forms")
REAL = ("real", "real_forms")  # of a checkpoint of others, over texts of others
LENGTHS = (32768, 131072)


class Laboratory:
    """Models, texts and what they are asked for."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.backends.cuda.matmul.allow_tf32 = True
        self._models: dict[pathlib.Path, llama.Llama] = {}
        self._sources: dict[pathlib.Path, object] = {}
        self._real_text: real_text.RealText | None = None
        self.began = time.monotonic()

    def model(self, folder: pathlib.Path) -> llama.Llama:
        """Returns a model: bf16 on a GPU, fp32 on a CPU, where bf16 is slow."""
        if folder not in self._models:
            dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
            if folder in (CODE, NEEDLE) or not self.arguments.texts:
                self._models[folder] = llama.load(folder, self.device, dtype)
            else:
                self._models[folder] = checkpoint.load(folder, self.device, dtype,
                                                       self.arguments.rope_scaling)
        return self._models[folder]

    def real_text(self) -> real_text.RealText:
        """Returns the texts of --texts in the model's tokens."""
        if self._real_text is None:
            self._real_text = real_text.RealText(self.arguments.texts, self.arguments.model)
        return self._real_text

    def source(self, folder: pathlib.Path):
        """Returns the text for a model."""
        if folder not in self._sources:
            is_needle = folder.resolve().name == NEEDLE.name
            self._sources[folder] = (
                sources.NeedleText(folder, self.arguments.seed) if is_needle
                else sources.CodeText(folder, self.arguments.documents))
        return self._sources[folder]

    def setup(self) -> dict:
        """Returns what is behind the figures."""
        name = torch.cuda.get_device_name() if self.device == "cuda" else platform.processor()
        return {"device": self.device, "name": name or platform.machine(),
                "torch": torch.__version__, "python": platform.python_version(),
                "seed": self.arguments.seed, "text": self._text_records(),
                "hnswlib": catalogue.hnsw.available()}

    def _text_records(self) -> list[dict]:
        try:
            if self.arguments.texts:
                return self.real_text().records
            return self.source(self.arguments.model).records
        except (ValueError, OSError) as error:
            return [{"error": str(error)}]

    def left(self) -> float:
        """Returns the seconds until nothing new is begun."""
        return self.arguments.seconds - (time.monotonic() - self.began)


def run(lab: Laboratory, results: Results, made: list["jobs.Job"]) -> int:
    """Runs jobs until they are done or the time is over; returns how many are missing."""
    missing = 0
    turn, turns = lab.arguments.turn
    for number, job in enumerate(made):
        if number % turns != turn:
            continue
        wanted = [key for key in job.keys if not results.has(key)]
        if not wanted:
            continue
        if lab.left() <= 0:
            missing += len(wanted)
            continue
        began = time.monotonic()
        try:
            missing += job.run(lab, results)
        except (RuntimeError, ValueError, OSError):  # the others may still be measured
            traceback.print_exc()
            missing += sum(not results.has(key) for key in wanted)
        print(f"[{time.monotonic() - lab.began:5.0f} s] {number + 1} of {len(made)}: {job.name}, "
              f"{time.monotonic() - began:.1f} s", flush=True)
    return missing


def turn_of(text: str) -> tuple[int, int]:
    """Reads I/N."""
    turn, turns = map(int, text.split("/"))
    if not 0 <= turn < turns:
        raise argparse.ArgumentTypeError(f"{text}: needs I/N with I from 0 to N - 1")
    return turn, turns


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuses what cannot be measured."""
    for length in arguments.length:
        if not 9216 <= length <= 131072:
            parser.error(f"--length {length}: 9216 to 131072 are possible; shorter documents are "
                         "attended exactly by the product")
    if arguments.tail < 4 or arguments.tail > 1024:
        parser.error("--tail: 4 to 1024 tokens behind a document")
    if arguments.documents < 1 or not math.isfinite(arguments.seconds) or arguments.seconds <= 0:
        parser.error("--documents and --seconds must be above 0")
    if not (arguments.model / "config.json").is_file():
        parser.error(f"{arguments.model} is not a model folder: it has no config.json")
    if arguments.texts or arguments.rope_scaling:
        if not arguments.texts or not set(arguments.part) <= set(REAL):
            parser.error(f"--texts FOLDER goes with --part {' and '.join(REAL)} alone, "
                         "--rope-scaling with --texts")
        return
    if set(REAL) & set(arguments.part):
        parser.error(f"--part {' and '.join(REAL)} need --texts FOLDER: see tools/lab/corpora.py")
    if not (NEEDLE / "config.json").is_file():
        parser.error(f"{NEEDLE} is not a model folder: it has no config.json")
    longest = llama.Shape.load(arguments.model).max_position_embeddings
    if max(arguments.length) > longest:
        parser.error(f"{arguments.model} takes at most {longest} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="all parts")
    parser.add_argument("--part", action="append", choices=PARTS, help="may be repeated")
    parser.add_argument("--model", type=pathlib.Path, default=CODE,
                        help="folder of the model that follows text (default: models/code)")
    parser.add_argument("--length", type=int, action="append",
                        help="tokens of document and text, may be repeated "
                             f"(default: {', '.join(map(str, LENGTHS))})")
    parser.add_argument("--tail", type=int, default=512,
                        help="tokens behind a document (default: %(default)s)")
    parser.add_argument("--documents", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--texts", type=pathlib.Path, metavar="FOLDER",
                        help="texts that --part real follows, made by tools/lab/corpora.py; --model "
                             "is then a Hugging Face folder")
    parser.add_argument("--rope-scaling", default="", metavar="yarn:FACTOR[:ORIGINAL]",
                        help="as of the server, for --part real")
    parser.add_argument("--growing-length", type=int, action="append",
                        help="of long generation, may be repeated (default: 16384, 65536)")
    parser.add_argument("--growing-tail", type=int, default=8192, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1000,
                        help="of traces (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7000, help="(default: %(default)s)")
    parser.add_argument("--turn", type=turn_of, default=(0, 1), metavar="I/N",
                        help="every N-th job from the I-th on: several processes, each with a "
                             "file of its own, keep a GPU busy")
    parser.add_argument("--seconds", type=float, default=500,
                        help="begin nothing new after this time (default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON lines; goes on there")
    arguments = parser.parse_args()
    arguments.length = arguments.length or list(LENGTHS)
    arguments.growing_length = arguments.growing_length or [16384, 65536]
    arguments.part = ([part for part in PARTS if part not in REAL] if arguments.all
                      else arguments.part or [])
    if not arguments.part:
        parser.error(f"--all, or --part with one of {', '.join(PARTS)}")
    check(parser, arguments)
    lab = Laboratory(arguments)
    results = Results(arguments.out)
    try:
        setup = lab.setup()
        results.add(["setup", setup["name"], int(time.time())], setup)
        missing = run(lab, results, jobs.make(lab))
    except (ValueError, OSError) as error:
        sys.exit(f"evaluate: {error}")
    took = time.monotonic() - lab.began
    print(f"{took:.0f} s; {missing} measurements are missing"
          + (f": start again with --out {arguments.out}" if missing else ""), flush=True)


if __name__ == "__main__":
    main()
