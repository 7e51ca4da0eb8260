#!/usr/bin/env python3
"""Times FlashInfer's decode attention at shapes of this project's: one JSON object a line.

One new token against a dense context, 32 query and 8 KV heads of 128, bf16 queries; K and V in bf16
or fp8 (e4m3, all scales 1), in pages of 64 tokens that lie in any order. Three kernels: the one for
decode on CUDA cores, the one for prefill given one query ("tensor cores"), and XQA. Plans are made
ahead and not timed. Each kernel's first sequence is compared with PyTorch's attention, then it is
timed as attention_peers.py times PyTorch. FlashInfer compiles its kernels at their first use, which
takes minutes. Where it cannot be imported, this says so on standard error and measures nothing.

usage: flashinfer_peers.py [--quick]
"""
import argparse
import functools
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attention_peers import (HEAD_DIM, KV_HEADS, QUERY_HEADS, copies, in_graph, random, timed,
                             why_skipped)

PAGE_TOKENS = 64
WORKSPACE_BYTES = 256 << 20
SHAPES = [(batch, tokens) for tokens in (8192, 122880, 524288) for batch in (1, 3, 7, 12)]
FORMATS = {"dense": torch.bfloat16, "dense, fp8": torch.float8_e4m3fn}
# Of the largest value. XQA rounds queries and weights to fp8 as well; reading the wrong tokens
# gives errors of about 1.
ALLOWED = 0.2


def make_kv(num_pages, dtype):
    """K or V: [pages, heads, tokens, head_dim]."""
    return random(num_pages, KV_HEADS, PAGE_TOKENS, HEAD_DIM).to(dtype)


def by_wrapper(flashinfer, tensor_cores, query, table, dtype, out):
    batch, pages = table.shape
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda"), "HND",
        use_tensor_cores=tensor_cores)
    wrapper.plan(torch.arange(0, (batch + 1) * pages, pages, dtype=torch.int32, device="cuda"),
                 table.flatten(),
                 torch.full((batch,), PAGE_TOKENS, dtype=torch.int32, device="cuda"),
                 QUERY_HEADS, KV_HEADS, HEAD_DIM, PAGE_TOKENS,
                 q_data_type=query.dtype, kv_data_type=dtype)
    return lambda k, v: wrapper.run(query, (k, v), out=out)


def by_xqa(flashinfer, query, table, dtype, out):  # the type is K's and V's own
    batch, pages = table.shape
    work = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    lengths = torch.full((batch,), pages * PAGE_TOKENS, dtype=torch.int32, device="cuda")
    return lambda k, v: flashinfer.decode.xqa_batch_decode_with_kv_cache(
        query, (k, v), work, table, lengths, pages * PAGE_TOKENS, bmm1_scale=HEAD_DIM ** -0.5,
        bmm2_scale=1.0, out=out, kv_layout="HND")


def kernels(flashinfer):
    return {"FlashInfer, CUDA cores": functools.partial(by_wrapper, flashinfer, False),
            "FlashInfer, tensor cores": functools.partial(by_wrapper, flashinfer, True),
            "FlashInfer, XQA": functools.partial(by_xqa, flashinfer)}


def make_inputs(batch, pages):
    """Queries, the pages of each sequence, and room for the result."""
    query = random(batch, QUERY_HEADS, HEAD_DIM)
    table = torch.randperm(batch * pages, device="cuda").to(torch.int32).view(batch, pages)
    return query, table, torch.empty_like(query)


def first_sequence(pool, table):
    """[1, heads, tokens, head_dim] in bf16; taken as bytes, since fp8 has few operations."""
    pages = pool.view(torch.uint8)[table[0].long()].view(pool.dtype).to(torch.bfloat16)
    return pages.transpose(0, 1).reshape(1, KV_HEADS, -1, HEAD_DIM)


def reference(query, table, key, value):
    """Attention of the first sequence: [query_heads, head_dim]."""
    return sdpa(query[:1].view(1, QUERY_HEADS, 1, HEAD_DIM), first_sequence(key, table),
                first_sequence(value, table), enable_gqa=True).view(QUERY_HEADS, HEAD_DIM)


def relative_error(got, want):
    return ((got.float() - want.float()).abs().max() / want.float().abs().max()).item()


def compile_kernel(make, dtype):
    """Uses a kernel once, which compiles it; returns what went wrong, None if nothing did."""
    try:
        query, table, out = make_inputs(1, 4)
        make(query, table, dtype, out)(make_kv(4, dtype), make_kv(4, dtype))
        torch.cuda.synchronize()
    except Exception as error:
        print(f"flashinfer_peers.py: {str(error)[-4000:]}", file=sys.stderr)
        return short(error)
    return None


def short(error):
    return (str(error) or repr(error)).splitlines()[0][:160]


def compile_all(makers):
    """Compiles all kernels at once; returns why a kernel cannot be had, by name and type."""
    uses = [(who, dtype) for who in makers for dtype in FORMATS.values()]
    with ThreadPoolExecutor(len(uses)) as threads:
        reasons = threads.map(lambda use: compile_kernel(makers[use[0]], use[1]), uses)
        return dict(zip(uses, reasons))


def measure(call, kv, want, out, rounds):
    """What a row says of a kernel: its error, and its time unless that is too large."""
    out.fill_(float("nan"))
    call(*kv[0])
    row = {"error": relative_error(out[0], want)}
    if not row["error"] <= ALLOWED:
        return row | {"error_text": f"wrong: differs by {row['error']:.3g} of the largest value"}

    def run_all():
        for key, value in kv:
            call(key, value)
    return row | {"us": timed(in_graph(run_all).replay, len(kv), rounds)}


def decode(makers, broken, shape, batch, tokens, rounds):
    dtype, pages = FORMATS[shape], tokens // PAGE_TOKENS
    kv_bytes = batch * tokens * KV_HEADS * HEAD_DIM * 2 * dtype.itemsize
    base = {"benchmark": "decode_attention", "shape": shape, "batch": batch, "tokens": tokens,
            "pages": 0}
    skipped = why_skipped(kv_bytes)
    if skipped:
        print(json.dumps(base | {"who": "FlashInfer", "error_text": skipped}), flush=True)
        return
    query, table, out = make_inputs(batch, pages)
    kv = [(make_kv(batch * pages, dtype), make_kv(batch * pages, dtype))
          for _ in range(copies(kv_bytes))]
    want = reference(query, table, *kv[0])
    for who, make in makers.items():
        row = base | {"who": who}
        try:
            if broken[who, dtype]:
                raise RuntimeError(broken[who, dtype])
            row |= measure(make(query, table, dtype, out), kv, want, out, rounds)
            if "us" in row:
                row["gb_per_second"] = kv_bytes / row["us"] / 1e3
        except Exception as error:
            row["error_text"] = short(error)
            torch.cuda.synchronize()
        print(json.dumps(row), flush=True)


def import_flashinfer():
    try:
        import flashinfer
        import flashinfer.decode
        return flashinfer
    except Exception as error:  # also what FlashInfer itself needs and does not find
        print(f"flashinfer_peers.py: FlashInfer cannot be imported and is left out: {short(error)}",
              file=sys.stderr)
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("flashinfer_peers.py: no GPU")
    flashinfer = import_flashinfer()
    if flashinfer is None:
        return
    print(json.dumps({"flashinfer": flashinfer.__version__}), flush=True)
    makers = kernels(flashinfer)
    broken = compile_all(makers)
    for batch, tokens in SHAPES:
        for shape in FORMATS:
            decode(makers, broken, shape, batch, tokens, 5 if args.quick else 15)


if __name__ == "__main__":
    main()
