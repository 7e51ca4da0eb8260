#!/usr/bin/env python3
"""Nothing in the tree names a page, a heading or a picture that does not exist.

Two kinds of names are followed: the links of Markdown pages that stay inside the tree, with their anchors; and paths
`docs/...` in every other text (comments, alerts, units, tests), with theirs.
"""
import functools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
# Ends with a known suffix, so that a sentence's full stop does not belong to the path.
NAMED = re.compile(r"(?<![\w.-])(?<![\w.]/)docs/[\w./-]*?\.(?:md|svg|png|jsonl|json)\b(?:#[\w-]+)?")
# A decision may be named by its number alone.
DECISION = re.compile(r"(?<![\w.-])docs/decisions/(\d{4})\b")
# The name that a new decision gets.
EXAMPLES = {"docs/decisions/NNNN-title.md"}
FEWEST = {"links": 200, "names": 100}


def tracked_files():
    listing = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                             cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listing.splitlines() if (ROOT / name).is_file()]


def without_code(text):
    """The page without its blocks and spans of code, in as many lines."""
    blank = lambda match: "\n" * match.group(0).count("\n")
    text = re.sub(r"^( *)(```|~~~).*?^\1\2[`~]*$", blank, text, flags=re.M | re.S)
    return re.sub(r"(?<!`)(`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)\1(?!`)", blank, text, flags=re.S)


@functools.cache
def anchors(path):
    """The anchors of a page's headings, made as GitHub makes them."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2[`~]*$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    found, seen = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text)), {}
    for heading in re.findall(r"^#{1,6} +(.*?)(?: +#+)? *$", text, re.M):
        heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = seen[anchor] = seen.get(anchor, -1) + 1
        found.add(f"{anchor}-{count}" if count else anchor)
    return found


def problem(path, anchor):
    """What is wrong with a target, or None."""
    if not path.resolve().is_relative_to(ROOT):
        return "leads out of the tree"
    if not path.exists():
        return "does not exist"
    if anchor and path.suffix == ".md" and anchor not in anchors(path.resolve()):
        return f"has no heading #{anchor}"
    return None


def links(name, text):
    """Yields (line, target, path, anchor) of each link that stays inside the tree."""
    text = without_code(text)
    for match in LINK.finditer(text):
        target = match.group(1)
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / name).parent / file if file else ROOT / name
        yield text.count("\n", 0, match.start()) + 1, target, path, anchor


def named_paths(text):
    """The same of each path that a text names from the tree's root."""
    for match in NAMED.finditer(text):
        file, _, anchor = match.group(0).partition("#")
        if file not in EXAMPLES:
            yield text.count("\n", 0, match.start()) + 1, match.group(0), ROOT / file, anchor
    for match in DECISION.finditer(text):
        found = sorted((ROOT / "docs/decisions").glob(f"{match.group(1)}-*.md"))
        path = found[0] if found else ROOT / match.group(0)
        yield text.count("\n", 0, match.start()) + 1, match.group(0), path, ""


def main():
    violations, counts = [], {"links": 0, "names": 0}
    for name in tracked_files():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        kinds = {"names": named_paths(text)}
        if name.endswith(".md"):
            kinds["links"] = links(name, text)
        for kind, targets in kinds.items():
            for line, target, path, anchor in targets:
                counts[kind] += 1
                wrong = problem(path, anchor)
                violation = f"{name}:{line}: {target} {wrong}"
                if wrong and violation not in violations:  # a link may be a path from the root as well
                    violations.append(violation)
    for kind, fewest in FEWEST.items():
        if counts[kind] < fewest:
            violations.append(f"only {counts[kind]} {kind} were found: the search is broken")
    for violation in violations:
        print(violation)
    print(f"links: {counts['links']} links, {counts['names']} names, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
