"""Questions of tasks that were made before they are asked, and kept in a file.

To fit a text into a prompt takes its text and its tokens several times over; made in the process that
asks a GPU meanwhile, questions hold its launches up for seconds each. A question follows from its key
alone, so that a kept one is the one that would be made.
"""

import dataclasses
import json
import pathlib
import time

from tools.tasks.asking import Question
from tools.tasks.sample import Sample

from .results import Results, read_lines


def make(path: pathlib.Path, asked: list[Question], chat) -> None:
    """Makes those questions that a file does not have."""
    results = Results(path)
    for one in asked:
        if not results.has(one.key):
            began = time.monotonic()
            results.add(one.key, {"sample": dataclasses.asdict(one.make(chat))})
            print(f"{one.name}, {one.key[1]}: {time.monotonic() - began:.1f} s", flush=True)


def with_kept(asked: list[Question], path: pathlib.Path | None) -> list[Question]:
    """Returns the questions, those that a file keeps made already."""
    kept = {}
    for line in read_lines([path]) if path else []:
        own = {**line["sample"], "answers": tuple(line["sample"]["answers"])}
        kept[json.dumps(line["key"])] = Sample(**own)

    def ready(one):
        sample = kept.get(json.dumps(one.key))
        return one if sample is None else dataclasses.replace(one, make=lambda _: sample)
    return [ready(one) for one in asked]
