#!/usr/bin/env python3
"""Holds the table "To add something" of docs/architecture.md true.

Each row says which files know the members of one kind (the model families, the operations ...). For every member
that there is, the files that mention it are searched: all of them must be in the row, so that whoever follows the
row has edited all there is to edit; and each file of the row must know at least one member.

Paths of a row are those between backquotes in its second column. `a.{h,cc}` are two files, `*` is any name, and
words in capitals stand for the member: `ops/ROLE/OP.h`. What only uses a member, and tests, count for nothing.
"""
import fnmatch
import itertools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADING = "## To add something"
SEARCHED = ("common/*", "text/constraint/*", "gpu_worker/*", "kv_store_service/*", "http_gateway/*", "client/*", "proto/*", "deploy/*",
            "tools/*.py", "docs/operate/metrics.md", "docs/understand/shm_layout.md", "docs/use/checkpoints.md", "docs/use/serving.md",
            "docs/use/structured-output.md", "README.md")


def model_families(texts):
    """A family's constant, its architecture, its tensors' names, and the switch of what it alone computes."""
    constants = re.search(r"enum class ModelFamily[^{]*\{([^}]*)\}", texts["gpu_worker/model/model_families.h"]).group(1)
    own = {"Qwen2": {"qkv_bias"}, "Qwen3": {"qk_norm"}}
    for family in re.findall(r"k(\w+) =", constants):
        table = texts["gpu_worker/model/model_families.cc"]
        architecture, names = re.search(rf'"(\w+)", "\w+", ModelFamily::k{family}, &(\w+)', table).groups()
        yield family, {f"ModelFamily::k{family}", architecture, names} | own.get(family, set()), {}


def operations(texts):
    """Each has an implementation for the CPU. What declares, builds or calls it names its header or source."""
    for source in texts:
        match = re.fullmatch(r"gpu_worker/ops/(\w+)/cpu/(\w+)\.h", source)
        if match and f"gpu_worker/ops/{match[1]}/{match[2]}.h" in texts:
            role, name = match.groups()
            files = {f"{role}/{folder}{name}{suffix}" for folder in ("", "cpu/", "cuda/")
                     for suffix in (".h", "_check.h", ".cc", ".cu")}
            yield name, files, {"ROLE": role, "OP": name}


def metrics(texts):
    for name in re.findall(r"^\| `retroinfer_(\w+)`", texts["docs/operate/metrics.md"], re.M):
        yield name, {f"retroinfer_{name}", f'"{name}"'}, {}


def policies(texts):
    """Wave and full are named where a request without a policy gets one, too, so the others are looked at."""
    names = re.search(r"kPolicyNames\[\] = \{([^}]*)\}", texts["gpu_worker/kv/attention_settings.h"]).group(1)
    for name in set(re.findall(r'"(\w+)"', names)) - {"full", "wave"}:
        constant = "".join(part.capitalize() for part in name.split("_"))
        own = re.compile(rf"(set_|has_)?{name}_\w+|k(Min|Max)?{constant}\w*|ATTENTION_POLICY_{name.upper()}")
        yield name, {word for text in texts.values() for word in re.findall(r"\w+", text)
                     if name in word.lower() and own.fullmatch(word)}, {}


def formats(texts):
    """f32 and bf16 are named where a backend has a default, too, so the others are looked at."""
    names = re.search(r"kKvFormats\[\] = \{([^}]*)\}", texts["common/kv/kv_format.h"]).group(1)
    for name in set(re.findall(r"k(\w+)Kv", names)) - {"F32", "Bf16"}:
        yield name, {f"k{name}Kv", f"KvFormatId::k{name}"}, {}


def layer_kinds(texts):
    """The kind that is not indexed: by what the map, the geometry and the model's configuration call it."""
    if "is_window" in texts["gpu_worker/kv/layer_map.h"]:
        yield "window", {"LayerMap", "WindowLayers", "has_window_layers", "num_window_layers", "layer_windows", "window_of"}, {}


def weight_forms(texts):
    """Of codes: numbers are everywhere. Its constant, the class that multiplies it, and the forms in which it is stored."""
    table = texts["gpu_worker/ops/model/weight_form.h"]
    forms = re.findall(r"inline constexpr WeightForm k(\w+)Weights = \{\s*\.id = WeightFormId::(\w+),([^;]*)\};", table)
    stored = texts["gpu_worker/model/stored_form.h"]
    for name, number, entry in forms:
        if ".decode" in entry:
            storings = re.findall(rf"inline constexpr StoredForm (k{name}\w+)", stored)
            yield name, {f"WeightFormId::{number}", f"{name}Linear", f"{name}_linear.cc".lower(), *storings, "quant_method"}, {}


def feed_forward_kinds(texts):
    """Dense ones are everywhere, so the others are looked at: by the constant, and by what the model has for them."""
    kinds = re.search(r"enum class FeedForwardKind[^{]*\{([^}]*)\}", texts["gpu_worker/model/model_table.h"]).group(1)
    own = {"Experts": {"ExpertsConfig", "ExpertRows", "ExpertFeedForward", "kRouter", "weights_sum_to_one", "steer_routers"}}
    for name in set(re.findall(r"k(\w+) =", kinds)) - {"Dense"}:
        yield name, {f"FeedForwardKind::k{name}"} | own.get(name, set()), {}


def constraints(texts):
    """By the constants of the message and of the compiler's form; a schema's also by its name."""
    form = re.search(r"message Constraint \{.*?oneof form \{(.*?)\n  \}", texts[
        "proto/retroinfer/generation/v1/generation.proto"], re.S).group(1)
    for name in re.findall(r"(\w+) = \d+;", form):
        constant = "k" + "".join(part.capitalize() for part in name.split("_"))
        yield name, {constant, f"mutable_{name}"} | ({name} if name == "json_schema" else set()), {}


def gguf_types(texts):
    """Those whose blocks are decoded."""
    supported = texts["gpu_worker/model/gguf/gguf_blocks.cc"].split("kSupported[] = {", 1)[1].split("};", 1)[0]
    for name in re.findall(r'"(Q\w+)"', supported):
        yield name, {name}, {}


# Kind as the row calls it -> its members, and files that only use them (an operation may use another one).
KINDS = {
    # The first form of codes is treated apart where fingerprints and options of before are kept.
    "a weight form": (weight_forms, r"gpu_worker/model/(fingerprint|kept_weights)\.cc|docs/use/checkpoints.md"),
    "a model family": (model_families, r"proto/|tools/(lab|models|needle)/|docs/use/checkpoints.md"),
    "a kind of feed-forward network": (feed_forward_kinds, r"gpu_worker/ops/|tools/make_int4_golden.py"),
    "a type of GGUF blocks": (gguf_types, r"tools/models/|docs/use/serving.md|README.md"),
    "an operation": (operations, r"gpu_worker/(attention|executor|kv|measuring|model|engine|wave_\w+)/"
                                 r"|gpu_worker/ops/\w+/((cpu|cuda)/)?(?!\w*_ops\.)\w+\.(h|cc|cu|cuh)$"),
    "a form of constraint": (constraints, r"http_gateway/(?!api/constraint_fields)|docs/use/serving.md|README.md"),
    "a metric": (metrics, r"(client|proto|tools)/|common/config/setting_names.cc|deploy/(fleet|helm|kubernetes|try)/|docs/understand/shm_layout.md|README.md"),
    "a policy": (policies, r"README.md"),
    "a layer kind": (layer_kinds, r"(?!)"),
    "a KV format": (formats, r"README.md"),
}
FEWEST = {"a weight form": 1, "a kind of feed-forward network": 1, "a model family": 3, "a type of GGUF blocks": 10, "an operation": 15, "a form of constraint": 4, "a metric": 100, "a policy": 1,
          "a layer kind": 1, "a KV format": 1}
# These rows come with the first member that is not a default one.
LATER = ("a policy", "a KV format")


def rows():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = text.split(HEADING, 1)[1].split("\n## ", 1)[0]
    return dict(re.findall(r"^\| (an? [^|]*?) \| (.*) \|$", section, re.M))


def patterns(cell, names):
    """The globs of a row, for one member."""
    for path in re.findall(r"`([\w./{},*-]+)`", cell):
        if "/" not in path and not path.endswith(".md"):
            continue  # a word of the code
        for word, value in names.items():
            path = re.sub(rf"(?<![A-Z]){word}(?![A-Z])", value, path)
        pieces = [piece[1:-1].split(",") if piece.startswith("{") else [piece]
                  for piece in re.split(r"(\{[^}]*\})", path)]
        for parts in itertools.product(*pieces):
            yield "".join(parts) + ("*" if parts[-1].endswith("/") else "")


def fits(name, globs):
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def tracked_texts():
    listing = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                             cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in listing:
        if fits(name, SEARCHED) and (ROOT / name).is_file():
            yield name, (ROOT / name).read_bytes().decode("utf-8", "replace")


def words(text):
    """What members are recognised by: names, values of enums, paths in their last two or three folders, and in files
    that make metrics strings, too."""
    found = set(re.findall(r"\w+", text)) | set(re.findall(r"(?:ModelFamily|KvFormatId|WeightFormId|FeedForwardKind)::\w+", text))
    if "etric" in text:
        found |= set(re.findall(r'"\w+"', text))
    for path in re.findall(r"[\w/]+\.(?:h|cc|cu)\b", text):
        parts = path.split("/")
        found |= {parts[-1], "/".join(parts[-2:]), "/".join(parts[-3:])}
    return found


def check_kind(kind, cell, texts, words_of):
    members, users = KINDS[kind]
    globs_of_row, known, count = set(), set(), 0
    for member, mentions, names in members(texts):
        count += 1
        globs = set(patterns(cell, names))
        if not names:
            globs_of_row |= globs
        for name, found in words_of.items():
            if mentions.isdisjoint(found):
                continue
            known |= {glob for glob in globs if fnmatch.fnmatchcase(name, glob)}
            if not fits(name, globs) and not re.match(users, name):
                yield f"{name} knows {member}, which the row '{kind}' does not say"
    if count < FEWEST[kind]:
        yield f"'{kind}': only {count} members were found: the search is broken"
    for glob in sorted(globs_of_row - known):
        # What a format's element types take depends on which there are already.
        if kind != "a KV format" or not any(fnmatch.fnmatchcase(name, glob) for name in texts):
            yield f"the row '{kind}' names {glob}, which knows no member"


def main():
    table, texts = rows(), dict(tracked_texts())
    words_of = {name: words(text) for name, text in texts.items()}
    violations = [f"docs/architecture.md: no row '{kind}' under '{HEADING}'" for kind in KINDS
                  if kind not in table and kind not in LATER]
    for kind in KINDS:
        if kind in table:
            violations += check_kind(kind, table[kind], texts, words_of)
    for violation in violations:
        print(violation)
    print(f"additions: {len(KINDS)} kinds, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
