#!/usr/bin/env python3
"""Runs the benchmarks of the CUDA backend and compares them with what it aims at, in one table.

usage: report.py [--bin-dir build/release/bench] [--results FILE] [--only SECTION,...] [--list]
                 [--write docs] [--render-only]

Each section runs its programs and puts what they print into --results (JSON), which is kept, so that
sections can be taken in several turns, on one machine or more. Then all sections that have results
are printed as Markdown; --write puts the table of aims between the marks of benchmarks.md in that
folder, and the tables of the sections between those of benchmarks/gpu-report.md. A section that
fails is said to have failed, and the program ends with 1.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import sections  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
BEGIN = "<!-- bench/gpu_report: from here"
END = "<!-- bench/gpu_report: to here -->"


def run_section(section, folder, results):
    """Runs a section's commands in order; returns whether all of them ended well."""
    runs = []
    for command in section.commands:
        program = [str(part).replace("{bin}", str(folder)).replace("{root}", str(ROOT))
                   for part in command]
        begin = time.monotonic()
        done = subprocess.run(program, capture_output=True, text=True, check=False,
                              env={**os.environ, **section.environment})
        runs.append({"command": sections.shown(command, section.environment), "code": done.returncode,
                     "seconds": round(time.monotonic() - begin, 1), "stdout": done.stdout})
        print(f"{section.name}: {runs[-1]['command']}: ended with {done.returncode} after "
              f"{runs[-1]['seconds']} s", file=sys.stderr)
        if done.returncode != 0:
            print(done.stderr[-2000:], file=sys.stderr)
            break
    results[section.name] = {"runs": runs, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    return all(run["code"] == 0 for run in runs)


def render(results):
    """The table of aims and the tables of all sections with results, as Markdown, and whether each
    section could be read."""
    aims, details, ok = [], [], True
    for section in sections.ALL:
        entry = results.get(section.name)
        if entry is None:
            continue
        try:
            if any(run["code"] != 0 for run in entry["runs"]):
                raise ValueError("a program failed")
            found = section.read([run["stdout"] for run in entry["runs"]])
        except (ValueError, KeyError, IndexError, StopIteration) as error:
            details.append(f"**{section.title}**: no figures ({error}).")
            ok = False
            continue
        aims += found.aims
        commands = "; ".join(f"`{run['command']}`" for run in entry["runs"])
        details.append(f"**{section.title}** ({found.where}, {entry['date']}): {commands}\n\n"
                       + "\n".join(found.table))
    lines = ["| what is aimed at | aim | measured | |", "|---|---:|---:|---|"]
    lines += [f"| {aim.what} | {aim.aim} | {aim.measured} | {'met' if aim.is_met else '**missed**'} |"
              for aim in aims]
    return "\n".join(lines) + "\n", "\n\n".join(details) + "\n", ok


def write_between_marks(path, text):
    content = path.read_text()
    begin = content.index("\n", content.index(BEGIN)) + 1
    end = content.index(END)
    path.write_text(content[:begin] + "\n" + text + "\n" + content[end:])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bench")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("gpu_results.json"))
    parser.add_argument("--only", default="", help="sections, separated by commas; default: all "
                        "that one GPU and 128 GiB of host memory can run")
    parser.add_argument("--list", action="store_true", help="name the sections and end")
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--render-only", action="store_true")
    options = parser.parse_args()
    by_name = {section.name: section for section in sections.ALL}
    if options.list:
        for section in sections.ALL:
            print(f"{section.name:16} {section.title}{'' if section.by_default else ' (if asked)'}")
        return 0
    chosen = options.only.split(",") if options.only else \
        [section.name for section in sections.ALL if section.by_default]
    unknown = [name for name in chosen if name not in by_name]
    if unknown:
        parser.error(f"no section {', '.join(unknown)}; --list names them")
    results = json.loads(options.results.read_text()) if options.results.exists() else {}
    ok = True
    for name in chosen if not options.render_only else []:
        ok = run_section(by_name[name], options.bin_dir.resolve(), results) and ok
        options.results.write_text(json.dumps(results, indent=1))
    aims, details, readable = render(results)
    print(f"{aims}\n{details}")
    if options.write:
        write_between_marks(options.write / "benchmarks.md", aims)
        write_between_marks(options.write / "benchmarks/gpu-report.md", details)
    return 0 if ok and readable else 1


if __name__ == "__main__":
    sys.exit(main())
