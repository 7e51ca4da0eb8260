"""Writes the tables of docs/evaluation/coarse-scoring.md from what coarse_scoring.py measured."""

import collections
import pathlib

from tools.needle.report import replace_block, table

from . import coarse_words
from .coarse_forms import BASE, CLUSTERS, KV_HEADS, REST_US, cost_of, forms


def write(lines: list[dict], page: pathlib.Path) -> None:
    """Replaces the tables of a page."""
    replace_block(page, "errors", errors(lines))
    replace_block(page, "lengths", lengths(lines))
    if any(line["key"][0] == coarse_words.PROGRAM for line in lines):
        replace_block(page, "words", coarse_words.report(lines))
    replace_block(page, "costs", costs())


def _name(stem: str) -> tuple[str, str]:
    """Returns RoPE and text of a document's name."""
    _, *middle, text, _ = stem.split("-")
    return ("YaRN" if "yarn" in stem else "plain"), text


def _measured(lines: list[dict]) -> dict[tuple, dict[str, dict[str, float]]]:
    """Returns the means of each form over the layers in which it was measured, by document and
    length, and what it adds to the base's error in the same layers, in %."""
    layers: dict[tuple, dict] = collections.defaultdict(lambda: collections.defaultdict(dict))
    for line in lines:
        if line["key"][0] == "coarse":
            _, stem, tokens, _, layer, form = line["key"]
            layers[*_name(stem), tokens][form][layer] = line
    found: dict[tuple, dict] = collections.defaultdict(dict)
    for key, forms_of in layers.items():
        for form, own in forms_of.items():
            base = sum(forms_of[BASE][layer]["error"] for layer in own if layer in forms_of[BASE])
            if not base:
                continue
            means = {name: sum(one[name] for one in own.values()) / len(own)
                     for name in ("error", "mass", "retrieved", "estimated")
                     if all(name in one for one in own.values())}
            more = 100 * (sum(one["error"] for one in own.values()) / base - 1)
            found[key][form] = {**means, "more": more, "layers": len(own)}
    return found


def errors(lines: list[dict]) -> str:
    """Returns a table of every form on the longest documents, and all their means."""
    found = _measured(lines)
    chosen = _longest(found)
    if not chosen:
        return ""
    body = []
    for system in forms():
        rows = [found[key][system.name] for key in chosen if system.name in found[key]]
        if not rows:
            continue
        mean = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
        recalls = [f"{100 * mean[name]:.0f}" if name in mean else "-"
                   for name in ("retrieved", "estimated")]
        cost = cost_of(system)
        body.append([system.name, f"{mean['more']:+.1f}", *recalls, f"{100 * mean['mass']:.1f}",
                     "/".join(str(row["layers"]) for row in rows), f"{_bytes_each(cost):.0f}",
                     str(cost.passes), f"{cost.time_us:.0f}", f"{REST_US + cost.time_us:.0f}"])
    names = ", ".join(f"{text}, {tokens:,} tokens, RoPE {rope}, error of the first row "
                      f"{found[rope, text, tokens][BASE]['error']:.3f}"
                      for rope, text, tokens in chosen)
    return f"Documents: {names}.\n\n" + table(
        ["form", "more error, %", "recall, retrieved %", "recall, estimated %",
         "weight attended %", "layers", "bytes a cluster", "passes", "index, us", "layer, us"], body)


def _bytes_each(cost) -> float:
    return cost.bytes_read / (CLUSTERS * KV_HEADS)


def _longest(found) -> list[tuple]:
    longest: dict[tuple, int] = {}
    for rope, text, tokens in found:
        longest[rope, text] = max(longest.get((rope, text), 0), tokens)
    # The 8K of a text of its own is there for a quick look, and says little.
    return sorted((*key, tokens) for key, tokens in longest.items() if tokens > 30000)


def lengths(lines: list[dict]) -> str:
    """Returns what each form loses by length, one document a column's group."""
    found = _measured(lines)
    columns = sorted(found, key=lambda key: (key[0], key[1], key[2]))
    columns = [key for key in columns if sum(other[:2] == key[:2] for other in columns) > 1]
    if not columns:
        return ""
    body = [[BASE + ": error", *(f"{found[key][BASE]['error']:.3f}" for key in columns)]]
    for system in forms():
        if system.name != BASE and sum(system.name in found[key] for key in columns) > 1:
            body.append([system.name, *(f"{found[key][system.name]['more']:+.1f}"
                                        if system.name in found[key] else "-" for key in columns)])
    return table(["form: more error, %", *(f"{text}, {rope}, {tokens:,}"
                                            for rope, text, tokens in columns)], body)


def costs() -> str:
    """Returns how the time of each form is counted; forms that count alike share a row."""
    rows: dict[tuple, list[str]] = {}
    for system in forms():
        cost = cost_of(system)
        rows.setdefault((*cost.parts, f"{cost.time_us:.0f}"), []).append(system.name)
    body = [[names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else ""),
             ", ".join(parts), total] for (*parts, total), names in rows.items()]
    return table(["form", "us of each pass", "index, us"], body)
