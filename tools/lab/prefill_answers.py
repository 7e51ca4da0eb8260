"""Greedy answers behind one prompt that was prefilled in several ways, as a batch.

Each row has the keys and values of its own prefill; what is generated attends to all of them and to
its own past exactly, in fp32.
"""

import torch

from .block_choice import Choice
from .block_sparse import Counts
from .prefill_programs import Models
from .sparse_prefill import prefill


class Prefilled:
    """A prompt's keys and values [rules, kv_heads, n, d] by layer, and its last hidden states."""

    @torch.inference_mode()
    def __init__(self, models: Models, ids: torch.Tensor, rules: list[Choice | None], room: int):
        """Prefills by each rule (None: exactly), with room for tokens behind the prompt."""
        self._model, self._name = models.of(len(ids) + room)
        self._models, self._tokens = models, len(ids)
        shape = self._model.shape
        size = (len(rules), shape.num_key_value_heads, len(ids) + room, shape.head_dim)
        self._keys, self._values = ([torch.empty(size, device=ids.device, dtype=models.dtype)
                                     for _ in range(shape.num_hidden_layers)] for _ in range(2))
        self.counts, last = [Counts() for _ in rules], []
        for row, (rule, counts) in enumerate(zip(rules, self.counts)):
            def keep(layer, k, v, row=row):
                self._keys[layer][row, :, :len(ids)] = k[0]
                self._values[layer][row, :, :len(ids)] = v[0]
            last.append(prefill(self._model, ids, rule, counts, keep)[-1])
        self._last = torch.stack(last)

    @torch.inference_mode()
    def answers(self, most: int, end: int) -> list[list[int]]:
        """Returns what each row says until the token `end`, at most so many tokens."""
        rows = len(self._last)
        said: list[list[int]] = [[] for _ in range(rows)]
        open_rows, last = set(range(rows)), self._last
        for used in range(most):
            token = self._models.logits(last).argmax(-1)
            for row, one in enumerate(token.tolist()):
                if row in open_rows and one != end:
                    said[row].append(one)
                else:
                    open_rows.discard(row)
            if not open_rows or used + 1 == most:
                break
            last = self._feed(token[:, None], used)[:, -1]
        return said

    @torch.inference_mode()
    def surprise(self, given: list[int], behind: int) -> list[float]:
        """Returns -log p of the given tokens from number `behind` on, for each row."""
        ids = torch.tensor(given, device=self._last.device)
        hidden = torch.cat([self._last[:, None],
                            self._feed(ids[:-1].expand(len(self._last), -1), 0)], 1)
        found = self._models.logits(hidden[:, behind:]).log_softmax(-1)
        wanted = ids[behind:].expand(len(found), -1)[..., None]
        return (-found.gather(-1, wanted)[..., 0].sum(-1)).tolist()

    def _feed(self, ids, used):
        """Returns the hidden states of tokens [rows, n] behind `used` others behind the prompt."""
        begin = self._tokens + used
        positions = begin + torch.arange(ids.shape[1], device=ids.device)
        stop = begin + ids.shape[1]
        ahead = torch.arange(stop, device=ids.device) > positions[:, None]

        def attend(layer, q, k, v):
            keys, values = self._keys[layer], self._values[layer]
            keys[:, :, begin:stop], values[:, :, begin:stop] = k, v
            queries = q.float().unflatten(1, (k.shape[1], -1))
            logits = queries.flatten(2, 3) @ keys[:, :, :stop].float().mT * q.shape[-1] ** -0.5
            logits = logits.unflatten(2, queries.shape[2:4]).masked_fill(ahead, -torch.inf)
            mixed = logits.softmax(-1).flatten(2, 3) @ values[:, :, :stop].float()
            return mixed.unflatten(2, queries.shape[2:4]).flatten(1, 2).to(q.dtype)
        return self._model(ids, positions.expand(len(ids), -1), attend)
