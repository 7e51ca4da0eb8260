#!/usr/bin/env python3
"""Every record of docs/decisions has a status, and the index (its README.md) has the title and status of each record.

The vocabulary of the status is explained in docs/decisions/README.md.
"""
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs/decisions"
LINK = r"\[\d{4}\]\([^)]*\)"
STATUS = re.compile(rf"accepted|accepted, extended by {LINK}(?:(?:, {LINK})* and {LINK})?|accepted in part: \S.*"
                    rf"|superseded by {LINK}")
ROW = re.compile(r"^\| \[(\d{4})\]\(([^)]*)\) \| (.*) \| (.*) \|$", re.MULTILINE)


def read_records():
    """Returns (file name -> (title, status) of each record, what is wrong)."""
    records, numbers, wrong = {}, {}, []
    for path in sorted(FOLDER.glob("*.md")):
        if path.name == "README.md":
            continue
        lines = path.read_text(encoding="utf-8").splitlines() + [""] * 3
        number = path.name[:4]
        title = re.fullmatch(r"# (\d{4}): (.+)", lines[0])
        if not re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", path.name) or not title or title[1] != number:
            wrong.append(f"{path.name}: needs a name NNNN-words.md and a first line '# NNNN: title' of the same number")
            continue
        if number in numbers:
            wrong.append(f"{path.name}: {numbers[number]} has the number, too")
        numbers[number] = path.name
        status = lines[2].removeprefix("Status: ")
        if lines[1] or status == lines[2] or not STATUS.fullmatch(status):
            wrong.append(f"{path.name}: the third line is no 'Status: ...' of the vocabulary: {lines[2]!r}")
        records[path.name] = (title[2], status)
    return records, wrong


def check_links(records):
    for name, (_, status) in records.items():
        for number, target in re.findall(r"\[(\d{4})\]\(([^)]*)\)", status):
            if target not in records or target == name or target[:4] != number:
                yield f"{name}: its status links {number} to {target}, which is no other record of that number"


def check_index(records, text):
    rows = {}
    for number, target, title, status in ROW.findall(text):
        if target in rows:
            yield f"README.md: two rows for {target}"
        if target not in records or target[:4] != number:
            yield f"README.md: {number} links to {target}, which is no record of that number"
        rows[target] = (title, status)
    for name, record in records.items():
        if name not in rows:
            yield f"{name}: not in the index of README.md"
            continue
        for what, in_record, in_index in zip(("title", "status"), record, rows[name]):
            if in_record != in_index:
                yield f"{name}: its {what} is {in_record!r}, in the index {in_index!r}"


def main():
    records, wrong = read_records()
    if len(records) < 40:
        sys.exit(f"only {len(records)} records were found: this test does not see them")
    wrong += check_links(records)
    wrong += check_index(records, (FOLDER / "README.md").read_text(encoding="utf-8"))
    print("\n".join(wrong) or f"decisions: {len(records)}, all with a status and in the index")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
