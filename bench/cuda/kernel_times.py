#!/usr/bin/env python3
"""What a device's time went to, from a file of libkernel_times.so.

kernel_times.py FILE [--last SECONDS] [--between A B] [--top N] [--sequence N]

Prints, for each kernel, how often it ran, its time in all and its median; and how long the device did anything and
nothing. --last and --between take a stretch (seconds before the end; seconds after the first record). --sequence N
prints the last N records one after the other, with the time to the one before.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys


def demangled(names: set) -> dict:
    """Readable names, by c++filt where there is one: without namespaces and parameters, at most 70 letters."""
    ordered = sorted(names)
    if shutil.which("c++filt") is None:
        return {name: name[:70] for name in ordered}
    lines = subprocess.run(["c++filt"], input="\n".join(ordered), text=True, capture_output=True, check=True).stdout
    readable = {}
    for name, line in zip(ordered, lines.splitlines()):
        line = re.sub(r"retroinfer::(cuda::)?|\(anonymous namespace\)::|^void ", "", line)
        readable[name] = re.sub(r"(?<=[\w>])\(.*$", "", line)[:70]
    return readable


def read(path: str) -> list:
    records = []
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            parts = line.rstrip("\n").split("\t", 3)
            if len(parts) == 4:
                records.append((int(parts[0]), int(parts[1]), int(parts[2]), parts[3]))
    records.sort()
    return records


def busy_ns(records: list) -> int:
    """The length of the union of all records."""
    total, end = 0, 0
    for begin, duration, _, _ in records:
        total += max(0, begin + duration - max(begin, end))
        end = max(end, begin + duration)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--last", type=float)
    parser.add_argument("--between", type=float, nargs=2)
    parser.add_argument("--top", type=int, default=30)
    parser.add_argument("--sequence", type=int, default=0)
    options = parser.parse_args()
    records = read(options.file)
    if not records:
        print(f"{options.file} has no records: was CUDA_INJECTION64_PATH set, and CUPTI there?", file=sys.stderr)
        return 1
    first, last = records[0][0], max(begin + duration for begin, duration, _, _ in records)
    if options.last is not None:
        records = [r for r in records if r[0] >= last - options.last * 1e9]
    if options.between is not None:
        low, high = (first + seconds * 1e9 for seconds in options.between)
        records = [r for r in records if low <= r[0] < high]
    if not records:
        print("no record lies in that stretch", file=sys.stderr)
        return 1
    readable = demangled({name for _, _, _, name in records})
    by_name = {}
    for _, duration, _, name in records:
        by_name.setdefault(readable[name], []).append(duration)
    span = max(begin + duration for begin, duration, _, _ in records) - records[0][0]
    busy = busy_ns(records)
    print(f"{len(records)} records in {span / 1e6:.2f} ms: {busy / 1e6:.2f} ms busy, {(span - busy) / 1e6:.2f} ms idle")
    print(f"{'ms':>10} {'%':>5} {'count':>7} {'median us':>10}  kernel")
    for name, times in sorted(by_name.items(), key=lambda item: -sum(item[1]))[:options.top]:
        print(f"{sum(times) / 1e6:10.2f} {100 * sum(times) / span:5.1f} {len(times):7d} "
              f"{statistics.median(times) / 1e3:10.2f}  {name}")
    shown = records[len(records) - options.sequence:]
    for begin, duration, stream, name in shown:
        print(f"{(begin - shown[0][0]) / 1e3:10.2f} us {duration / 1e3:9.2f} us  stream {stream:4d}  {readable[name]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
