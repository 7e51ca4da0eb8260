"""Cuts excerpts at even distances out of the text that the code model has never seen.

    python3 -m tools.code.corpus CORPUS
    python3 -m tools.code.excerpts CORPUS --count 14 --characters 105000 > text

What kv_format_accuracy_bench reads: excerpts of a length, one after the other. Three and a half
characters a token are enough.
"""

import argparse
import json
import pathlib
import sys


def excerpts(text: str, count: int, characters: int) -> list[str]:
    """Returns `count` pieces that do not overlap.

    Raises ValueError, with what is possible, if the text is too short for them.
    """
    if count < 1 or characters < 1:
        raise ValueError("at least one excerpt of at least one character")
    if count * characters > len(text):
        raise ValueError(f"{count} excerpts of {characters} characters need {count * characters}; "
                         f"the held-out text has {len(text)}")
    step = len(text) // count
    return [text[i * step:i * step + characters] for i in range(count)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=pathlib.Path, help="folder that tools.code.corpus has written")
    parser.add_argument("--count", type=int, default=14)
    parser.add_argument("--characters", type=int, default=105_000)
    options = parser.parse_args()
    try:
        with open(options.corpus / "eval.jsonl", encoding="utf-8") as lines:
            text = "".join(json.loads(line)["text"] for line in lines)
        for excerpt in excerpts(text, options.count, options.characters):
            sys.stdout.write(excerpt)
    except (OSError, ValueError) as error:
        print(f"excerpts: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
