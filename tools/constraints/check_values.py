#!/usr/bin/env python3
"""Checks drawn values against their schemas with python3-jsonschema; exits with 1 if one is wrong. Numbers are decimal: in
binary 4490.7 is no multiple of 0.1.

    make_schemas.py | draw_values 30 | check_values.py
"""
import decimal
import decimal
import json
import sys

import jsonschema


def main():
    checked = wrong = refused = 0
    for line in sys.stdin:
        result = json.loads(line, parse_float=decimal.Decimal)
        if "refused" in result:
            refused += 1
            print(f"refused: {result['refused']}\n  {json.dumps(result['schema'], default=str)}")
            continue
        validator = jsonschema.Draft202012Validator(
            result["schema"], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        for text in result["values"]:
            checked += 1
            try:
                # 38.4 is a multiple of 0.1 as it is written, but not as a double.
                validator.validate(json.loads(text, parse_float=decimal.Decimal))
            except (ValueError, jsonschema.ValidationError) as error:
                wrong += 1
                print(f"wrong: {text}\n  {json.dumps(result['schema'], default=str)}\n  {str(error).splitlines()[0]}")
    print(f"{checked} values checked, {wrong} wrong; {refused} schemas refused")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
