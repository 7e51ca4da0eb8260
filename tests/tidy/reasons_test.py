#!/usr/bin/env python3
"""Every reason that a refusal may have is in docs/use/refusals.md, and no other."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("common", "text", "gpu_worker", "kv_store_service", "http_gateway")
# Functions one argument of which is a reason.
CALLS = re.compile(r"\b(?:WithReason|WithRetry|Full|Invalid)\(")
REASON = re.compile(r'"([A-Z]{2,}(?:_[A-Z0-9]+)*)"')
CONSTANT = re.compile(r'\bk\w*Reason(?:\[\])?\s*=\s*"([A-Z_]+)"')
ROW = re.compile(r"^\| ((?:`[A-Z0-9_]+`(?:, )?)+) \|", re.MULTILINE)


def arguments_of_calls(text):
    for call in CALLS.finditer(text):
        depth = 1
        for end in range(call.end(), len(text)):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            if depth == 0:
                yield text[call.end():end]
                break


def reasons_in_code():
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".cc", ".h"):
                continue
            text = path.read_text(encoding="utf-8")
            here = set(CONSTANT.findall(text))
            for arguments in arguments_of_calls(text):
                here.update(REASON.findall(arguments))
            for reason in here:
                found.setdefault(reason, path.relative_to(ROOT))
    return found


def main():
    code = reasons_in_code()
    if len(code) < 30:
        sys.exit(f"only {len(code)} reasons were found in the code: this test does not see them")
    text = (ROOT / "docs/use/refusals.md").read_text(encoding="utf-8")
    documented = {name for row in ROW.findall(text) for name in re.findall(r"[A-Z0-9_]{2,}", row)}
    wrong = [f"{reason} ({path}) is not in docs/use/refusals.md"
             for reason, path in sorted(code.items()) if reason not in documented]
    wrong += [f"docs/use/refusals.md has {reason}, which nothing is refused for"
              for reason in sorted(documented - set(code))]
    print("\n".join(wrong) or f"reasons: {len(code)}, all documented")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
