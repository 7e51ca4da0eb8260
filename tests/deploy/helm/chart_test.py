#!/usr/bin/env python3
"""The chart of deploy/helm as it is written: values, their schema and the templates name the same things.

Needs no Helm: render_test.py is for what Helm makes of it. The schema is applied where the Python package jsonschema
is installed.
"""
import json
import pathlib
import re
import sys
import unittest

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy/helm/retroinfer"
try:
    import yaml
except ImportError:
    print("skipped: needs python3-yaml (scripts/bootstrap.sh)")
    sys.exit(SKIPPED)
try:
    import jsonschema
except ImportError:
    jsonschema = None

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
TEMPLATES = {path.name: path.read_text(encoding="utf-8") for path in sorted((CHART / "templates").iterdir())}
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
# What Helm adds by itself where a chart is part of another.
BY_HELM = {"global"}
# Parts of templates that are no YAML: settings files, and the check that gives nothing.
NO_YAML = re.compile(r"retroinfer\.(\w*[sS]ettings|check)")


def resolved(schema):
    """The schema that a reference names, or itself."""
    while "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def names_of(schema, before=""):
    """Paths of all values that the schema knows: `worker.cpu`. Maps of the user's own have no names inside."""
    for name, inner in resolved(schema).get("properties", {}).items():
        if before or name not in BY_HELM:
            yield from names_of(inner, f"{before}{name}.") if resolved(inner).get("properties") else [before + name]


def paths_of(values, free, before=""):
    """The same of values; `free` are those paths that end in a map of the user's own."""
    for name, value in values.items():
        path = before + name
        if isinstance(value, dict) and path not in free:
            yield from paths_of(value, free, path + ".")
        else:
            yield path


def merged(values, other):
    result = dict(values)
    for name, value in other.items():
        both = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = merged(result[name], value) if both else value
    return result


def parts(name, text):
    """The YAML of a template, an action replaced by a word: (what it is, text) of the file or of its definitions."""
    text = re.sub(r"\{\{-?/\*.*?\*/-?\}\}", "", text, flags=re.DOTALL)
    defined = re.split(r'^\{\{- define "([\w.]+)" -\}\}$', text, flags=re.MULTILINE)
    found = list(zip(defined[1::2], defined[2::2])) if name.endswith(".tpl") else [(name, text)]
    for what, one in found:
        if NO_YAML.fullmatch(what):
            continue
        lines = [line for line in one.splitlines() if not re.fullmatch(r"\s*(\{\{.*?\}\})+\s*", line)]
        yield what, re.sub(r"\{\{.*?\}\}", "word", "\n".join(lines))


class Chart(unittest.TestCase):
    def test_schema_and_values_name_the_same(self):
        known = set(names_of(SCHEMA))
        self.assertGreater(len(known), 50)
        self.assertEqual(set(paths_of(VALUES, known)), known)

    def test_templates_use_every_value_and_no_other(self):
        known = set(names_of(SCHEMA))
        used = {name for text in TEMPLATES.values() for name in re.findall(r"\.Values\.([\w.]+)", text)}
        for name in used:
            self.assertTrue(name in known or any(one.startswith(name + ".") for one in known), name)
        unused = {one for one in known if not any(one == name or one.startswith(name + ".") for name in used)}
        self.assertEqual(unused, set())

    def test_definitions_are_there_and_used(self):
        text = "\n".join(TEMPLATES.values())
        defined = re.findall(r'define "([\w.]+)"', text)
        self.assertEqual(len(defined), len(set(defined)))
        self.assertEqual(set(defined), set(re.findall(r'include "([\w.]+)"', text)))

    def test_templates_are_yaml(self):
        count = 0
        for name, text in TEMPLATES.items():
            if name == "NOTES.txt":
                continue
            for what, part in parts(name, text):
                with self.subTest(f"{name}: {what}"):
                    yaml.safe_load(part)
                    self.assertNotIn("\t", part)
                    count += 1
        self.assertGreater(count, 20)

    def test_every_object_of_the_schema_is_closed(self):
        def each(schema, where):
            if schema.get("properties") is not None:
                self.assertIs(schema.get("additionalProperties"), False, where)
                self.assertEqual(set(schema["required"]) | BY_HELM, set(schema["properties"]) | BY_HELM, where)
            for name, inner in {**schema.get("properties", {}), **schema.get("definitions", {})}.items():
                each(inner, f"{where}.{name}")
            if schema.get("type") in ("integer", "number"):
                self.assertIn("maximum", schema, where)
                self.assertTrue({"minimum", "exclusiveMinimum"} & set(schema), where)
        each(SCHEMA, "values")

    def test_values_and_examples_are_right(self):
        if jsonschema is None:
            self.skipTest("needs the Python package jsonschema (python3-jsonschema)")
        jsonschema.Draft7Validator.check_schema(SCHEMA)
        validator = jsonschema.Draft7Validator(SCHEMA)
        self.assertGreaterEqual(len(EXAMPLES), 2)
        for path in [CHART / "values.yaml", *EXAMPLES]:
            values = merged(VALUES, yaml.safe_load(path.read_text(encoding="utf-8")))
            self.assertEqual([error.message for error in validator.iter_errors(values)], [], path.name)

    def test_it_is_of_this_version(self):
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
        version = re.search(r"project\(RetroInferServer VERSION ([\d.]+)",
                            (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
        self.assertEqual(str(chart["appVersion"]), version)
        images = yaml.safe_load((ROOT / "deploy/kubernetes/base/kustomization.yaml").read_text(encoding="utf-8"))
        self.assertEqual({image["newTag"] for image in images["images"]}, {version})


if __name__ == "__main__":
    unittest.main()
