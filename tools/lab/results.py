"""Measurements as JSON lines: each has a key and is made once, whatever was cut off."""

import json
import pathlib


class Results:
    """A file of JSON lines; each measurement has a key and is made once."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._done: set[str] = set()
        if path.is_file():
            content = path.read_text(encoding="utf-8")
            if content and not content.endswith("\n"):
                with path.open("a", encoding="utf-8") as file:
                    file.write("\n")  # behind a line that was cut off
            for line in content.splitlines():
                try:
                    self._done.add(json.dumps(json.loads(line)["key"]))
                except (ValueError, KeyError):
                    continue  # a line that was cut off is measured again

    def has(self, key: list) -> bool:
        """Whether a measurement is there."""
        return json.dumps(key) in self._done

    def add(self, key: list, content: dict) -> None:
        """Appends a measurement."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, **content}) + "\n")
        self._done.add(json.dumps(key))


def read_lines(paths: list[pathlib.Path]) -> list[dict]:
    """Reads JSON lines; the last line with a key counts. A line that was cut off is left out."""
    found: dict[str, dict] = {}
    for path in paths:
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
                found[json.dumps(line["key"])] = line
            except (ValueError, KeyError):
                continue
    return list(found.values())
