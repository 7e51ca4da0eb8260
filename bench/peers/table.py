#!/usr/bin/env python3
"""Prints JSON lines of the attention benchmarks (standard input) as tables of Markdown.

A peer's share of a plain read is of this project's read of as many bytes, where that was measured;
int8 and fp8 are taken as one size.

usage: cat ours.jsonl peers.jsonl | table.py
"""
import json
import sys


def cell(row, name, form):
    return form % row[name] if name in row else ""


def size(row):
    """What sets the bytes that a row reads: rows that agree in it are printed together."""
    shape = row["shape"].replace("int8", "8 bits").replace("fp8", "8 bits")
    return shape, row["batch"], row["tokens"]


def share_of_read(row, reads):
    if "error_text" in row:
        return row["error_text"]
    if "share_of_read" in row:
        return "%.0f %%" % (100 * row["share_of_read"])
    if size(row) not in reads:
        return ""
    return "%.0f %%" % (100 * row["gb_per_second"] / reads[size(row)])


def decode_table(rows):
    print("| shape | batch | tokens | who | us | GB/s | of a plain read |")
    print("|---|---:|---:|---|---:|---:|---:|")
    reads = {size(r): r["read_gb_per_second"] for r in rows if "read_gb_per_second" in r}
    for row in sorted(rows, key=lambda r: (size(r), r["who"] != "retroinfer")):
        print(f"| {row['shape']} | {row['batch']} | {row['tokens']:,} | {row['who']} "
              f"| {cell(row, 'us', '%.1f')} | {cell(row, 'gb_per_second', '%.0f')} "
              f"| {share_of_read(row, reads)} |")


def prefill_table(rows):
    print("| tokens | who | ms | TFLOP/s |")
    print("|---:|---|---:|---:|")
    for row in sorted(rows, key=lambda r: r["tokens"]):
        time = f"{row['us'] / 1000:.1f}" if "us" in row else row.get("error_text", "")
        print(f"| {row['tokens']:,} | {row['who']} | {time} "
              f"| {cell(row, 'tflop_per_second', '%.0f')} |")


def main():
    rows = [json.loads(line) for line in sys.stdin if line.startswith("{")]
    for row in rows:
        if "torch" in row:
            print(f"{row['device']}, PyTorch {row['torch']}, cuDNN {row['cudnn']}\n")
        if "flashinfer" in row:
            print(f"FlashInfer {row['flashinfer']}\n")
    decode_table([r for r in rows if r.get("benchmark") == "decode_attention"])
    print()
    prefill_table([r for r in rows if r.get("benchmark") == "prefill_attention"])


if __name__ == "__main__":
    main()
