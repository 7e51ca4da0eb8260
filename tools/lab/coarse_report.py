"""Writes the tables of docs/evaluation/coarse-scoring.md from what coarse_scoring.py measured."""

import collections
import pathlib

from tools.needle.report import replace_block, table

from .coarse_forms import BASE, CLUSTERS, KV_HEADS, REST_US, cost_of, forms
from .measures import Sums


def write(lines: list[dict], page: pathlib.Path) -> None:
    """Replaces the tables of a page."""
    replace_block(page, "errors", errors(lines))
    replace_block(page, "lengths", lengths(lines))
    replace_block(page, "words", words(lines))
    replace_block(page, "costs", costs())


def _name(stem: str) -> tuple[str, str]:
    """Returns RoPE and text of a document's name."""
    _, *middle, text, _ = stem.split("-")
    return ("YaRN" if "yarn" in stem else "plain"), text


def _measured(lines: list[dict]) -> dict[tuple, dict[str, dict[str, float]]]:
    """Returns the means of each form, by document and length."""
    found: dict[tuple, dict] = collections.defaultdict(dict)
    for line in lines:
        if line["key"][0] == "coarse":
            _, stem, tokens, _, _, form = line["key"]
            found[*_name(stem), tokens][form] = _means(line["layers"])
    return found


def _means(layers: list[dict]) -> dict[str, float]:
    sums, rows = collections.Counter(), sum(one["rows"] for one in layers)
    for one in layers:
        for name, value in one.items():
            sums[name] += value * one["rows"]
    return {name: value / rows for name, value in sums.items() if name not in ("layer", "rows")}


def errors(lines: list[dict]) -> str:
    """Returns a table of every form on the longest documents, and all their means."""
    found = _measured(lines)
    chosen = _longest(found)
    if not chosen:
        return ""
    body = []
    for system in forms():
        rows = [found[key] for key in chosen if system.name in found[key]]
        if not rows:
            continue
        mean = {name: sum(row[system.name].get(name, 0.0) for row in rows) / len(rows)
                for name in ("error", "retrieved", "estimated", "mass")}
        worse = [_more(row, system.name) for row in rows]
        known = "retrieved" in rows[0][system.name] and rows[0][system.name]["retrieved"] > 0
        cost = cost_of(system)
        body.append([system.name, f"{mean['error']:.4f}", f"{sum(worse) / len(worse):+.1f}",
                     " / ".join(f"{one:+.0f}" for one in worse),
                     *([f"{100 * mean['retrieved']:.1f}", f"{100 * mean['estimated']:.1f}"]
                       if known else ["-", "-"]),
                     f"{100 * mean['mass']:.1f}", f"{_bytes_each(cost):.0f}", str(cost.passes),
                     f"{cost.time_us:.0f}", f"{REST_US + cost.time_us:.0f}"])
    names = ", ".join(f"{text} {tokens:,} ({rope})" for rope, text, tokens in chosen)
    return f"Documents: {names}.\n\n" + table(
        ["form", "error", "more, %", "by document, %", "recall, retrieved %", "recall, estimated %",
         "weight attended %", "bytes a cluster", "passes", "index, us", "layer, us"], body)


def _bytes_each(cost) -> float:
    return cost.bytes_read / (CLUSTERS * KV_HEADS)


def _more(row, name) -> float:
    return 100 * (row[name]["error"] / row[BASE]["error"] - 1)


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
    body = [[BASE + ": error", *(f"{found[key][BASE]['error']:.4f}" for key in columns)]]
    for system in forms():
        if system.name != BASE and any(system.name in found[key] for key in columns):
            body.append([system.name, *(f"{_more(found[key], system.name):+.1f}"
                                        if system.name in found[key] else "-" for key in columns)])
    return table(["form: more error, %", *(f"{text}, {rope}, {tokens:,}"
                                            for rope, text, tokens in columns)], body)


def words(lines: list[dict]) -> str:
    """Returns what forms do to the text behind a document."""
    found: dict[str, dict] = collections.defaultdict(dict)
    for line in lines:
        if line["key"][0] == "coarse words":
            _, stem, tokens, _, form = line["key"]
            found[form][f"{_name(stem)[1]}, {tokens:,}"] = Sums(**line["sums"])
    columns = sorted({column for row in found.values() for column in row})
    body = []
    for system in forms():
        if system.name not in found:
            continue
        cells = []
        for column in columns:
            own = found[system.name].get(column)
            base = found[BASE].get(column)
            if own is None or base is None:
                cells.append("-")
                continue
            one, other = own.measures(), base.measures()
            cells.append(f"{one['perplexity_ratio']:.3f} / {one['mean_change']:.4f} "
                         f"({100 * (one['mean_change'] / other['mean_change'] - 1):+.0f} %) / "
                         f"{100 * one['top1_agreement']:.1f}")
        body.append([system.name, *cells])
    return table(["form", *columns], body) if body else ""


def costs() -> str:
    """Returns how the time of each form is counted; forms that count alike share a row."""
    rows: dict[tuple, list[str]] = {}
    for system in forms():
        cost = cost_of(system)
        rows.setdefault((*cost.parts, f"{cost.time_us:.0f}"), []).append(system.name)
    body = [[names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else ""),
             ", ".join(parts), total] for (*parts, total), names in rows.items()]
    return table(["form", "us of each pass", "index, us"], body)
