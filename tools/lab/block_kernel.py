"""A kernel of Triton: rows of a prompt attend to chosen groups of keys.

What a unit attends to is a list of groups of neighbouring keys, in the order of positions; products
in the type of the inputs, sums and softmax in fp32. TRITON_INTERPRET=1 runs it on a CPU.
"""

import torch
import triton
import triton.language as tl

TILE = 64  # keys of a step


@triton.jit
def _attend(q, k, v, out, starts, groups, first, tokens, units, heads_a_kv_head, q_stride, k_stride,
            scale, UNIT: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
            STEP: tl.constexpr):
    unit = units - 1 - tl.program_id(0)  # the longest first
    head = tl.program_id(1)
    rows = first + unit * UNIT + tl.arange(0, UNIT)
    columns = tl.arange(0, WIDTH)
    own = head.to(tl.int64) * q_stride + rows[:, None].to(tl.int64) * WIDTH + columns[None, :]
    queries = tl.load(q + own, mask=rows[:, None] < tokens, other=0.0)
    before = (head // heads_a_kv_head).to(tl.int64) * k_stride
    begin = tl.load(starts + head * units + unit)
    count = (tl.load(starts + head * units + unit + 1) - begin).to(tl.int32) * GROUP
    top = tl.full((UNIT,), float("-inf"), tl.float32)
    total = tl.zeros((UNIT,), tl.float32)
    mixed = tl.zeros((UNIT, WIDTH), tl.float32)
    for at in range(0, count, STEP):
        lane = at + tl.arange(0, STEP)
        group = tl.load(groups + begin + lane // GROUP, mask=lane < count, other=0)
        key = group * GROUP + lane % GROUP
        there = (lane < count) & (key < tokens)
        place = before + key.to(tl.int64) * WIDTH
        keys = tl.load(k + place[None, :] + columns[:, None], mask=there[None, :], other=0.0)
        logits = tl.dot(queries, keys) * scale
        logits = tl.where(there[None, :] & (key[None, :] <= rows[:, None]), logits, float("-inf"))
        highest = tl.maximum(top, tl.max(logits, 1))
        weights = tl.math.exp2(logits - highest[:, None])
        shrunk = tl.math.exp2(top - highest)
        total = total * shrunk + tl.sum(weights, 1)
        values = tl.load(v + place[:, None] + columns[None, :], mask=there[:, None], other=0.0)
        mixed = mixed * shrunk[:, None] + tl.dot(weights.to(values.dtype), values)
        top = highest
    mixed = mixed / total[:, None]
    tl.store(out + own, mixed.to(out.dtype.element_ty), mask=rows[:, None] < tokens)


def attend(keep: torch.Tensor, keys_a_group: int, q, k, v, out, first: int, unit: int) -> None:
    """Writes rows of `out` [h, n, d]: units from row `first` on attend causally to the groups of
    keys in keep [h, u, groups]. Each unit must keep the group of key 0."""
    heads, units, _ = keep.shape
    groups = keep.flatten(0, 1).nonzero()[:, 1].int()
    starts = torch.zeros(heads * units + 1, dtype=torch.int64, device=q.device)
    starts[1:] = keep.flatten(0, 1).sum(-1).cumsum(0)
    width = q.shape[-1]
    _attend[units, heads](
        q, k, v, out, starts, groups, first, q.shape[1], units, heads // len(k), q.shape[1] * width,
        k.shape[1] * width, width ** -0.5 * 1.4426950408889634, UNIT=unit, GROUP=keys_a_group,
        WIDTH=width, STEP=TILE, num_warps=4, num_stages=3)
