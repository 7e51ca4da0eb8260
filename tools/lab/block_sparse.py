"""Block-sparse causal attention of a prompt: units of rows attend to what a rule chooses.

On a CPU unit by unit, on a GPU by a kernel of Triton where there is one, otherwise under a mask.
"""

import dataclasses
import functools
import math
import time

import torch
import torch.nn.functional as F

from .block_choice import BLOCK, ByUnit, Choice, Units, floor
from .rival_choice import FlexPrefill, VerticalSlash

RULES = {"vertical-slash": VerticalSlash, "flexprefill": FlexPrefill}
ELEMENTS = {"cuda": 2 ** 28, "cpu": 2 ** 23}  # of an estimate at a time


@dataclasses.dataclass
class Counts:
    """Groups of keys that sparse units attended to, of those that they could see, and the seconds
    that choosing and attending took."""
    attended: int = 0
    seen: int = 0
    choosing_s: float = 0.0
    attending_s: float = 0.0


def attention(choice: Choice, counts: Counts, q, k, v) -> torch.Tensor:
    """Attends q [1, heads, n, d] to k, v [1, kv_heads, n, d], causally."""
    q, k, v = (x[0].contiguous() for x in (q, k, v))
    units, n = Units.of(choice, q.shape[1]), q.shape[1]
    dense = min(n, units.first) if units.count else n
    out = torch.empty_like(q)
    out[:, :dense] = F.scaled_dot_product_attention(
        q[None, :, :dense], *(x[None, :, :dense] for x in (k, v)), is_causal=True,
        enable_gqa=True)[0]
    if not units.count:
        return out[None]
    clock = _Clock(q.device)
    rule = RULES.get(choice.estimate, ByUnit)(choice, q, k)
    step = max(1, ELEMENTS[q.device.type] // rule.elements())
    for begin in range(0, units.count, step):
        part = units.part(begin, min(units.count, begin + step))
        keep = rule.keep(part)
        _count(counts, keep, part, rule.keys_a_group)
        counts.choosing_s += clock.lap()
        attend(keep, rule.keys_a_group, q, k, v, out, part.first, choice.unit)
        counts.attending_s += clock.lap()
    if units.end < n:
        everything = torch.ones(len(q), 1, -(-n // BLOCK), dtype=torch.bool, device=q.device)
        attend(everything, BLOCK, q, k, v, out, units.end, choice.unit)
    return out[None]


def _count(counts, keep, units, keys_a_group):
    counts.attended += int(keep.sum())
    if keys_a_group == BLOCK:
        seen = int(floor(units, keep.shape[-1], keep.device)[1].sum())
    else:
        seen = int((units.begins(keep.device) + units.rows).sum()) // keys_a_group
    counts.seen += seen * len(keep)


class _Clock:
    """Seconds between laps, a device's work included."""

    def __init__(self, device):
        self._device, self._last = device, 0.0
        self.lap()

    def lap(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        last, self._last = self._last, time.monotonic()
        return self._last - last


def attend(keep: torch.Tensor, keys_a_group: int, q, k, v, out, first: int, unit: int) -> None:
    """Writes rows of `out` [h, n, d]: units from row `first` on attend causally to the groups of
    keys in keep [h, u, groups]. Rows behind the prompt are left out."""
    if q.device.type != "cuda":
        _one_by_one(keep, keys_a_group, q, k, v, out, first, unit)
    elif _kernel():
        _kernel()(keep, keys_a_group, q, k, v, out, first, unit)
    else:
        _masked(keep, keys_a_group, q, k, v, out, first, unit)


def _one_by_one(keep, keys_a_group, q, k, v, out, first, unit):
    n, share = q.shape[1], len(q) // len(k)
    short = -n % keys_a_group
    keys, values = (F.pad(x.float(), (0, 0, 0, short)).unflatten(1, (-1, keys_a_group))
                    for x in (k, v))
    asked = q.float() * q.shape[-1] ** -0.5
    within = torch.arange(keys_a_group, device=q.device)
    for number in range(keep.shape[1]):
        begin = first + number * unit
        stop = min(n, begin + unit)
        rows = torch.arange(begin, stop, device=q.device)[:, None]
        for head in range(len(q)):
            groups = keep[head, number].nonzero()[:, 0]
            groups = groups[groups * keys_a_group < stop]
            here, what = (x[head // share, groups].flatten(0, 1) for x in (keys, values))
            logits = asked[head, begin:stop] @ here.T
            # Only groups that end behind the unit's first row have keys that a row does not see.
            late = groups[(groups + 1) * keys_a_group > begin + 1]
            at = (late[:, None] * keys_a_group + within).flatten()
            logits[:, logits.shape[1] - len(at):].masked_fill_(at > rows, -torch.inf)
            out[head, begin:stop] = (logits.softmax(-1) @ what).to(out.dtype)


def _masked(keep, keys_a_group, q, k, v, out, first, unit):
    group, n = len(q) // len(k), q.shape[1]
    step = max(1, 1024 // unit)
    for number in range(0, keep.shape[1], step):
        begin = first + number * unit
        stop = min(n, begin + step * unit)
        seen = keep[:, number:number + step].repeat_interleave(unit, 1)[:, :stop - begin]
        seen = seen.repeat_interleave(keys_a_group, 2)[:, :, :stop]
        at = torch.arange(seen.shape[2], device=q.device)
        seen = seen & (at <= torch.arange(begin, stop, device=q.device)[:, None])
        keys, values = (x[None, :, :seen.shape[2]].repeat_interleave(group, 1) for x in (k, v))
        out[:, begin:stop] = F.scaled_dot_product_attention(
            q[None, :, begin:stop], keys, values, seen[None])[0]


@functools.cache
def _kernel():
    """The kernel, once it was seen to give what masks give; None without Triton."""
    try:
        from . import block_kernel
        torch.manual_seed(1)
        q, k, v = (torch.randn(heads, 600, 64, device="cuda", dtype=torch.bfloat16)
                   for heads in (4, 2, 2))
        keep = torch.rand(4, 9, 5, device="cuda") < 0.5
        keep[..., 0] = True
        found, wanted = (torch.zeros_like(q) for _ in range(2))
        block_kernel.attend(keep, BLOCK, q, k, v, found, 68, 64)
        _masked(keep, BLOCK, q, k, v, wanted, 68, 64)
        error = (found.float() - wanted.float()).abs().max().item()
        if error > 0.05:
            raise RuntimeError(f"the kernel differs from a mask by {error}")
        return block_kernel.attend
    except Exception as error:  # pylint: disable=broad-except  # whatever a compiler may raise
        print(f"block_sparse: without Triton's kernel, slow: {error}", flush=True)
        return None
