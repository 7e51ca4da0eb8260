"""Adds up what evaluate.py wrote: documents of one measurement become one row."""

import collections
import math

from .measures import Sums
from .results import read_lines  # noqa: F401

ALL = ("index", "sums", "pages")


def mean(values) -> float:
    """Returns the mean, 0 of none."""
    values = list(values)
    return sum(values) / len(values) if values else 0.0


def error_of(values: list[float]) -> float | None:
    """Returns the standard error of the mean of documents; None for one document."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - 1) / len(values))


def followed(lines: list[dict]) -> list[dict]:
    """Returns a row for each table, model, length, system and budget of text that was followed."""
    groups = collections.defaultdict(list)
    for line in lines:
        if "bins" in line:
            table, model, tokens, tail, _, name, factor = line["key"]
            groups[table, model, tokens, tail, name, factor].append(line)
    rows = []
    for (table, model, tokens, tail, name, factor), parts in groups.items():
        documents = [_total(part["bins"]).measures() for part in parts]
        bins = [Sums() for _ in parts[0]["bins"]]
        for part in parts:
            bins = [a.add(Sums(**b)) for a, b in zip(bins, part["bins"])]
        whole = Sums()
        for part in bins:
            whole = whole.add(part)
        read = {kind: mean(part["read"].get(kind, 0.0) for part in parts) for kind in ALL}
        rows.append({
            "table": table, "model": model, "tokens": tokens, "tail": tail, "system": name,
            "factor": factor, "documents": len(parts), "read": read, "bytes": sum(read.values()),
            "build_s": mean(part["build_s"] for part in parts),
            "seconds": mean(part["seconds"] for part in parts), **whole.measures(),
            "change_error": error_of([d["mean_change"] for d in documents]),
            "ratio_error": error_of([d["perplexity_ratio"] for d in documents]),
            "by_position": [part.measures() for part in bins]})
    return rows


def _total(bins):
    whole = Sums()
    for part in bins:
        whole = whole.add(Sums(**part))
    return whole


def answered(lines: list[dict]) -> list[dict]:
    """Returns a row for each length, task, number of needles and system."""
    groups = collections.defaultdict(list)
    for line in lines:
        if line["key"][0] == "needle":
            _, task, length, _, needles, name, factor = line["key"]
            groups[length, task, needles, name, factor].append(line)
    return [{"length": length, "task": task, "needles": needles, "system": name,
             "factor": factor, "right": sum(p["right"] for p in parts),
             "questions": sum(p["questions"] for p in parts),
             "documents": len(parts),
             "bytes": mean(sum(p["read"].values()) for p in parts if "read" in p)}
            for (length, task, needles, name, factor), parts in groups.items()]


def of_kind(lines: list[dict], kind: str) -> list[dict]:
    """Returns lines whose key begins with `kind`, the key's parts named."""
    names = {"locality": ("model", "tokens", "steps"),
             "unseen": ("model", "tokens", "tail", "document"), "setup": ("name", "time"),
             "indexes": ("model", "tokens", "layer", "index")}
    return [{**dict(zip(names[kind], line["key"][1:])),
             **{k: v for k, v in line.items() if k != "key"}}
            for line in lines if line["key"][0] == kind]
