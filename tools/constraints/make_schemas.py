#!/usr/bin/env python3
"""Writes JSON Schemas of its own making, one a line, that cover the keywords of docs/use/structured-output.md.

    make_schemas.py [--count N] [--seed N] > schemas.jsonl

The same seed makes the same schemas. Each accepts some value; where python3-jsonschema is installed, each is
checked to be a schema of draft 2020-12.
"""
import argparse
import json
import random
import sys

WORDS = ("name", "id", "city", "total", "tags", "kind", "note", "é", "a b", "x-ray", "größe", "q\"uote")
PATTERNS = ("^[a-z]{2,8}$", "^[A-Z][a-z]+( [A-Z][a-z]+)*$", r"^\d{3}-\d{4}$", "ab+", "^(red|green)$", "x$")
FORMATS = ("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "binary")


def string(rng):
    kind = rng.randrange(6)
    if kind == 0:
        return {"type": "string"}
    if kind == 1:
        low = rng.randrange(5)
        return {"type": "string", "minLength": low, "maxLength": low + rng.randrange(1, 40)}
    if kind == 2:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if kind == 3:
        return {"type": "string", "format": rng.choice(FORMATS)}
    if kind == 4:
        return {"type": "string", "enum": rng.sample(WORDS, rng.randrange(1, 5))}
    return {"type": "string", "pattern": "^[ab]*$", "minLength": 1, "maxLength": rng.randrange(2, 12)}


def number(rng):
    low = rng.randrange(-1000, 1000)
    kind = rng.randrange(7)
    if kind == 0:
        return {"type": "integer"}
    if kind == 1:
        return {"type": "number"}
    if kind == 2:
        return {"type": "integer", "minimum": low, "maximum": low + rng.randrange(1, 5000)}
    if kind == 3:
        return {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + rng.randrange(2, 300)}
    if kind == 4:
        return {"type": "number", "minimum": low / 8, "exclusiveMaximum": low / 8 + rng.randrange(1, 100) / 4}
    if kind == 5:
        step = rng.choice((2, 3, 5, 7, 10, 12))
        return {"type": "integer", "multipleOf": step, "minimum": low, "maximum": low + 20 * step}
    return {"type": "number", "multipleOf": rng.choice((0.1, 0.01)), "minimum": 0}


def array(rng, depth):
    schema = {"type": "array"}
    kind = rng.randrange(5)
    if kind == 0:
        schema["prefixItems"] = [value(rng, depth + 1) for _ in range(rng.randrange(1, 4))]
        schema["items"] = rng.choice((False, {"type": "integer"}))
    elif kind == 1:
        schema |= {"items": {"enum": rng.sample(WORDS, 4)}, "uniqueItems": True, "maxItems": 4}
    else:
        schema["items"] = value(rng, depth + 1)
        if kind > 2:
            schema["minItems"] = rng.randrange(3)
            schema["maxItems"] = schema["minItems"] + rng.randrange(1, 5)
    return schema


def object_of(rng, depth):
    names = rng.sample(WORDS, rng.randrange(0, 5))
    schema = {"type": "object", "properties": {name: value(rng, depth + 1) for name in names}}
    schema["required"] = [name for name in names if rng.random() < 0.6]
    kind = rng.randrange(5)
    if kind < 3:
        schema["additionalProperties"] = False
    elif kind == 3:
        schema["additionalProperties"] = value(rng, depth + 1)
    if names and rng.random() < 0.2:
        schema["minProperties"] = 1
        schema["maxProperties"] = len(names)
        schema["required"] = schema["required"][:1]
    if not names and rng.random() < 0.4:
        return rng.choice((
            {"type": "object", "patternProperties": {"^k[0-9]$": value(rng, depth + 1)}, "additionalProperties": False},
            {"type": "object", "propertyNames": {"enum": ["p", "q"]}, "additionalProperties": value(rng, depth + 1)}))
    return schema


def combined(rng, depth):
    kind = rng.randrange(5)
    if kind == 0:
        return {"anyOf": [value(rng, depth + 1), {"type": "null"}]}
    if kind == 1:
        branches = [object_of(rng, depth + 1) for _ in range(2)]
        for index, branch in enumerate(branches):
            if "maxProperties" in branch or "patternProperties" in branch or "propertyNames" in branch:
                branches[index] = branch = {"type": "object", "properties": {}, "required": []}
            branch["properties"] = {"which": {"const": index}} | branch["properties"]
            branch["required"] = ["which"] + branch["required"]
        return {"oneOf": branches}
    if kind == 2:
        return {"allOf": [{"type": "integer", "minimum": rng.randrange(50)}, {"maximum": 50 + rng.randrange(50)}]}
    if kind == 3:
        return {"type": ["string", "integer", "null"], "maxLength": 5, "minimum": 3}
    return {"const": rng.choice((None, True, 12, "é\n\"", [1, {"k": []}], {"a": {"b": 1.5}}))}


def value(rng, depth):
    kinds = [string, number, lambda r: {"type": "boolean"}, lambda r: {"type": "null"}, lambda r: True]
    if depth < 3:
        kinds += [lambda r: array(r, depth), lambda r: object_of(r, depth), lambda r: combined(r, depth)] * 2
    return rng.choice(kinds)(rng)


def recursive(rng):
    node = object_of(rng, 2)
    if "properties" not in node or "maxProperties" in node:
        node = {"type": "object", "properties": {}, "required": []}
    node["properties"]["children"] = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 3}
    return {"$ref": "#/$defs/node", "$defs": {"node": node}, "title": "a tree"}


def schemas(count, seed):
    rng = random.Random(seed)
    for index in range(count):
        yield recursive(rng) if index % 10 == 9 else rng.choice((object_of, array, combined))(rng, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        import jsonschema
        check = jsonschema.Draft202012Validator.check_schema
    except ImportError:
        check = None
        print("python3-jsonschema is not installed: the schemas are not checked", file=sys.stderr)
    for schema in schemas(options.count, options.seed):
        if check:
            check(schema)
        print(json.dumps(schema, ensure_ascii=False))


if __name__ == "__main__":
    main()
