"""The tables of studies: forms of stored keys and values, parts of a better index, and so on."""

import collections

from tools.needle.report import size_name, table, with_interval

from . import ablation, collect, format_jobs, hard_keys, size_study
from .formats import FORMS, PLAIN, TWINS


def forms_on_text(rows: list[dict]) -> str:
    """Every form behind documents of the model as it was trained, by length."""
    parts = []
    found = _by_form(rows)
    for tokens in sorted({key[0] for key in found}):
        body = []
        for form in FORMS:
            cells = {(mode, asked): found.get((tokens, form.name, PLAIN.name, mode, asked))
                     for mode in ("made", "read") for asked in format_jobs.POLICIES}
            full = cells["made", "full"]
            if full is None:
                continue
            others = [cells["read", "full"], *(cells["made", p] for p in
                                               format_jobs.POLICIES[1:])]
            body.append([form.name, *_of(full, True), *(_short(row) for row in others),
                         str(full["documents"])])
        if not body:
            continue
        parts += [f"code, documents of {tokens:,} tokens, 512 tokens behind each:", table(
            ["form of keys and values", "perplexity / bf16's", "mean change", "KL",
             "top-1 agreement, %", "rounded after reading: change, KL", "ours: change, KL",
             "ours, 8-bit index: change, KL", "documents"], body)]
    return "\n\n".join(parts)


def forms_of_twins(rows: list[dict]) -> str:
    """Forms where keys are harder than the model was trained to have: mean change, KL."""
    found, parts = _by_form(rows), []
    for tokens in sorted({key[0] for key in found if key[2] != PLAIN.name}):
        here = {key[1:]: row for key, row in found.items() if key[0] == tokens}
        for policy in ("full", "ours, 8-bit index"):
            body = []
            for form in [*FORMS, *format_jobs.MORE]:
                cells = [here.get((form.name, twin.name, "read", policy)) for twin in TWINS]
                if any(cells):
                    body.append([form.name, *map(_short, cells)])
            documents = max(row["documents"] for key, row in here.items() if key[1] != PLAIN.name)
            parts += [f"{policy}, {tokens:,} tokens, {documents} documents:",
                      table(["form", *(twin.name for twin in TWINS)], body)]
    return "\n\n".join(parts)


def _by_form(rows):
    found = {}
    for row in rows:
        if row["table"] == "formats":
            form, twin, mode = row["system"].split(" | ")
            found[row["tokens"], form, twin, mode, row["factor"]] = row
    return found


def _of(row, with_errors):
    return [_pm(row["perplexity_ratio"], row["ratio_error"] if with_errors else None),
            _pm(row["mean_change"], row["change_error"] if with_errors else None),
            f"{row['kl']:.5f}", f"{100 * row['top1_agreement']:.1f}"]


def _pm(value, error):
    return f"{value:.4f}" + (f" ± {error:.4f}" if error is not None else "")


def _short(row):
    return "-" if row is None else f"{row['mean_change']:.4f}, {row['kl']:.4f}"


def hard(lines: list[dict]) -> str:
    """Attention over random keys that are hard, by form and case."""
    cells = {tuple(line["key"][1:]): line for line in lines if line["key"][0] == "hard keys"}
    parts = []
    for width in sorted({key[0] for key in cells}):
        body = [[form.name, *(f"{cells[width, form.name, case.name]['keys']:.3f}"
                              if (width, form.name, case.name) in cells else "-"
                              for case in hard_keys.CASES),
                 f"{cells[width, form.name, hard_keys.CASES[0].name]['values']:.3f}"
                 if (width, form.name, hard_keys.CASES[0].name) in cells else "-"]
                for form in FORMS]
        parts += [f"head_dim {width}:", table(
            ["form", *(f"keys: {case.name}" for case in hard_keys.CASES), "values"], body)]
    return "\n\n".join(parts)


def answers(lines: list[dict], kind: str, order: list[str], other: str) -> str:
    """Right answers of questions, by length, task and row."""
    counts = collections.defaultdict(lambda: [0, 0])
    for line in lines:
        if line["key"][0] == kind:
            _, task, length, _, needles, name, what = line["key"]
            cell = counts[length, (needles is not None, task, needles), name, what]
            cell[0] += line["right"]
            cell[1] += line["questions"]
    parts = []
    for length in sorted({key[0] for key in counts}):
        here = {key[1:]: cell for key, cell in counts.items() if key[0] == length}
        most = {column: max(cell[1] for key, cell in here.items() if key[0] == column)
                for column in {key[0] for key in here}}
        columns = sorted(most)
        body = []
        for name, what in sorted({key[1:] for key in here},
                                 key=lambda k: (order.index(k[0]) if k[0] in order else 99,
                                                str(k[1]))):
            found = [here.get((column, name, what)) for column in columns]
            if sum(cell[1] for cell in found if cell) < 0.9 * sum(most.values()):
                continue  # too few questions to stand beside the others
            right, asked = (sum(cell[i] for cell in found if cell) for i in (0, 1))
            label = [name, what] if other else [name]
            body.append([*map(str, label), *(_answered(*cell) if cell else "-" for cell in found),
                         _answered(right, asked)])
        heads = [task.replace("_", " ") + (f", {needles} needles" if needles else "")
                 for _, task, needles in columns]
        parts += [f"{size_name(length)}, right of asked [95 % interval]:",
                  table(["", *([other] if other else []), *heads, "all"], body)]
    return "\n\n".join(parts)


def _answered(right, asked):
    return with_interval(f"{right}/{asked}", right, asked)


def parts_of_index(lines: list[dict], rows: list[dict]) -> str:
    """Every variant at the bytes of ours, with the paired difference to ours."""
    by_document = collections.defaultdict(dict)
    extra = collections.defaultdict(list)
    for line in lines:
        if line["key"][0] == "ablation":
            _, _, tokens, _, number, name, times = line["key"]
            measured = collect._total(line["bins"]).measures()
            by_document[tokens, name, times][number] = measured["mean_change"]
            extra[tokens, name, times].append((line["retrieval"], line["fill"]))
    order = [(row.name, row.times) for row in ablation.rows()]
    parts = []
    for tokens in sorted({row["tokens"] for row in rows if row["table"] == "ablation"}):
        here = {(r["system"], r["factor"]): r for r in rows
                if r["table"] == "ablation" and r["tokens"] == tokens}
        base = by_document[tokens, ablation.OURS.name, 1.0]
        bytes_of_ours = here[ablation.OURS.name, 1.0]["bytes"]
        body = []
        for name, times in sorted(here, key=lambda k: order.index(k) if k in order else 999):
            row, own = here[name, times], by_document[tokens, name, times]
            paired = [own[n] / base[n] - 1 for n in own if n in base]
            error = collect.error_of(paired)
            budget, fill = map(collect.mean, zip(*extra[tokens, name, times]))
            body.append([name, f"{100 * row['bytes'] / bytes_of_ours:.0f}",
                         *(f"{row['read'][kind] / 1e6:.1f}" for kind in collect.ALL),
                         f"{budget:.2f}", f"{100 * fill:.0f}",
                         _pm(row["perplexity_ratio"], row["ratio_error"]),
                         f"{row['mean_change']:.4f}", f"{100 * collect.mean(paired):+.0f}"
                         + (f" ± {100 * error:.0f}" if error is not None else ""),
                         f"{row['kl']:.5f}", str(row["documents"])])
        parts += [f"code, documents of {tokens:,} tokens, 512 tokens behind each:", table(
            ["index", "% of ours' bytes", "index MB", "sums MB", "pages MB", "times ours' budget",
             "pages are full, %", "perplexity / full", "mean change",
             "of ours' on the same documents, %", "KL", "documents"], body)]
    return "\n\n".join(parts)


def caches(lines: list[dict]) -> str:
    """Policies of a block cache on recorded retrievals, and what guessed queries would fetch."""
    kept, guessed = [], []
    for line in lines:
        if line["key"][0] == "caching":
            name = line["key"][1].removeprefix("trace_").replace("_", ", ")
            for policy, shares in line["policies"].items():
                kept.append([name, policy, *(f"{100 * one['hits']:.1f}"
                                             for one in shares.values())])
            for one in line["prefetch"]:
                guessed.append([name, str(one["layer"]), f"{100 * one['of_all']:.0f}",
                                f"{100 * one['of_new']:.0f}", f"{one['fetched_for_one']:.1f}"])
    if not kept:
        return ""
    return "\n\n".join([
        "Pages that are there when they are wanted, in per cent, by the cache's share of all pages:",
        table(["trace", "policy", "5 %", "10 %", "20 %", "40 %"], kept),
        "Clusters of a layer guessed from the input of the layer before:",
        table(["trace", "layer", "of the wanted pages, %", "of those that the last step did not "
               "want, %", "pages fetched for one of these"], guessed)])


def blocks(lines: list[dict], rows: list[dict]) -> dict:
    """Returns what makes each block of evaluation.md that is this module's."""
    forms = [form.name for form in FORMS]
    return {
        "forms": lambda: forms_on_text(rows), "twins": lambda: forms_of_twins(rows),
        "hard-keys": lambda: hard(lines),
        "forms-needles": lambda: answers(lines, "formats needle", forms, "policy"),
        "parts": lambda: parts_of_index(lines, rows), "caches": lambda: caches(lines),
        "size": lambda: size_study.by_model(lines),
        "parts-needles": lambda: answers(lines, "ablation needle",
                                         ["full", *(row.name for row in ablation.rows())],
                                         "budget")}
