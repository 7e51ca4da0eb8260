#!/usr/bin/env python3
"""Holds the rules of the house that a formatter cannot: run from anywhere, prints each violation.

Rules: include direction, namespaces, CUDA headers only in cuda/ folders, a test for every .cc, file and function
lengths, #pragma once, unfinished work, formatting (where the reference clang-format is installed).
"""
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE_DIRS = ("common", "text", "gpu_worker", "kv_store_service", "http_gateway", "client")
CLANG_FORMAT_MAJOR = "14"

MAX_FILE_LINES = 500
MAX_TEST_FILE_LINES = 800
MAX_FUNCTION_LINES = 70

# Part of the tree -> parts that it may include, besides itself and proto/.
PARTS = {
    "common": set(),
    "text": {"common"},
    "gpu_worker": {"common", "text"},
    "kv_store_service": {"common"},
    "http_gateway": {"common"},
    "client": {"common", "text", "gpu_worker"},  # `check` plans a worker's memory without a worker
}
# The same of folders.
TEXT_LAYERS = {
    "jinja": set(),
    "tokenizer": {"jinja"},
    "constraint": {"tokenizer"},
}
STORE_LAYERS = {
    "arena": set(),
    "mapping": {"arena"},
    "admission": {"mapping"},
    "data_plane": {"admission", "mapping"},
    "directory": {"arena", "mapping"},
    "persistence": set(),
    "lease": {"arena", "data_plane", "directory"},
    "tier": {"arena", "directory", "persistence"},
    "store": {"arena", "data_plane", "directory", "lease", "mapping", "tier"},
    "contexts": {"mapping", "persistence", "store"},
    "server": {"contexts", "persistence", "store"},
}
CLIENT_LAYERS = {
    "command": set(),
    "generate": {"command"},
    "cache": {"command"},
    "inspect": {"command"},
    "serve": {"command", "inspect"},
    "bench": {"command", "generate", "serve"},
    "tune": {"command", "generate", "serve"},
}
# Folder of gpu_worker -> folders of gpu_worker that it may include (besides itself).
WORKER_LAYERS = {
    "device": set(),
    "ops": {"device"},
    "model": {"device", "ops"},
    "wave_index": {"device", "ops"},
    "wave_buffer": {"device", "ops"},
    "store_link": set(),
    "kv": {"device", "ops", "wave_index", "wave_buffer"},
    "attention": {"device", "ops", "wave_index", "wave_buffer", "kv"},
    "measuring": {"device", "ops", "kv", "attention"},
    "scheduler": set(),
    "executor": {"device", "ops", "model", "wave_index", "wave_buffer", "kv", "attention", "scheduler"},
    "engine": {"device", "ops", "model", "wave_index", "wave_buffer", "kv", "attention", "scheduler",
               "executor", "store_link"},
    "ranks": {"device", "wave_buffer", "kv", "executor", "engine"},
    "assembly": {"device", "ops", "model", "wave_index", "wave_buffer", "kv", "attention", "measuring",
                 "scheduler", "executor", "engine", "ranks", "store_link"},
    "server": {"device", "ops", "model", "wave_index", "wave_buffer", "kv", "attention", "scheduler",
               "executor", "engine", "ranks", "store_link", "assembly"},
}
LAYERS = {"text": TEXT_LAYERS, "gpu_worker": WORKER_LAYERS, "kv_store_service": STORE_LAYERS,
          "client": CLIENT_LAYERS}
# Beginning of a path -> namespaces that its files open; the first line that fits counts. Tests have the
# namespace of what they test, or retroinfer::test_support. docs/contribute/development.md has the rule in words.
NAMESPACES = (
    ("common/kv/", ("retroinfer",)),
    ("common/shm/data_plane", ("retroinfer",)),
    ("common/shm/descriptor_protocol", ("retroinfer",)),
    ("common/shm/spsc_ring", ("retroinfer",)),
    ("common/", ("retroinfer::common",)),
    ("text/jinja/", ("retroinfer::jinja",)),
    ("text/tokenizer/", ("retroinfer",)),
    ("text/constraint/", ("retroinfer::constraint",)),
    ("gpu_worker/", ("retroinfer",)),
    ("kv_store_service/", ("retroinfer::kvstore",)),
    ("http_gateway/", ("retroinfer::gateway",)),
    ("client/", ("retroinfer::client",)),
    ("bench/", ("retroinfer::bench", "retroinfer", "retroinfer::kvstore")),
    ("tools/chat_templates/", ("retroinfer::jinja",)),
    ("tools/constraints/", ("retroinfer::constraint",)),
    ("chaos/", ("retroinfer::kvstore",)),
    ("fuzz/", ("retroinfer::fuzz",)),
    ("support/faulty_kv_store_service", ("retroinfer::kvstore",)),
    ("support/storage/", ("retroinfer::kvstore",)),
    ("support/", ("retroinfer",)),
)
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|\bnot implemented yet\b|\bfor now\b")


def tracked_files():
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listing.splitlines() if (ROOT / name).is_file()]


def includes(text):
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
        if match:
            yield number, match.group(1)


def check_includes(name, text):
    parts = name.split("/")
    for number, target in includes(text):
        if re.match(r"(cuda|cublas|cudnn|cub/|nccl)", target) and "cuda" not in parts:
            yield f"{name}:{number}: CUDA header outside a cuda/ folder: {target}"
        top = target.split("/")[0]
        if parts[0] in PARTS and top in PARTS and top != parts[0] and top not in PARTS[parts[0]]:
            yield f"{name}:{number}: {parts[0]}/ must not include {target}"
        if parts[0] == top and top in LAYERS and len(parts) > 2:
            folder, wanted = parts[1], target.split("/")[1]
            if wanted != folder and wanted not in LAYERS[top].get(folder, set()):
                yield f"{name}:{number}: {folder}/ must not include {target}"


def allowed_namespaces(name):
    path, namespaces = name, ()
    if name.startswith("tests/"):
        path, namespaces = name[len("tests/"):], ("retroinfer::test_support",)
    for beginning, own in NAMESPACES:
        if path.startswith(beginning):
            namespaces += own
            break
    parts = path.split("/")
    if parts[0] == "gpu_worker":  # what only a backend has
        namespaces += tuple(f"retroinfer::{part}" for part in ("cpu", "cuda") if part in parts)
    return namespaces


def check_namespace(name, text):
    allowed = allowed_namespaces(name)
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"namespace (retroinfer[a-z_:]*) \{", line)
        # A part of a namespace may have one of its own; retroinfer itself is no room but the worker's.
        if match and not any(match.group(1) == namespace or (
                namespace != "retroinfer" and match.group(1).startswith(namespace + "::"))
                for namespace in allowed):
            yield f"{name}:{number}: namespace {match.group(1)} in a file of {' or '.join(allowed)}"


def check_has_test(name, names):
    parts = name.split("/")
    if parts[0] not in SOURCE_DIRS or not name.endswith(".cc") or parts[-1] == "main.cc":
        return
    stem = parts[-1][:-3]
    # What only serves an operation's implementation is tested by the operation's contract suite.
    contracts = {path.parent.name for path in ROOT.glob(f"gpu_worker/ops/*/{stem}.h")}
    if parts[:2] == ["gpu_worker", "ops"] and not contracts - {"cpu", "cuda"}:
        return
    inner = [part for part in parts[:-1] if part not in ("cpu", "cuda")]
    candidates = {"/".join(["tests", *inner, f"{stem}_test.cc"]),
                  "/".join(["tests", *parts[:-1], f"{stem}_test.cc"])}
    if not candidates & names:
        yield f"{name}: no test at {' or '.join(sorted(candidates))}"


def function_lengths(text):
    """Yields (first line, lines) of each function body: a '{' ending a line at namespace or class
    level whose head has a parenthesis, up to the brace that closes it."""
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if not re.search(r"\)[^;{}=]*\{\s*$", line) or re.match(r"\s*(if|for|while|switch|else|do|\})",
                                                               line):
            continue
        indent = len(line) - len(line.lstrip())
        if indent > 2:
            continue
        closing = " " * indent + "}"
        for end in range(index + 1, len(lines)):
            if lines[end].startswith(closing):
                yield index + 1, end - index + 1
                break


def check_lengths(name, text):
    limit = MAX_TEST_FILE_LINES if name.startswith(("tests/", "bench/")) else MAX_FILE_LINES
    count = text.count("\n")
    if count > limit:
        yield f"{name}: {count} lines, at most {limit}"
    for line, length in function_lengths(text):
        if length > MAX_FUNCTION_LINES:
            yield f"{name}:{line}: function of {length} lines, at most {MAX_FUNCTION_LINES}"


def check_text(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield f"{name}:{number}: unfinished by its own words: {line.strip()}"


# A file of the tree that a comment names by its folder.
NAMED_FILE = re.compile(r"(?<![\w/.:<-])((?:[a-z][a-z0-9_]*/)+[a-z0-9_]+\.(?:h|cc|cu|cuh|md|proto))\b")


def check_named_files(name, text):
    """A comment may name a file from the tree's root, from gpu_worker/, docs/ or proto/retroinfer/,
    or from its own folder or one around it."""
    around = [str(folder) for folder in pathlib.PurePosixPath(name).parents]
    for number, line in enumerate(text.splitlines(), 1):
        _, is_comment, comment = line.partition("//")
        if not is_comment or line.lstrip().startswith("#"):
            continue
        for path in NAMED_FILE.findall(comment):
            if not any((ROOT / folder / path).is_file()
                       for folder in (*around, "gpu_worker", "docs", "proto", "proto/retroinfer")):
                yield f"{name}:{number}: names a file that is not there: {path}"


COMMENT = re.compile(r"\s*//( *)(\S.*)")


def check_cut_comments(name, text):
    """A formatter that cuts an indented comment's line leaves a few words behind, less indented than what follows."""
    lines = text.splitlines()
    for number in range(1, len(lines) - 1):
        before, left, after = (COMMENT.fullmatch(line) for line in lines[number - 1:number + 2])
        if (before and left and after and len(lines[number - 1]) >= 80 and len(left[2].split()) <= 4
                and not re.search(r"[.:;,!?)\"]$", left[2]) and len(after[1]) >= len(left[1]) + 2):
            yield f"{name}:{number + 1}: a line of a comment that a formatter has cut"


def check_format(names):
    program = shutil.which("clang-format")
    if program is None:
        print("tidy: clang-format is not installed, formatting not checked")
        return
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    if f"version {CLANG_FORMAT_MAJOR}." not in version:
        print(f"tidy: formatting is checked with clang-format {CLANG_FORMAT_MAJOR} only")
        return
    result = subprocess.run([program, "--dry-run", "-Werror", *names], cwd=ROOT,
                            capture_output=True, text=True)
    bad = sorted({line.split(":")[0] for line in result.stderr.splitlines() if "error:" in line})
    for name in bad:
        yield f"{name}: not formatted"


def main():
    names = tracked_files()
    name_set = set(names)
    code = [name for name in names if name.endswith((".h", ".cc", ".cu", ".cuh"))]
    violations = []
    for name in code:
        text = (ROOT / name).read_text(encoding="utf-8")
        violations += check_includes(name, text)
        violations += check_namespace(name, text)
        violations += check_has_test(name, name_set)
        violations += check_lengths(name, text)
        violations += check_named_files(name, text)
        violations += check_cut_comments(name, text)
        # Highway reads an -inl.h once for each instruction set.
        if name.endswith(".h") and not name.endswith("-inl.h") and "#pragma once" not in text:
            violations.append(f"{name}: no #pragma once")
    for name in names:
        if name.endswith((".h", ".cc", ".cu", ".cuh", ".sh", ".md", ".proto")) or (
                name.endswith(".py") and not name.endswith("tidy.py")):
            violations += check_text(name, (ROOT / name).read_text(encoding="utf-8"))
    violations += check_format(code)
    for violation in violations:
        print(violation)
    print(f"tidy: {len(code)} source files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
