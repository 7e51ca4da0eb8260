#!/usr/bin/env python3
"""Times PyTorch's attention at the shapes of this project's benchmarks: one JSON object a line.

Decode: one new token against a dense context, 32 query and 8 KV heads of 128, bf16; each form that
PyTorch offers: the query heads as they are (enable_gqa), or those that share a KV head as so many
queries. Prefill: causal attention over the whole prompt, the same heads. Each on the flash and the
cuDNN back end; one that refuses a shape is reported as an error. Medians over CUDA graph replays
(decode; over copies of K and V beyond L2) or over single calls (prefill), by CUDA events.

usage: attention_peers.py [--decode] [--prefill] [--quick]
"""
import argparse
import json
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

QUERY_HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
GROUP = QUERY_HEADS // KV_HEADS
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
MIN_BYTES = 400 << 20  # of K and V that a graph goes through: many times L2
SPARE_BYTES = 6 << 30  # for all that is not K and V
DECODE_SHAPES = [(batch, tokens) for batch in (1, 3, 8) for tokens in (8192, 32768, 65536, 122880)]
DECODE_SHAPES += [(batch, tokens) for batch in (7, 12) for tokens in (8192, 122880)]
DECODE_SHAPES += [(batch, 524288) for batch in (1, 3, 7, 12)]


def timed(run, calls, rounds):
    """Median microseconds of one of the `calls` calls that run() makes."""
    times = []
    for i in range(rounds + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        if i >= 2:
            times.append(1000 * begin.elapsed_time(end) / calls)
    return statistics.median(times)


def in_graph(run):
    """A CUDA graph of what run() enqueues; runs it once before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def copies(kv_bytes):
    """How many copies of K and V a graph goes through."""
    return max(2, -(-MIN_BYTES // kv_bytes))


def why_skipped(kv_bytes):
    """Says that K and V do not fit this GPU; None if they do."""
    needed, there = copies(kv_bytes) * kv_bytes + SPARE_BYTES, torch.cuda.mem_get_info()[1]
    return None if needed <= there else f"skipped: needs {needed >> 30} GiB of {there >> 30}"


def random(*shape):
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").uniform_(-1.7, 1.7)


def decode(batch, tokens, rounds):
    kv_bytes = batch * tokens * KV_HEADS * HEAD_DIM * 2 * 2
    base = {"benchmark": "decode_attention", "shape": "dense", "batch": batch, "tokens": tokens,
            "pages": 0}
    skipped = why_skipped(kv_bytes)
    if skipped:
        print(json.dumps(base | {"who": "PyTorch", "error_text": skipped}), flush=True)
        return
    sets = copies(kv_bytes)
    keys = [random(batch, KV_HEADS, tokens, HEAD_DIM) for _ in range(sets)]
    values = [random(batch, KV_HEADS, tokens, HEAD_DIM) for _ in range(sets)]
    query = random(batch, QUERY_HEADS, 1, HEAD_DIM)
    folded = query.view(batch, KV_HEADS, GROUP, HEAD_DIM)
    forms = {
        "enable_gqa": lambda k, v: sdpa(query, k, v, enable_gqa=True),
        "folded": lambda k, v: sdpa(folded, k, v),
    }
    for backend, kind in BACKENDS.items():
        for form, call in forms.items():
            row = base | {"who": f"PyTorch {backend}, {form}"}
            try:
                with sdpa_kernel(kind):
                    def run_all():
                        for k, v in zip(keys, values):
                            call(k, v)
                    row["us"] = timed(in_graph(run_all).replay, sets, rounds)
                    row["gb_per_second"] = kv_bytes / row["us"] / 1e3
            except RuntimeError as error:
                row["error_text"] = str(error).splitlines()[0][:160]
                torch.cuda.synchronize()
            print(json.dumps(row), flush=True)


def prefill(tokens, rounds):
    query = random(1, QUERY_HEADS, tokens, HEAD_DIM)
    key, value = (random(1, KV_HEADS, tokens, HEAD_DIM) for _ in range(2))
    flop = 4 * QUERY_HEADS * HEAD_DIM * tokens * (tokens + 1) / 2
    for backend, kind in BACKENDS.items():
        row = {"benchmark": "prefill_attention", "who": f"PyTorch {backend}", "tokens": tokens}
        try:
            with sdpa_kernel(kind):
                row["us"] = timed(
                    lambda: sdpa(query, key, value, is_causal=True, enable_gqa=True), 1, rounds)
                row["tflop_per_second"] = flop / row["us"] / 1e6
        except RuntimeError as error:
            row["error_text"] = str(error).splitlines()[0][:160]
        print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--prefill", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("attention_peers.py: no GPU")
    print(json.dumps({"torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
                      "device": torch.cuda.get_device_name()}), flush=True)
    if args.decode or not args.prefill:
        for batch, tokens in DECODE_SHAPES:
            decode(batch, tokens, 5 if args.quick else 15)
    if args.prefill or not args.decode:
        for tokens in (32768, 122880):
            prefill(tokens, 3 if args.quick else 7)


if __name__ == "__main__":
    main()
