#!/usr/bin/env python3
"""Prints JSON lines of the attention benchmarks (standard input) as tables of Markdown.

usage: cat ours.jsonl peers.jsonl | table.py
"""
import json
import sys


def cell(row, name, form):
    return form % row[name] if name in row else ""


def decode_table(rows):
    print("| shape | batch | tokens | who | us | GB/s | of a plain read |")
    print("|---|---:|---:|---|---:|---:|---:|")
    rows.sort(key=lambda r: (r["shape"], r["batch"], r["tokens"], r["who"] != "retroinfer"))
    for row in rows:
        share = cell({"share": 100 * row["share_of_read"]}, "share", "%.0f %%") \
            if "share_of_read" in row else row.get("error_text", "")
        print(f"| {row['shape']} | {row['batch']} | {row['tokens']:,} | {row['who']} "
              f"| {cell(row, 'us', '%.1f')} | {cell(row, 'gb_per_second', '%.0f')} | {share} |")


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
    decode_table([r for r in rows if r.get("benchmark") == "decode_attention"])
    print()
    prefill_table([r for r in rows if r.get("benchmark") == "prefill_attention"])


if __name__ == "__main__":
    main()
