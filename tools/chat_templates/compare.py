#!/usr/bin/env python3
"""Compares the worker's Jinja interpreter with jinja2 over a folder of chat templates.

    tools/chat_templates/compare.py --render build/release/bin/render_template FOLDER

FOLDER holds *.jinja files and tokenizer_config.json files (in any depth). Each template renders each
conversation of conversations.py with both; jinja2 has the settings of transformers. A conversation
that jinja2 refuses must be refused, too. Needs the Python package jinja2.
"""
import argparse
import datetime
import json
import pathlib
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

from conversations import VARIABLES


class Generation(jinja2.ext.Extension):
    """{% generation %}...{% endgeneration %}: what is inside, unchanged."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def compile_template(source):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment.from_string(source)


def templates_in(folder):
    """Yields (name, source) of every template."""
    for path in sorted(folder.rglob("*.jinja")):
        yield str(path.relative_to(folder)), path.read_text(encoding="utf-8")
    for path in sorted(folder.rglob("tokenizer_config.json")):
        value = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        name = str(path.parent.relative_to(folder))
        if isinstance(value, str):
            yield name, value
        for item in value if isinstance(value, list) else []:
            yield f"{name}#{item['name']}", item["template"]


def render_all(render, source, cases):
    path = pathlib.Path("/tmp") / f"compare-{id(source)}.jinja"
    path.write_text(source, encoding="utf-8", newline="")
    try:
        lines = "".join(json.dumps(case) + "\n" for case in cases)
        result = subprocess.run([render, str(path)], input=lines, capture_output=True, text=True,
                                check=True)
    finally:
        path.unlink()
    return [json.loads(line) for line in result.stdout.splitlines()]


def reference(source, cases):
    try:
        template = compile_template(source)
    except Exception as error:  # jinja2's own, and Python's on what jinja2 makes
        return [{"error": str(error)}] * len(cases)
    results = []
    for case in cases:
        try:
            results.append({"text": template.render(**case)})
        except Exception as error:  # whatever Python raises, the template failed
            results.append({"error": f"{type(error).__name__}: {error}"})
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--render", required=True)
    parser.add_argument("--show", type=int, default=3, help="mismatches to show of a template")
    options = parser.parse_args()
    total = 0
    bad = 0
    for name, source in templates_in(options.folder):
        ours = render_all(options.render, source, VARIABLES)
        theirs = reference(source, VARIABLES)
        wrong = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a.get("text") != b.get("text")]
        texts = sum("text" in result for result in theirs)
        total += 1
        bad += bool(wrong)
        print(f"{name}: {len(theirs)} conversations, {texts} rendered, {len(wrong)} mismatches")
        for i in wrong[:options.show]:
            print(f"  case {i}\n    jinja2: {theirs[i]}\n    ours:   {ours[i]}")
    print(f"{total} templates, {bad} with mismatches")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
