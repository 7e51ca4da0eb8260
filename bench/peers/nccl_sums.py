#!/usr/bin/env python3
"""What sums of ranks take with NCCL, to stand beside `collectives_bench`: the same sizes, in a recorded graph.

usage: nccl_sums.py RANKS     needs PyTorch and as many GPUs; prints JSON: microseconds of a call by bytes
"""
import json
import os
import statistics
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 512, 1024, 4096)
COLS = 4096  # of bf16: 8 KiB a row
ROUNDS = 20


def measure(rank, ranks, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    for rows in ROWS:
        calls = 100 if rows < 128 else 20
        matrix = torch.randn(rows, COLS, device="cuda", dtype=torch.bfloat16)
        dist.all_reduce(matrix)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                dist.all_reduce(matrix)
        times = []
        for _ in range(ROUNDS):
            dist.barrier()
            torch.cuda.synchronize()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / calls)
        if rank == 0:
            results.append({"bytes": rows * COLS * 2, "microseconds": statistics.median(times)})
    dist.barrier()
    os._exit(0)  # ends without the teardown, which waits for graphs


def main():
    ranks = int(sys.argv[1])
    with mp.Manager() as manager:
        results = manager.list()
        mp.spawn(measure, args=(ranks, results), nprocs=ranks)
        print(json.dumps({"ranks": ranks, "nccl": list(results)}))


if __name__ == "__main__":
    main()
