"""Holds the product against the laboratory: the same tokens, scored by both.

    python3 -m tools.lab.product_agreement --bin-dir BIN --model FOLDER/hf --texts FOLDER/texts \
        --length 9216 --out agreement.jsonl
    python3 -m tools.lab.product_agreement --report agreement.jsonl [PAGE.md]

The product is `retroinfer serve`, started here once for each form of the index, and asked to score
a continuation of token ids under full and wave. The laboratory follows the same ids in PyTorch
under full attention and under its own system of the same settings. Documents end where a segment
ends, so that none is added meanwhile. Resumes with the same --out, as evaluate.py does.
"""

import argparse
import dataclasses
import math
import pathlib
import sys
import time

from tools.needle.report import replace_block, table
from tools.tasks.client import Client, Setting
from tools.tasks.server import Server, stop_by_signals

from .results import Results, read_lines

INDEXES = ("bf16", "int8", "coded")
POLICIES = ("full", "wave")
STEADY, SEGMENT, LEAST = 68, 1024, 8192  # tokens: sink and window; a segment; before wave is used


def system_of(index: str, tokens: int):
    """Returns the laboratory's system with the settings of the product's index."""
    from .systems.coded import Coded, Codes
    from .systems.wave import PRODUCT, Options, Wave
    from .real_text import INT8
    if index == "coded":
        clusters = (tokens - STEADY) / INT8.cluster_tokens
        return Coded("coded", INT8, Codes(bits=2, candidates=min(1, max(0.12, 256 / clusters)),
                                          pages=0.024), Options(index_bits=8))
    if index == "int8":
        return Wave("int8", INT8, options=Options(index_bits=8))
    return Wave(index, PRODUCT)


def document_tokens(length: int, tail: int) -> int:
    """Returns the largest document that ends where a segment does and leaves room for its tail."""
    return (length - tail - 1 - STEADY) // SEGMENT * SEGMENT + STEADY


class Agreement:
    """Measures what is missing until the time is over."""

    def __init__(self, arguments: argparse.Namespace):
        from .real_text import RealText
        self._arguments = arguments
        self._results = Results(arguments.out)
        self._texts = RealText(arguments.texts, arguments.model)
        self._began = time.monotonic()
        self._work = []
        for length in arguments.length:
            tokens = document_tokens(length, arguments.tail)
            self._work += [(tokens, *one) for one in
                           self._texts.documents(tokens + arguments.tail + 1, arguments.documents)]
        if not self._work:
            raise ValueError(f"no text of {arguments.texts} is long enough")
        self.missing = 0

    def run(self) -> None:
        """Measures the product, then the laboratory, which may need the same device."""
        for index in self._arguments.index:
            self._product(index)
        self._laboratory()

    def _key(self, side, index, policy, tokens, name, number):
        return ["agreement", self._arguments.name, tokens, self._arguments.tail, name, number,
                side, index, policy]

    def _late(self):
        return time.monotonic() - self._began >= self._arguments.seconds

    def _ids(self, tokens, name, number):
        return self._texts.make(name, number, tokens, self._arguments.tail + 1)

    def _wanted(self, side, index, policy):
        keys = [(one, self._key(side, index, policy, *one)) for one in self._work]
        return [(one, key) for one, key in keys if not self._results.has(key)]

    def _product(self, index):
        wanted = [(policy, *found) for policy in reversed(POLICIES)
                  for found in self._wanted("product", index, policy)]
        if not wanted or self._late():
            self.missing += len(wanted)
            return
        options = ["--index-dtype", index, "--kv-dtype", "bf16", *self._arguments.serve.split()]
        with Server(self._arguments.bin_dir, self._arguments.model, options) as server:
            client = Client(server.url, self._arguments.timeout)
            for policy, one, key in sorted(wanted, key=lambda found: str(found[1])):
                if self._late():
                    self.missing += 1
                    continue
                ids, rest = self._ids(*one)
                found = client.score_ids(ids, rest, Setting.parse(policy))
                # The first token behind a prompt is prefill's.
                self._add(key, found.logprobs[1:], found.greedy[1:],
                          {"kv_read": found.usage["kv_read_ratio"]})

    def _laboratory(self):
        import torch

        from . import checkpoint
        from .document import Document
        from .systems.full import Full
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = None
        for one in self._work:
            systems = {("none", "full"): Full(),
                       **{(index, "wave"): system_of(index, one[0])
                          for index in self._arguments.index}}
            missing = {found: self._key("lab", *found, *one) for found in systems}
            missing = {found: key for found, key in missing.items() if not self._results.has(key)}
            if not missing or self._late():
                self.missing += len(missing)
                continue
            if model is None:
                model = checkpoint.load(self._arguments.model, device, torch.bfloat16
                                        if device == "cuda" else torch.float32)
            ids, rest = self._ids(*one)
            document = Document(model, ids)
            asked = torch.tensor(rest, device=device)
            for found, key in missing.items():
                hidden, _ = document.follow(systems[found], asked[:-1])
                with torch.inference_mode():
                    logits = model.logits(hidden).float().log_softmax(-1)
                logprobs = logits.gather(-1, asked[1:, None])[:, 0]
                self._add(key, logprobs.tolist(), (logits.argmax(-1) == asked[1:]).tolist(),
                          {"device": device})
                document.forget()

    def _add(self, key, logprobs, greedy, more):
        self._results.add(key, {"logprobs": [round(one, 4) for one in logprobs], "greedy": greedy,
                                **more})
        print(f"[{time.monotonic() - self._began:5.0f} s] {' '.join(map(str, key[2:]))}: "
              f"perplexity {perplexity(logprobs):.4f}", flush=True)


def perplexity(logprobs: list[float]) -> float:
    """Returns exp of the mean loss."""
    return math.exp(-sum(logprobs) / len(logprobs))


@dataclasses.dataclass
class Pair:
    """Two series of log-probabilities of the same tokens."""
    a: list[float]
    b: list[float]

    def size(self) -> float:
        """Returns the mean absolute difference."""
        return sum(abs(x - y) for x, y in zip(self.a, self.b)) / len(self.a)

    def correlation(self) -> float:
        """Returns Pearson's, 0 where a series is constant."""
        n = len(self.a)
        means = sum(self.a) / n, sum(self.b) / n
        parts = [[(x - means[0]), (y - means[1])] for x, y in zip(self.a, self.b)]
        xx, yy, xy = (sum(p[i] * p[j] for p in parts) for i, j in ((0, 0), (1, 1), (0, 1)))
        return xy / math.sqrt(xx * yy) if xx * yy > 0 else 0.0


def block(lines: list[dict]) -> str:
    """Returns a table for each model and length: a row for each index, over all documents."""
    found = {tuple(line["key"][1:]): line for line in lines if line["key"][0] == "agreement"}
    parts = []
    for model, tokens, tail in sorted({key[:3] for key in found}):
        body = []
        for index in INDEXES:
            row = _row({key[3:]: line for key, line in found.items()
                        if key[:3] == (model, tokens, tail)}, index)
            body += [[index, *row]] if row else []
        if body:
            parts += [f"{model}, {tail} tokens behind documents of {tokens:,} tokens:",
                      table(["index", "documents", "perplexity, full: product / lab",
                             "wave: product / lab", "full: product - lab", "same top-1 %",
                             "wave: product - lab", "same top-1 %", "wave - full: product / lab",
                             "correlation", "KV read %"], body)]
    return "\n\n".join(parts)


def _row(found, index):
    """Returns the cells of an index, over the documents that have all four measurements."""
    sides = [("product", index, "full"), ("lab", "none", "full"), ("product", index, "wave"),
             ("lab", index, "wave")]
    documents = [one for one in sorted({key[:2] for key in found})
                 if all((*one, *side) in found for side in sides)]
    if not documents:
        return None
    series = [[x for one in documents for x in found[(*one, *side)]["logprobs"]] for side in sides]
    top = [[x for one in documents for x in found[(*one, *side)]["greedy"]] for side in sides]
    full, lab_full, wave, lab_wave = series

    def same(a, b):
        return f"{100 * sum(x == y for x, y in zip(top[a], top[b])) / len(top[a]):.1f}"
    changes = Pair([x - y for x, y in zip(wave, full)], [x - y for x, y in zip(lab_wave, lab_full)])
    read = [found[(*one, *sides[2])]["kv_read"] for one in documents]
    return [f"{len(documents)}", *(f"{perplexity(a):.4f} / {perplexity(b):.4f}"
                                   for a, b in ((full, lab_full), (wave, lab_wave))),
            f"{Pair(full, lab_full).size():.4f}", same(0, 1), f"{Pair(wave, lab_wave).size():.4f}",
            same(2, 3), f"{Pair(full, wave).size():.4f} / {Pair(lab_full, lab_wave).size():.4f}",
            f"{changes.correlation():.3f}", f"{100 * sum(read) / len(read):.0f}"]


def _report(results: pathlib.Path, page: pathlib.Path | None = None) -> None:
    """Prints the tables, or writes them into a page; leaves it as it is where there are none."""
    text = block(read_lines([results]))
    if not text:
        print(f"{results} has no document that both have scored", file=sys.stderr)
    elif page:
        replace_block(page, "agreement", text)
    else:
        print(text)


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", type=pathlib.Path, nargs="+", metavar="FILE",
                        help="print the tables of RESULTS.jsonl, or write them into PAGE.md")
    parser.add_argument("--bin-dir", type=pathlib.Path, help="folder of the services' programs")
    parser.add_argument("--model", type=pathlib.Path, help="a Hugging Face folder")
    parser.add_argument("--name", help="of the model in results (default: the folder's)")
    parser.add_argument("--texts", type=pathlib.Path, help="folder of tools/lab/corpora.py")
    parser.add_argument("--length", type=int, action="append",
                        help="tokens of document and text, may be repeated (default: 16384)")
    parser.add_argument("--tail", type=int, default=512,
                        help="tokens behind a document (default: %(default)s)")
    parser.add_argument("--documents", type=int, default=7, help="(default: %(default)s)")
    parser.add_argument("--index", action="append", choices=INDEXES,
                        help="may be repeated (default: all)")
    parser.add_argument("--serve", default="", help="more options of `retroinfer serve`")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a request may take")
    parser.add_argument("--seconds", type=float, default=420,
                        help="begin nothing new after this time (default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, help="JSON lines; goes on there")
    arguments = parser.parse_args()
    arguments.length = arguments.length or [16384]
    arguments.index = arguments.index or list(INDEXES)
    if arguments.report and len(arguments.report) <= 2:
        return arguments
    if not all((arguments.bin_dir, arguments.model, arguments.texts, arguments.out)):
        parser.error("needs --bin-dir, --model, --texts and --out, or --report")
    if not 64 <= arguments.tail <= SEGMENT:
        parser.error(f"--tail {arguments.tail}: 64 to {SEGMENT} tokens are possible; behind more "
                     "a segment would be added")
    arguments.name = arguments.name or arguments.model.name
    if document_tokens(min(arguments.length), arguments.tail) < LEAST:
        parser.error(f"--length {min(arguments.length)}: shorter documents than {LEAST} tokens are "
                     "attended exactly by the product")
    return arguments


def main() -> None:
    arguments = parse()
    stop_by_signals()
    try:
        if arguments.report:
            _report(*arguments.report)
            return
        agreement = Agreement(arguments)
        agreement.run()
    except (OSError, ValueError) as error:
        sys.exit(f"product_agreement: {error}")
    if agreement.missing:
        print(f"{agreement.missing} measurements are missing: start again with --out "
              f"{arguments.out}", flush=True)


if __name__ == "__main__":
    main()
