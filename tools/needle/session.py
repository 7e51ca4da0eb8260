"""Answers many questions about one document, under full or wave attention.

The document is prefilled once, with exact attention. The questions form a batch: each row reads
the document's keys and values and adds its own. Attention runs in fp32 over bf16 keys and values.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from . import model as llama, wave


class Session:
    """A document in memory."""

    def __init__(self, model: llama.Llama, ids: Sequence[int], end: int):
        self._model = model
        self._end = end
        self._device = next(model.parameters()).device
        self.tokens = len(ids)
        self.keys: list[torch.Tensor] = []    # by layer, [h, t, d] fp32
        self.values: list[torch.Tensor] = []
        self._prefill(ids)

    @torch.inference_mode()
    def _prefill(self, ids) -> None:
        def attend(layer, q, k, v):
            self.keys.append(k[0].float())
            self.values.append(v[0].float())
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        tokens = torch.tensor(ids, device=self._device)[None]
        self._model(tokens, torch.arange(len(ids), device=self._device)[None], attend)

    @torch.inference_mode()
    def answer(self, questions: Sequence[Sequence[int]], most: int,
               policy: "WavePolicy | None" = None) -> list[list[int]]:
        """Generates greedily after each question; stops a row at the end token or `most` tokens."""
        rows = _Rows(self, questions, most)
        hidden = self._model(rows.ids, rows.positions(), rows.attend_questions)
        last = hidden[torch.arange(len(questions)), rows.used - 1]
        written: list[list[int]] = [[] for _ in questions]
        open_rows = set(range(len(questions)))
        attend = rows.attend_step(policy)
        for _ in range(most):
            chosen = self._model.logits(last).argmax(-1)
            for row, token in enumerate(chosen.tolist()):
                if row in open_rows and token != self._end:
                    written[row].append(token)
                else:
                    open_rows.discard(row)
            if not open_rows:
                break
            last = self._model(chosen[:, None], (self.tokens + rows.used)[:, None], attend)[:, 0]
            rows.used = rows.used + 1
        return written


class _Rows:
    """The questions' own keys and values, and their attention."""

    def __init__(self, session: Session, questions, most: int):
        self._session = session
        device = session._device
        self.used = torch.tensor([len(q) for q in questions], device=device)
        self._longest = max(len(q) for q in questions)
        padded = [list(q) + [0] * (self._longest - len(q)) for q in questions]
        self.ids = torch.tensor(padded, device=device)
        heads, _, width = session.keys[0].shape
        shape = (len(questions), heads, self._longest + most, width)
        self._keys = [torch.zeros(shape, device=device) for _ in session.keys]
        self._values = [torch.zeros(shape, device=device) for _ in session.keys]
        self._places = torch.arange(shape[2], device=device)

    def positions(self) -> torch.Tensor:
        """Returns the positions [b, n] of the questions' tokens."""
        places = self._session.tokens + self._places[:self._longest]
        return places.expand(len(self.used), -1)

    def attend_questions(self, layer: int, q, k, v) -> torch.Tensor:
        """Exact attention of the questions' tokens to the document and their own past."""
        n = k.shape[2]
        self._keys[layer][:, :, :n] = k
        self._values[layer][:, :, :n] = v
        seen = self._places <= self._places[:n, None]
        grouped = _group(q, k.shape[1]).flatten(2, 3)
        group = q.shape[1] // k.shape[1]
        seen = seen.repeat(group, 1)[None, None]
        out = _attend(grouped, self._document(layer, grouped), self._own(layer, grouped, seen))
        return _ungroup(out.unflatten(2, (group, n)), q)

    def attend_step(self, policy: "WavePolicy | None"):
        """Returns the attention of one decode step."""
        def attend(layer, q, k, v):
            rows = torch.arange(len(self.used), device=q.device)
            self._keys[layer][rows, :, self.used] = k[:, :, 0].float()
            self._values[layer][rows, :, self.used] = v[:, :, 0].float()
            grouped = _group(q, k.shape[1])[:, :, :, 0]
            seen = (self._places <= self.used[:, None])[:, None, None]
            own = self._own(layer, grouped, seen)
            parts = (policy.document_parts(layer, grouped, *self._document(layer, grouped)[:2])
                     if policy else [self._document(layer, grouped)])
            return _ungroup(_attend(grouped, *parts, own).unsqueeze(3), q)
        return attend

    def _document(self, layer: int, queries):
        keys, values = self._session.keys[layer], self._session.values[layer]
        return _shared_scores(queries, keys), values, None

    def _own(self, layer: int, queries, seen):
        logits = queries @ self._keys[layer].transpose(2, 3) * queries.shape[-1] ** -0.5
        return logits.masked_fill(~seen, -math.inf), self._values[layer], None


class WavePolicy:
    """Tripartite attention over a session's document."""

    def __init__(self, session: Session, settings: wave.Settings, prompt_tokens: int,
                 indexes: list[wave.Index] | None = None):
        self.settings = settings
        sizes = wave.segment_sizes(prompt_tokens)
        self.dense = not sizes
        self.indexes = indexes or [wave.build_index(k, v, sizes, settings) for k, v in zip(
            session.keys, session.values) if sizes]

    def document_parts(self, layer: int, queries, logits, values):
        """Returns the parts (logits, values, sizes) that stand for the document."""
        if self.dense:
            return [(logits, values, None)]
        index = self.indexes[layer]
        estimates, ranking = wave.rank(index, queries, self.settings)
        count = wave.budgets(index.sizes.shape[1], self.settings, layer)
        retrieved, estimated = wave.select(ranking, *count)
        estimated &= index.sizes > 0
        self.observe(layer, queries, logits, ranking, retrieved, estimated)
        steady = torch.ones_like(retrieved[..., :1])
        exact = torch.cat([retrieved, steady], -1).gather(
            -1, index.owner.expand(len(queries), -1, -1))
        return [(logits.masked_fill(~exact[:, :, None], -math.inf), values, None),
                (estimates.masked_fill(~estimated[:, :, None], -math.inf), index.value_sums,
                 index.sizes)]

    def observe(self, layer, queries, logits, ranking, retrieved, estimated) -> None:
        """Called for every step and layer; the study overrides it."""


def _group(q, kv_heads: int):
    """[b, heads, n, d] -> [b, h, g, n, d] in fp32."""
    return q.float().unflatten(1, (kv_heads, -1))


def _ungroup(out, q):
    """[b, h, g, n, d] -> [b, heads, n, d] in q's type."""
    return out.flatten(1, 2).to(q.dtype)


def _shared_scores(queries, keys):
    """Scores queries [b, h, r, d] against keys [h, t, d] that all rows share."""
    b, h, r, d = queries.shape
    flat = queries.transpose(0, 1).reshape(h, b * r, d)
    # Scaled afterwards: bf16 inputs pass through TF32 unrounded, scaled ones would not.
    return (flat @ keys.transpose(1, 2)).mul_(d ** -0.5).view(h, b, r, -1).transpose(0, 1)


def _attend(queries, *parts):
    """Merges parts (logits [b, h, r, n], values, sizes) by maximum and sum."""
    top = torch.stack([logits.amax(-1) for logits, _, _ in parts]).amax(0)[..., None]
    total = mixed = 0.0
    for logits, values, sizes in parts:
        weights = (logits - top).exp_()
        total = total + (weights if sizes is None else weights * sizes[:, None]).sum(-1)
        if values.dim() == 4:
            mixed = mixed + weights @ values
        else:
            b, h, r, n = weights.shape
            flat = weights.transpose(0, 1).reshape(h, b * r, n) @ values
            mixed = mixed + flat.view(h, b, r, -1).transpose(0, 1)
    return mixed / total[..., None]
