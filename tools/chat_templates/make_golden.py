#!/usr/bin/env python3
"""Writes tests/golden/jinja.json: what jinja2 makes of the templates of golden_cases.py.

Run as tools/chat_templates/make_golden.py; needs the Python package jinja2.
"""
import json
import pathlib

from compare import reference
from golden_cases import CASES, VARIABLES


def main():
    sections = {}
    for section, sources in CASES.items():
        sections[section] = [{"source": source, **reference(source, [VARIABLES])[0]}
                             for source in dict.fromkeys(sources)]
    path = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/jinja.json"
    text = json.dumps({"variables": VARIABLES, "sections": sections}, ensure_ascii=True, indent=0)
    path.write_text(text + "\n", encoding="utf-8")
    print(f"{sum(len(cases) for cases in sections.values())} cases")


if __name__ == "__main__":
    main()
