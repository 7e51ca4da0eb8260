"""What a sparse-attention system is in the laboratory, and attention by what it chose.

A system sees the keys and values of a document once (`build`) and then, for every query, says
which keys are attended exactly, what stands for the others, and how many bytes it reads for that
(`choose`). All of them attend the sink and the newest tokens of the document exactly, and
everything behind the document: they differ in what they do with the rest.

Shapes: b rows (questions, or tokens one after the other), h KV heads, g query heads that share one,
t tokens of the document, n tokens behind it, c clusters or pages, d head_dim.
"""

import dataclasses
import math
from collections.abc import Hashable
from typing import Any

import torch

SINK = 4
LOCAL = 64
VALUE_BYTES = 2  # of an element of a key or a value: bf16
KINDS = ("index", "sums", "pages")  # of bytes read; what that means is in README.md


@dataclasses.dataclass(frozen=True)
class Budget:
    """How many tokens may be attended exactly, beside the steady zone.

    The product's: 1.8 % of the tokens, but at least 1,024, times `factor`.
    """
    factor: float = 1.0
    share: float = 0.018
    least: int = 1024

    def __post_init__(self):
        if not self.factor > 0 or not 0 < self.share <= 1 or self.least < 0:
            raise ValueError(f"a budget of factor {self.factor}, share {self.share} and at least "
                             f"{self.least} tokens: needs a factor above 0, a share in (0, 1]")

    def tokens(self, total: int) -> int:
        """Returns the tokens of a document of `total`."""
        return min(total, math.ceil(self.factor * max(self.least, self.share * total)))


@dataclasses.dataclass
class Step:
    """Queries of rows, and what is known beside them."""
    layer: int
    queries: torch.Tensor  # [b, h, g, d] fp32
    logits: torch.Tensor   # [b, h, g, t] fp32: q.k / sqrt(d), exact; an oracle may look, others not
    behind: torch.Tensor   # [b]: tokens of the row behind the document
    sequential: bool       # rows are tokens that follow each other, and not one step of a batch
    predicted: torch.Tensor | None = None  # [b, h, g, d]: queries from the layer before's input

    @property
    def rows(self) -> int:
        """b."""
        return len(self.queries)


@dataclasses.dataclass
class Estimate:
    """What stands for keys that are not attended: weight exp(logits), with -inf for none."""
    logits: torch.Tensor         # [b, h, g, c]
    values: torch.Tensor         # [h, c, d]: what a weight of 1 adds to the output's sum
    sizes: torch.Tensor | None   # [h, c]: what it adds to the weights' sum; None: 1


@dataclasses.dataclass
class Choice:
    """What a system decided for some rows."""
    exact: torch.Tensor                      # bool [b, h, 1 or g, t]
    read: dict[str, torch.Tensor]            # by kind: bytes of a row, [b]
    estimates: list[Estimate] = dataclasses.field(default_factory=list)
    log_weights: torch.Tensor | None = None  # [b, h, g, t]: added to the logits of exact keys


class System:
    """A way of attending to a part of the keys. Subclasses override what is here."""

    name = "system"

    def key(self) -> Hashable:
        """Returns what decides the index: systems with equal keys share one."""
        return type(self).__name__

    def build(self, layer: int, keys: torch.Tensor, values: torch.Tensor,
              queries: torch.Tensor, grown: int = 0) -> Any:
        """Builds the index of a layer.

        keys and values are [h, t, d] fp32; queries [h, g, s, d] are a sample of the document's own.
        The last `grown` tokens (a multiple of 1,024) have been generated and not read.
        """
        del layer, keys, values, queries, grown

    def choose(self, index: Any, step: Step) -> Choice:
        """Decides for rows."""
        raise NotImplementedError


def steady(total: int, device) -> torch.Tensor:
    """Returns which of `total` tokens every system attends exactly: bool [t]."""
    mask = torch.zeros(total, dtype=torch.bool, device=device)
    mask[:SINK] = True
    mask[-LOCAL:] = True
    return mask


def page_bytes(tokens: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Returns the bytes of keys and values of so many tokens of one KV head."""
    return tokens * (2 * head_dim * VALUE_BYTES)


def constant(rows: int, count: float, device) -> torch.Tensor:
    """Returns [b] bytes that are the same for each row."""
    return torch.full((rows,), float(count), device=device)


def read_of(index: torch.Tensor | float, pages: torch.Tensor, sums: torch.Tensor | float = 0.0,
            ) -> dict[str, torch.Tensor]:
    """Returns the bytes read by kind; pages is [b]."""
    def wide(x):
        return x if isinstance(x, torch.Tensor) else constant(len(pages), x, pages.device)
    return {"index": wide(index), "sums": wide(sums), "pages": pages.float()}


def top_tokens(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Returns bool like scores: the `count` largest of the last dimension."""
    count = min(count, scores.shape[-1])
    none = torch.zeros_like(scores, dtype=torch.bool)
    return none.scatter_(-1, scores.topk(count, dim=-1, sorted=False).indices, True)


def group_weights(logits: torch.Tensor) -> torch.Tensor:
    """Returns for each KV head the largest weight over its query heads: [b, h, c]."""
    return logits.softmax(-1).amax(2)


def attend(step: Step, choice: Choice, values: torch.Tensor, own_logits: torch.Tensor,
           own_values: torch.Tensor) -> torch.Tensor:
    """Merges exact keys, estimates and the row's own tokens to the output [b, h, g, d].

    own_logits is [b, h, g, n] with -inf for what a row does not see; own_values [h, n, d], or
    [b, h, n, d] where each row has its own.
    """
    exact = step.logits
    if choice.log_weights is not None:
        exact = exact + choice.log_weights
    exact = exact.masked_fill(~choice.exact, -math.inf)
    parts = [(exact, values, None), (own_logits, own_values, None)]
    parts += [(e.logits, e.values, e.sizes) for e in choice.estimates]
    top = parts[0][0].amax(-1)
    for logits, _, _ in parts[1:]:
        top = torch.maximum(top, logits.amax(-1))
    total = mixed = 0.0
    for logits, part_values, sizes in parts:
        weights = (logits - top[..., None]).exp_()
        total = total + (weights.sum(-1) if sizes is None
                         else torch.einsum("bhgc,hc->bhg", weights, sizes))
        if part_values.dim() == 4:
            mixed = mixed + weights @ part_values
        else:
            b, h, g, n = weights.shape
            flat = weights.transpose(0, 1).reshape(h, b * g, n) @ part_values
            mixed = mixed + flat.view(h, b, g, -1).transpose(0, 1)
    return mixed / total[..., None]


def scores(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Returns q.k / sqrt(d) of queries [b, h, g, d] and keys [h, t, d]: [b, h, g, t]."""
    b, h, g, d = queries.shape
    flat = queries.transpose(0, 1).reshape(h, b * g, d)
    # Scaled afterwards: bf16 inputs pass through TF32 unrounded, scaled ones would not.
    return (flat @ keys.transpose(1, 2)).mul_(d ** -0.5).view(h, b, g, -1).transpose(0, 1)
