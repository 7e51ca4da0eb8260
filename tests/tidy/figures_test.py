#!/usr/bin/env python3
"""README.md's figures are those of the tables in docs/benchmarks.md and docs/benchmarks/.

usage: figures_test.py [--write]

Each cell below says which cells of which tables it is made of. With --write README.md gets what the tables say now.
Numbers that stand in README.md's prose about speed and accuracy must occur there or in docs/evaluation.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BEGIN, END = "<!-- figures of docs/benchmarks.md: begin -->", "<!-- figures of docs/benchmarks.md: end -->"
PROSE = {"## Figures", "## Accuracy"}  # sections whose prose is looked at, too

AIMS = "CUDA: what is aimed at, and what is"
REPORT = "GPU report"
EIGHT_BITS = "Keys and values in eight bits"
QUALITY = "Quality"


class Missing(Exception):
    """A table, a row or a column is not there, or not the only one."""


def plain(cell):
    return cell.replace("**", "").strip()


def tables(text, heading):
    """Yields the tables of a section as lists of rows, the header first. The section ends with the next heading."""
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", text, re.M | re.S)
    if not found:
        raise Missing(f"no heading '{heading}'")
    for block in re.findall(r"(?:^ *\|.*\n)+", found.group(1), re.M):
        rows = [[plain(cell) for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        yield [rows[0], *rows[2:]]


def column(header, name):
    """The index of a column; a pair (name, n) is the n-th of that name."""
    name, which = name if isinstance(name, tuple) else (name, 0)
    found = [index for index, cell in enumerate(header) if cell == name]
    return found[which] if which < len(found) else None


def figure(heading, wanted, where, pattern=r".*"):
    """A function of the benchmarks' text: one cell of the one row that has the given values."""
    def look(text):
        found = []
        for header, *rows in tables(text, heading):
            keys = {column(header, name): value for name, value in where.items()}
            index = column(header, wanted)
            if index is None or None in keys:
                continue
            found += [row[index] for row in rows if all(row[key] == value for key, value in keys.items())]
        if len(found) != 1:
            raise Missing(f"'{heading}' has {len(found)} rows with {where}")
        match = re.search(pattern, found[0])
        if not match:
            raise Missing(f"'{heading}': '{found[0]}' is not of the form {pattern}")
        return match.group(match.re.groups)
    return look


def decode(keys_and_values, weights, batch, retrieved="1.8 %", wanted="tokens/s"):
    return figure(EIGHT_BITS, wanted, {"keys and values": keys_and_values, "weights": weights, "batch": batch,
                                       "retrieved": retrieved})


def quality(keys_and_values, policy):
    where = {"keys and values, index": keys_and_values, "policy": policy}
    if policy == "wave, standard":
        where["retrieved"] = "1.8 %" if keys_and_values == "bf16, bf16" else "3.5 %"
    return [("{}", [figure(QUALITY, ("perplexity", 0), where)]), ("{}", [figure(QUALITY, ("perplexity", 1), where)]),
            ("{}", [figure(QUALITY, "needles, of 504", where)])]


# README's row -> its cells behind the first: a form, and the figures that go into it.
CELLS = {
    "attention of one layer, one context, bf16": [
        ("{} µs (PyTorch's fastest kernel)",
         [figure(REPORT, "PyTorch's best, us", {"batch": "1", "tokens": "122,880"})]),
        ("{} µs", [figure(AIMS, "measured", {
            "what is aimed at": "wave layer, 120K, 95 % hits, batch 1: of PyTorch's dense time"}, r"\(([\d.]+) us\)")])],
    "one context, bf16": [
        ("{} tokens/s", [figure(REPORT, "tokens/s", {"policy": "full", "context": "122,880", "batch": "1"})]),
        ("{} tokens/s", [decode("bf16*", "bf16", "1")])],
    "as many contexts as fit, KV in bf16": [
        ("{} tokens/s (3 contexts)", [decode("bf16*, policy full", "bf16", "3", "all")]),
        ("{} tokens/s (6 contexts); weights in fp8: {}",
         [decode("bf16, before", "bf16", "6"), decode("bf16", "fp8", "6")])],
    "as many contexts as fit, KV in int8": [
        ("{} tokens/s (7 contexts)", [decode("int8*, policy full", "bf16", "7", "all")]),
        ("{} tokens/s (10 contexts); weights in fp8: {}",
         [decode("int8", "bf16", "10"), decode("int8", "fp8", "10")])],
    "one context of 1M tokens, KV in int8, weights in fp8": [
        ("not measured", []),
        ("{} tokens/s", [figure(EIGHT_BITS, "tokens/s", {
            "policy": "wave", "tokens": "1,048,576", "slots for": "50 %"})])],
    "exact, bf16": quality("bf16", "full"),
    "wave, the default": quality("bf16, bf16", "wave, standard"),
    "wave, `--quality high`": quality("bf16, bf16", "wave, high"),
    "wave, KV in int8, the default": quality("int8, int8", "wave, standard"),
}


def pages(name):
    """The text of a page of docs/ and of those in the folder of its name."""
    paths = [ROOT / f"docs/{name}.md", *sorted((ROOT / f"docs/{name}").glob("*.md"))]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def expected(label, benchmarks):
    return " | ".join([label] + [form.format(*(look(benchmarks) for look in looks)) for form, looks in CELLS[label]])


def check_tables(readme, benchmarks):
    """Yields (line of README.md, what it should be, what is wrong)."""
    regions = re.findall(rf"{BEGIN}\n(.*?){END}", readme, re.S)
    rows = [line for region in regions for line in re.findall(r"^\|.*\|$", region, re.M)]
    labels = {line.strip("|").split("|")[0].strip(): line for line in rows}
    for label in CELLS:
        if label not in labels:
            yield "", "", f"README.md has no row '{label}'"
    for label, line in labels.items():
        if label not in CELLS:
            if label and not label.startswith("---"):
                yield "", "", f"README.md: the figures of the row '{label}' come from nowhere"
            continue
        try:
            wanted = f"| {expected(label, benchmarks)} |"
        except Missing as missing:
            yield "", "", f"README.md, row '{label}': docs/benchmarks.md, {missing}"
            continue
        if re.sub(r"\s+", " ", line) != re.sub(r"\s+", " ", wanted):
            yield line, wanted, f"README.md has {line}\n  docs/benchmarks.md says {wanted}"


def check_prose(readme, sources):
    """Numbers that measure something: those of other sections are of settings and versions."""
    for section in re.split(r"^(?=## )", readme, flags=re.M):
        if section.split("\n", 1)[0] not in PROSE:
            continue
        prose = re.sub(rf"{BEGIN}.*?{END}|\]\([^)]*\)|`[^`]*`", "", section, flags=re.S)
        for number in re.findall(r"(?<![\w.,])\d[\d,.]*(?:(?<=\d)[KM]\b)?", prose):
            number = number.rstrip(".,")
            if not re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d]|[.,]\d)", sources):
                yield f"README.md, prose: {number} is in neither docs/benchmarks.md nor docs/evaluation.md"


def main(arguments):
    readme, benchmarks = README.read_text(encoding="utf-8"), pages("benchmarks")
    wrong = list(check_tables(readme, benchmarks))
    if arguments == ["--write"]:
        for line, wanted, _ in wrong:
            if line:
                readme = readme.replace(line, wanted)
        README.write_text(readme, encoding="utf-8")
        wrong = list(check_tables(readme, benchmarks))
    sources = benchmarks + pages("evaluation")
    violations = [message for _, _, message in wrong] + list(check_prose(readme, sources))
    for violation in violations:
        print(violation)
    print(f"figures: {len(CELLS)} rows, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
