"""A document in memory, and what a model says behind it under a sparse-attention system.

The document is read once, with exact attention. Then either questions are answered (greedily, a
batch), or given text is followed token by token (teacher forced): every token attends the document
as a system decides, and all text behind it exactly. Text behind it may itself become part of the
document as it grows, as segments do in the product.
"""

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from tools.needle import model as llama
from tools.needle.session import Session

from .formats import PLAIN, Form, Stored, Twin
from .system import Choice, Step, System, attend, scores

SEGMENT = 1024       # tokens that become a segment while decoding
DELAY = 64           # tokens until a segment that is complete is used
SAMPLE = 2048        # queries of the document that a system may learn from, for a query head
LEAST_TOKENS = 8192  # of a document: the product attends shorter ones exactly


@dataclasses.dataclass
class Section:
    """Rows of a text behind a document that see the same document."""
    begin: int   # first row
    end: int     # behind the last
    grown: int   # tokens by which the document has grown


def sections(rows: int, grows: bool) -> list[Section]:
    """Cuts a text at the rows from which on a new segment is used."""
    found, begin, grown = [], 0, 0
    while begin < rows:
        end = min(rows, grown + SEGMENT + DELAY) if grows else rows
        found.append(Section(begin, end, grown))
        begin, grown = end, grown + SEGMENT
    return found


@dataclasses.dataclass
class Seen:
    """What an observer is shown: one chunk of rows in one layer."""
    first_row: int
    step: Step
    choice: Choice
    index: object
    values: torch.Tensor      # of the document [h, t, d]
    own_logits: torch.Tensor  # [b, h, g, n]
    own_values: torch.Tensor  # [h, n, d]
    out: torch.Tensor         # [b, h, g, d]


Observer = Callable[[Seen], None]


class Document(Session):
    """A document with its keys, values, a sample of its queries, and the indexes over them."""

    chunk_elements = 0  # logits of rows that a system sees in one call; 0: as the device takes

    def __init__(self, model: llama.Llama, ids: Sequence[int], end: int = -1):
        if len(ids) < LEAST_TOKENS:
            raise ValueError(f"a document of {len(ids)} tokens: systems are compared from "
                             f"{LEAST_TOKENS} on; shorter ones are attended exactly")
        if len(ids) > model.shape.max_position_embeddings:
            raise ValueError(f"a document of {len(ids)} tokens: the model takes at most "
                             f"{model.shape.max_position_embeddings}")
        self.queries: list[torch.Tensor] = []
        self._indexes: dict[tuple, object] = {}
        self.build_seconds: dict[object, float] = {}
        super().__init__(model, ids, end)

    @torch.inference_mode()
    def _prefill(self, ids) -> None:
        stride = -(-len(ids) // SAMPLE)

        def attend_all(layer, q, k, v):
            self.keys.append(k[0].float())
            self.values.append(v[0].float())
            sample = q[0, :, ::stride].float()
            self.queries.append(sample.unflatten(0, (k.shape[1], -1)))
            return F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype),
                                                  is_causal=True, enable_gqa=True)
        tokens = torch.as_tensor(ids, device=self._device)[None]
        self._model(tokens, torch.arange(len(ids), device=self._device)[None], attend_all)

    def stored(self, form: Form, twin: Twin = PLAIN) -> "Document":
        """Returns the same document, read exactly and then stored in a form; it shares no index.

        A `Stored` model in place of the model would have read it with rounded keys and values.
        """
        found = copy.copy(self)
        found._model = model = Stored(self._model, form, twin)
        found.keys = [form.keys(model.changed(layer, None, keys)[1])
                      for layer, keys in enumerate(self.keys)]
        found.values = [form.values(values) for values in self.values]
        found._indexes, found.build_seconds = {}, {}
        return found

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.keys)

    def index(self, system: System, layer: int):
        """Returns the index of a system over a layer; builds it the first time."""
        key = system.key(), layer
        if key not in self._indexes:
            self._indexes[key] = self._build(system, layer, self.keys[layer],
                                             self.values[layer], 0)
        return self._indexes[key]

    def forget(self) -> None:
        """Drops all indexes."""
        self._indexes.clear()

    def _build(self, system, layer, keys, values, grown):
        _wait(self._device)
        began = time.monotonic()
        index = system.build(layer, keys, values, self.queries[layer], grown)
        _wait(self._device)
        if not grown:
            spent = self.build_seconds.get(system.key(), 0.0)
            self.build_seconds[system.key()] = spent + time.monotonic() - began
        return index

    @torch.inference_mode()
    def follow(self, system: System, ids: torch.Tensor, grows: bool = False,
               observer: Observer | None = None) -> tuple[torch.Tensor, dict[str, float]]:
        """Follows the text `ids` behind the document.

        Returns the hidden states [n, hidden] and the bytes that a step read, by kind.
        """
        read: dict[str, float] = {}
        parts = sections(len(ids), grows)
        predictor = Predictor(self._model)

        def attend_tail(layer, q, k, v):
            heads = k.shape[1]
            queries = q[0].float().unflatten(0, (heads, -1)).permute(2, 0, 1, 3)
            predicted = predictor.queries(layer, heads)
            out = torch.empty_like(queries)
            for part in parts:
                self._section(system, layer, part, queries, predicted, k[0].float(),
                              v[0].float(), out, read, observer)
            return out.flatten(1, 2).transpose(0, 1)[None].to(q.dtype)

        positions = self.tokens + torch.arange(len(ids), device=self._device)
        with predictor:
            hidden = self._model(ids[None], positions[None], attend_tail)[0]
        return hidden, {kind: total / len(ids) for kind, total in read.items()}

    def _section(self, system, layer, part, queries, predicted, own_keys, own_values, out, read,
                 observer):
        grown = part.grown
        if grown:
            keys = torch.cat([self.keys[layer], own_keys[:, :grown]], 1)
            values = torch.cat([self.values[layer], own_values[:, :grown]], 1)
            index = self._build(system, layer, keys, values, grown)
        else:
            keys, values = self.keys[layer], self.values[layer]
            index = self.index(system, layer)
        for begin, end in _chunks(part, queries.shape[1] * queries.shape[2] * keys.shape[1],
                                  self._device, self.chunk_elements):
            asked = queries[begin:end]
            rows = torch.arange(begin, end, device=asked.device)
            step = Step(layer, asked, scores(asked, keys), rows - grown + 1, True,
                        None if predicted is None else predicted[begin:end])
            choice = system.choose(index, step)
            # A row sees itself and what stands before it.
            own = scores(asked, own_keys[:, grown:end])
            ahead = torch.arange(grown, end, device=asked.device) > rows[:, None]
            own = own.masked_fill(ahead[:, None, None], -math.inf)
            seen_values = own_values[:, grown:end]
            out[begin:end] = attend(step, choice, values, own, seen_values)
            for kind, count in choice.read.items():
                read[kind] = read.get(kind, 0.0) + float(count.sum())
            if observer:
                observer(Seen(begin, step, choice, index, values, own, seen_values,
                              out[begin:end]))


def _chunks(part: Section, row_elements: int, device, elements: int = 0):
    """Cuts a section so that what is made for all keys fits; multiples of four where it can."""
    limit = elements or (2 ** 26 if device.type == "cuda" else 2 ** 23)
    count = max(1, limit // row_elements)
    count = count // 4 * 4 or count
    for begin in range(part.begin, part.end, count):
        yield begin, min(part.end, begin + count)


def _wait(device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


class Predictor:
    """Queries of a layer as they can be guessed from the input of the layer before."""

    def __init__(self, model: llama.Llama):
        self._model = model
        self._found: dict[int, torch.Tensor] = {}
        self._hooks: list = []

    def __enter__(self):
        layers = self._model.model.layers
        for number, (layer, following) in enumerate(zip(layers, layers[1:])):
            def look(_, inputs, number=number, following=following):
                x, cos, sin = inputs[:3]
                attention = following.self_attn
                width = self._model.shape.head_dim
                q = attention.q_proj(x).unflatten(-1, (-1, width)).transpose(1, 2)
                self._found[number + 1] = llama._rotate(q, cos, sin)
            self._hooks.append(layer.self_attn.register_forward_pre_hook(look))
        return self

    def __exit__(self, *_):
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def queries(self, layer: int, heads: int) -> torch.Tensor | None:
        """Returns the guess for one sequence as [n, h, g, d]; None for the first layer."""
        found = self._found.get(layer)
        return None if found is None else (
            found[0].float().unflatten(0, (heads, -1)).permute(2, 0, 1, 3))

    def batch(self, layer: int, heads: int) -> torch.Tensor | None:
        """Returns the guess for one step of a batch as [b, h, g, d]; None for the first layer."""
        found = self._found.get(layer)
        return None if found is None else found[:, :, 0].float().unflatten(1, (heads, -1))


class SystemPolicy:
    """Lets a system attend the document while questions are answered (`Session.answer`)."""

    dense = False

    def __init__(self, document: Document, system: System, predictor: Predictor):
        self._document, self._system, self._predictor = document, system, predictor
        self.read: dict[str, float] = {}
        self.steps = 0

    def document_parts(self, layer: int, queries, logits, values):
        """Returns the parts (logits, values, sizes) that stand for the document."""
        index = self._document.index(self._system, layer)
        behind = torch.ones(len(queries), device=queries.device)
        step = Step(layer, queries, logits, behind, False,
                    self._predictor.batch(layer, queries.shape[1]))
        choice = self._system.choose(index, step)
        for kind, count in choice.read.items():
            self.read[kind] = self.read.get(kind, 0.0) + float(count.mean())
        self.steps += layer == 0
        if choice.log_weights is not None:
            logits = logits + choice.log_weights
        parts = [(logits.masked_fill(~choice.exact, -math.inf), values, None)]
        return parts + [(e.logits, e.values, e.sizes if e.sizes is not None else
                         torch.ones(e.values.shape[:2], device=values.device))
                        for e in choice.estimates]
