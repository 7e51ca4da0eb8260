#!/usr/bin/env python3
"""Says what a build without a compiler cache costs, from a sample of its files.

    tools/build_time.py BUILD_FOLDER [--every 15] [--kind tests] [--options=-O1]
                        [--headers | --phases]

Compiles every so many of the files in BUILD_FOLDER/compile_commands.json, one after the other and
into nothing, and takes the processor time of each: other work on the machine changes that little.
Prints what each kind of file takes and what all of them would. --options adds to each command, for
a comparison. --headers prints instead which headers the most lines come from, after preprocessing;
--phases what of its time the compiler (g++) spends on what. Linking is not part of it.
"""

import argparse
import collections
import json
import pathlib
import re
import resource
import shlex
import subprocess

KINDS = ("generated", "programs", "tests", "bench")
# As g++ calls them. The first two happen within the others.
PHASES = ("preprocessing", "template instantiation", "phase parsing", "phase lang. deferred",
          "phase opt and generate")
LINE_MARKER = re.compile(r'^# \d+ "([^"]+)"')
# Where a header belongs to, by its path; the first that fits.
PACKAGES = (("/build/", "generated"), ("/grpc", "grpc"), ("/google/protobuf", "protobuf"),
            ("/absl/", "absl"), ("/gtest/", "gtest"), ("/gmock/", "gmock"), ("/c++/", "libstdc++"),
            ("/spdlog/", "spdlog"), ("/fmt/", "fmt"), ("/usr/", "system"))


def kind_of(file: str, root: str) -> str:
    """Returns the kind of a source file of the tree at `root`."""
    if ".pb." in file:
        return "generated"
    first = pathlib.Path(file).relative_to(root).parts[0]
    return first if first in ("tests", "bench") else "programs"


def command_of(entry: dict, options: list[str], output: list[str]) -> list[str]:
    """Returns the command of an entry with another output and further options."""
    words = shlex.split(entry["command"])
    at = words.index("-o")
    return words[:at] + words[at + 2:] + options + output


def compile_seconds(entry: dict, options: list[str]) -> float:
    """Returns the seconds of processor time that compiling an entry takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command_of(entry, options, ["-o", "/dev/null"]), cwd=entry["directory"],
                   check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def lines_by_header(entry: dict) -> collections.Counter:
    """Returns how many lines of each file are left after preprocessing an entry."""
    command = command_of(entry, ["-E"], ["-o", "-"])
    text = subprocess.run(command, cwd=entry["directory"], check=True, capture_output=True,
                          text=True, errors="replace").stdout
    lines: collections.Counter = collections.Counter()
    file = ""
    for line in text.splitlines():
        marker = LINE_MARKER.match(line)
        if marker:
            file = marker.group(1)
        elif line.strip():
            lines[file] += 1
    return lines


def package_of(header: str, root: str) -> str:
    """Returns what a header is a part of."""
    for part, name in PACKAGES:
        if part in header:
            return name
    return "own" if header.startswith(root) else "system"


def print_headers(sample: list[dict], root: str) -> None:
    """Prints where the lines of the sample come from."""
    total: collections.Counter = collections.Counter()
    users: collections.Counter = collections.Counter()
    for entry in sample:
        for header, lines in lines_by_header(entry).items():
            total[header] += lines
            users[header] += 1
    packages: collections.Counter = collections.Counter()
    for header, lines in total.items():
        packages[package_of(header, root)] += lines
    everything = sum(total.values())
    print(f"{everything / len(sample):,.0f} lines a file")
    for name, lines in packages.most_common():
        print(f"{100 * lines / everything:5.1f} %  {name}")
    print()
    for header, lines in total.most_common(25):
        print(f"{100 * lines / everything:5.1f} %  in {users[header]:3} files  {header}")


def phase_seconds(entry: dict) -> dict[str, float]:
    """Returns the processor time of each of PHASES, and of all of them, in compiling an entry."""
    command = command_of(entry, ["-ftime-report"], ["-o", "/dev/null"])
    report = subprocess.run(command, cwd=entry["directory"], check=True, capture_output=True,
                            text=True).stderr
    seconds = {}
    for phase in (*PHASES, "TOTAL"):
        # User time, then system time, each with its share unless it is the total.
        found = re.search(rf"^ *{re.escape(phase)} *: *([\d.]+)(?: *\([^)]*\))? *([\d.]+)",
                          report, re.M)
        seconds[phase] = float(found.group(1)) + float(found.group(2)) if found else 0.0
    return seconds


def print_phases(sample: list[dict], root: str) -> None:
    """Prints what share of its time each file of the sample spends on each of PHASES."""
    total: collections.Counter = collections.Counter()
    for entry in sample:
        seconds = phase_seconds(entry)
        total.update(seconds)
        all_seconds = max(seconds["TOTAL"], 0.01)  # of a small file it may be rounded to 0
        shares = "".join(f"{100 * seconds[phase] / all_seconds:5.0f} %" for phase in PHASES)
        print(f"{shares} of {seconds['TOTAL']:5.1f} s  {entry['file'].removeprefix(root + '/')}",
              flush=True)
    for phase in PHASES:
        print(f"{100 * total[phase] / max(total['TOTAL'], 0.01):5.1f} %  {phase}")


def print_times(entries: list[dict], sample: list[dict], options: list[str], root: str) -> None:
    """Prints what the kinds of files take."""
    print(f"{'kind':10} {'files':>6} {'sampled':>8} {'CPU s each':>11} {'all, CPU min':>13}")
    minutes = 0.0
    for kind in KINDS:
        count = sum(kind_of(entry["file"], root) == kind for entry in entries)
        taken = [compile_seconds(entry, options) for entry in sample
                 if kind_of(entry["file"], root) == kind]
        if not taken:
            continue
        mean = sum(taken) / len(taken)
        minutes += mean * count / 60
        print(f"{kind:10} {count:6} {len(taken):8} {mean:11.2f} {mean * count / 60:13.1f}",
              flush=True)
    print(f"together {minutes:.1f} CPU minutes, {minutes / 2:.1f} minutes on two quiet cores")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build_folder", type=pathlib.Path)
    parser.add_argument("--every", type=int, default=15, help="one file in so many (15)")
    parser.add_argument("--kind", choices=KINDS, help="only files of this kind")
    parser.add_argument("--options", default="", help="added to each command")
    parser.add_argument("--headers", action="store_true", help="where the lines come from")
    parser.add_argument("--phases", action="store_true", help="what the compiler does meanwhile")
    args = parser.parse_args()
    root = str(pathlib.Path(__file__).resolve().parent.parent)
    entries = json.loads((args.build_folder / "compile_commands.json").read_text())
    entries = [entry for entry in entries if not entry["file"].endswith(".cu")]
    entries.sort(key=lambda entry: entry["file"])
    if args.kind:
        entries = [entry for entry in entries if kind_of(entry["file"], root) == args.kind]
    sample = entries[args.every // 2::args.every]
    if args.headers:
        print_headers(sample, root)
    elif args.phases:
        print_phases(sample, root)
    else:
        print_times(entries, sample, shlex.split(args.options), root)


if __name__ == "__main__":
    main()
