"""Real text behind real documents, under a checkpoint of others and each row of a table."""

import copy
import dataclasses
import hashlib
import math
import pathlib

import torch

from tools.needle import model as llama, wave

from . import measures
from .document import Document
from .formats import CHOSEN, balance_of
from .jobs import Job
from .system import Budget, System
from .systems.coded import Coded, Codes
from .systems.full import Full
from .systems.topk import TopK
from .systems.wave import PAPER, PRODUCT, Options, Wave

_vary = dataclasses.replace
INT8 = wave.INT8
EIGHT = _vary(INT8, cluster_tokens=8)


class RealText:
    """Windows of the texts of a folder (tools/lab/corpora.py), by name."""

    def __init__(self, folder: pathlib.Path, model: pathlib.Path):
        from tokenizers import Tokenizer
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._texts = {path.stem: path.read_text(encoding="utf-8")
                       for path in sorted(folder.glob("*.txt"))}
        if not self._texts:
            raise ValueError(f"{folder} holds no .txt: run python3 -m tools.lab.corpora {folder}")
        self._ids: dict[str, list[int]] = {}
        self.records = [{"text": name, "sha256": hashlib.sha256(text.encode()).hexdigest()}
                        for name, text in self._texts.items()]

    def documents(self, tokens: int, most: int) -> list[tuple[str, int]]:
        """Returns up to `most` windows of so many tokens, one of each text before a second one."""
        found = []
        for number in range(most):
            for name in self._texts:
                if len(self._of(name)) >= tokens * (number + 1):
                    found.append((name, number))
        return found[:most]

    def make(self, name: str, number: int, tokens: int, behind: int):
        """Returns a document of exactly `tokens` tokens and `behind` tokens behind it."""
        ids = self._of(name)[(tokens + behind) * number:][:tokens + behind]
        return ids[:tokens], ids[tokens:]

    def _of(self, name):
        if name not in self._ids:
            text = self._texts[name]
            pieces = [text[at:at + 50000] for at in range(0, len(text), 50000)]
            self._ids[name] = [token for piece in self._tokenizer.encode_batch(
                pieces, add_special_tokens=False) for token in piece.ids]
        return self._ids[name]


def rows() -> list[System]:
    """The product's indexes, the paper's, the oracle, and candidates."""
    def wave_row(name, settings, **options):
        return Wave(name, settings, options=Options(**options))

    def coded(name, settings=INT8, index_bits=8, **codes):
        return Coded(name, settings, Codes(**codes), Options(index_bits=index_bits))
    small = {"index_bits": 8}
    low = _vary(PRODUCT, radius=0.25)
    less = _vary(INT8, retrieval_ratio=0.018, least_clusters=64)
    found = [
        TopK(Budget()), wave_row("paper", PAPER),
        wave_row("bf16 index, radius 0.5, 1.8 %", PRODUCT),
        wave_row("bf16 index, radius 0.25, 1.8 %", low),
        wave_row("int8 index, 3.5 %", INT8, **small),
        wave_row("int8 index, 1.8 %", less, **small),
        wave_row("int8 index, 7 %", _vary(INT8, retrieval_ratio=0.07, least_clusters=192), **small),
        wave_row("int8 index, clusters of 8, 1.8 %",
                 _vary(less, cluster_tokens=8), **small),
        wave_row("int8 index, clusters of 8, 3.5 %", EIGHT, **small),
    ]
    for tokens in (4, 8):
        plain = {**small, "page_tokens": tokens}
        if tokens == 8:
            found += [wave_row("pages of 8: int8 index, 3.5 %", INT8, **plain),
                      wave_row("pages of 8: int8 index, clusters of 8, 1.8 %",
                               _vary(less, cluster_tokens=8), **plain)]
        for bits in (2, 4, 8):
            for share, pages in ((0.12, 0.018), (0.12, 0.03), (0.25, 0.03)):
                if bits != 4 and share != 0.12 or bits != 4 and pages != 0.03:
                    continue
                for ordered in (False, True):
                    if not ordered and (bits, pages, share) != (4, 0.03, 0.12):
                        continue
                    name = (f"pages of {tokens}: page codes of {bits} bits, candidates {share:.0%}, "
                            f"pages {pages:.1%}{'' if ordered else ', by position'}")
                    found.append(Coded(name, INT8, Codes(
                        unit="page", bits=bits, candidates=share, pages=pages, ordered=ordered,
                        least_pages=1024 // tokens), Options(**plain)))
    for bits in (1, 2, 3):
        for pages in (0.018, 0.03):
            found.append(coded(f"token codes of {bits} bits, candidates 12 %, pages {pages:.1%}",
                               bits=bits, pages=pages))
    return found


class FollowReal(Job):
    """Text behind one document, under each row."""

    def __init__(self, lab, name: str, number: int, tokens: int, tail: int):
        self._what = name, number, tokens, tail
        self._lab = lab
        self._rows = sorted(rows(), key=lambda row: str(row.key()))
        model = lab.arguments.model.name + (f" {lab.arguments.rope_scaling}"
                                            if lab.arguments.rope_scaling else "")
        self._keys = [["real", model, tokens, tail, name, number, row.name] for row in self._rows]
        super().__init__(f"{name} {number}, {tokens} tokens", self._keys)

    def run(self, lab, results) -> int:
        name, number, tokens, tail = self._what
        ids, rest = lab.real_text().make(name, number, tokens, tail + 1)
        model = lab.model(lab.arguments.model)
        document = Document(model, ids)
        asked = torch.tensor(rest, device=lab.device)
        asked, targets = asked[:-1], asked[1:]
        full, _ = document.follow(Full(), asked)
        last, missing = None, 0
        for row, key in zip(self._rows, self._keys):
            if row.key() != last:
                document.forget()
                last = row.key()

            def measure(row=row):
                hidden, read = document.follow(row, asked)
                sums, _ = measures.compare(model.logits, full, hidden, targets, 4)
                return {"read": read, "bins": [dataclasses.asdict(part) for part in sums]}
            missing += self.attempt(lab, results, key, measure)
        return missing


# How keys are brought into int8 by token: what is divided by what before, and what is left away.
KEY_FORMS = ("bf16", "int8", "int8, balanced", "int8, balanced by keys alone",
             "int8, bias left away", "int8, bias left away, balanced",
             "int8, mean of the bias left away", "int8, mean of the bias left away, balanced")


class RealForms(Job):
    """Text behind one document whose keys and values are stored in int8, attended in full."""

    def __init__(self, lab, name: str, number: int, tokens: int, tail: int):
        self._what = name, number, tokens, tail
        model = lab.arguments.model.name + (f" {lab.arguments.rope_scaling}"
                                            if lab.arguments.rope_scaling else "")
        self._keys = [["real forms", model, tokens, tail, name, number, form]
                      for form in KEY_FORMS]
        super().__init__(f"forms, {name} {number}, {tokens} tokens", self._keys)

    def run(self, lab, results) -> int:
        name, number, tokens, tail = self._what
        ids, rest = lab.real_text().make(name, number, tokens, tail + 1)
        model = lab.model(lab.arguments.model)
        document = Document(model, ids)
        rest = torch.tensor(rest, device=lab.device)
        asked, targets = rest[:-1], rest[1:]
        full, _ = document.follow(Full(), asked)
        missing = 0
        for form, key in zip(KEY_FORMS, self._keys):
            def measure(form=form):
                view = stored_by(document, model, form)
                hidden, _ = view.follow(Full(), asked)
                sums, _ = measures.compare(model.logits, full, hidden, targets, 4)
                return {"read": {}, "bins": [dataclasses.asdict(part) for part in sums]}
            missing += self.attempt(lab, results, key, measure)
        return missing


def stored_by(document: Document, model, form: str) -> Document:
    """Returns a document whose keys and values were rounded by one of KEY_FORMS."""
    if form == "bf16":
        return document
    found = copy.copy(document)
    found._indexes, found.build_seconds = {}, {}
    found.keys = [_rounded_keys(model, layer, keys, form)
                  for layer, keys in enumerate(document.keys)]
    found.values = [CHOSEN.values(values) for values in document.values]
    return found


def _mean_of_bias(model, bias):
    """Returns what RoPE makes of a bias, as the mean [h, d] over the positions that the model was made
    for, and the size [h d] of what varies around the mean."""
    frequencies = model.rope.frequencies.to(bias.device)
    factor = model.rope.factor
    length = model.shape.max_position_embeddings
    pairs = bias.double().view(-1, 2, len(frequencies))
    complex_bias = torch.complex(pairs[:, 0], pairs[:, 1])
    angles = frequencies * length / 2
    share = torch.sinc(angles / math.pi)  # of a circle's arc: its mean's length
    mean = complex_bias * torch.polar(share, angles) * factor
    rest = complex_bias.abs() * (1 - share * share).clamp(min=0).sqrt() * factor
    return (torch.cat([mean.real, mean.imag], -1).float(),
            torch.cat([rest, torch.zeros_like(rest)], -1).float().flatten())


def _rounded_keys(model, layer, keys, form):
    attention = model.model.layers[layer].self_attn
    norm = model.model.layers[layer].input_layernorm.weight
    width, bias = keys.shape[-1], attention.k_proj.bias
    away = "bias left away" in form and bias is not None
    offset = torch.zeros_like(keys)
    rest = None if away else bias  # what of the bias the keys still have
    if "mean of the bias left away" in form and bias is not None:
        mean, rest = _mean_of_bias(model, bias)
        offset = mean[:, None]  # the same for all keys: no weight of attention changes
    elif away:  # what RoPE makes of the bias at each position
        positions = torch.arange(keys.shape[1], device=keys.device)[None]
        cos, sin = model.rope.tables(positions)
        rows = bias.float().view(-1, 1, width).expand(-1, keys.shape[1], -1)
        offset = llama._rotate(rows, cos[0], sin[0])
    balance = torch.ones(keys.shape[0], 1, width, device=keys.device)
    weights = (attention.k_proj.weight, attention.q_proj.weight, norm)
    if form.endswith("balanced"):
        balance = balance_of(*weights, width, rest)[:, None]
    elif form.endswith("by keys alone"):
        sizes = keys.square().mean(1).unflatten(-1, (2, -1)).sum(1).sqrt()
        sizes = sizes / sizes.median(-1, keepdim=True).values
        balance = torch.exp2(sizes.log2().round()).repeat(1, 2)[:, None]
    return CHOSEN.keys((keys - offset) / balance) * balance + offset
