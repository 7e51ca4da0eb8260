"""Collects Python source under permissive licences from the packages that are installed.

    python3 -m tools.code.corpus FOLDER

Looks at the standard library and at every installed distribution, and takes those whose own
metadata names permissive licences alone. A document is a whole package: its files in order of
their paths, each under a line with its path. Packages in HELD_OUT are never trained on. Writes
train.jsonl and eval.jsonl (a document a line: package, text) and corpus.json (packages, versions,
licences, sizes, digests), which is what the model's README refers to.
"""

import argparse
import hashlib
import importlib.metadata
import json
import pathlib
import platform
import re
import sysconfig

HELD_OUT = ("sympy", "networkx", "scipy")
FILE_BYTES = (300, 400_000)  # shorter files say nothing, longer ones are tables
# Every part of a licence field must match PERMISSIVE, and nothing in it FORBIDDEN.
PERMISSIVE = re.compile(
    r"\b(MIT|BSD|0BSD|Apache|ISC|PSF|Python Software Foundation|Unlicense|Zlib|HPND|CNRI)\b", re.I)
FORBIDDEN = re.compile(r"GPL|GNU|Affero|Mozilla|MPL|EPL|CDDL|proprietary|NVIDIA|EULA|Other/", re.I)


def licence_of(metadata) -> str | None:
    """Returns the licences that a distribution's metadata names if all are permissive."""
    named = [value for key in ("License-Expression", "License")
             if (value := (metadata.get(key) or "").strip()) and value != "UNKNOWN"]
    # Some put the whole text there: its first line names it.
    named = [value.splitlines()[0][:100] for value in named]
    named += [value.split("::")[-1].strip() for value in metadata.get_all("Classifier") or ()
              if value.startswith("License ::") and not value.endswith("OSI Approved")]
    if not named or any(FORBIDDEN.search(value) for value in named):
        return None
    if not all(PERMISSIVE.search(value) for value in named):
        return None
    return ", ".join(dict.fromkeys(named))


def _read(path: pathlib.Path) -> str | None:
    try:
        if not FILE_BYTES[0] <= path.stat().st_size <= FILE_BYTES[1]:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def distributions():
    """Yields (name, version, licence, [(shown path, path)]) of what may be used."""
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    files = [(str(path.relative_to(library)), path) for path in library.rglob("*.py")
             if not {"site-packages", "dist-packages"} & set(path.parts)]
    yield "python-standard-library", platform.python_version(), "PSF-2.0", files
    seen = set()
    found = sorted(importlib.metadata.distributions(),
                   key=lambda one: (one.metadata["Name"] or "").lower())
    for one in found:
        name = (one.metadata["Name"] or "").lower()
        licence = licence_of(one.metadata)
        if not name or name in seen or licence is None:
            continue
        seen.add(name)
        files = [(str(file), pathlib.Path(str(file.locate()))) for file in one.files or ()
                 if file.suffix == ".py" and ".." not in file.parts]
        if files:
            yield name, one.version, licence, files


def collect(folder: pathlib.Path) -> list[dict]:
    """Writes the documents and returns one record a package."""
    folder.mkdir(parents=True, exist_ok=True)
    contents: set[bytes] = set()  # digests: the same file is taken once
    records = []
    with open(folder / "train.jsonl", "w", encoding="utf-8") as train, \
            open(folder / "eval.jsonl", "w", encoding="utf-8") as held_out:
        for name, version, licence, files in distributions():
            parts = []
            for shown, path in sorted(files):
                text = _read(path)
                digest = hashlib.sha256((text or "").encode()).digest()
                if text is None or digest in contents:
                    continue
                contents.add(digest)
                parts.append(f"# file: {shown}\n{text}\n")
            if not parts:
                continue
            document = "".join(parts)
            is_held_out = name in HELD_OUT
            line = json.dumps({"package": name, "text": document}) + "\n"
            (held_out if is_held_out else train).write(line)
            records.append({
                "package": name, "version": version, "licence": licence, "files": len(parts),
                "bytes": len(document.encode()), "split": "eval" if is_held_out else "train",
                "sha256": hashlib.sha256(document.encode()).hexdigest()})
    text = json.dumps(records, indent=1) + "\n"
    (folder / "corpus.json").write_text(text, encoding="utf-8")
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="receives the documents")
    records = collect(parser.parse_args().folder)
    for split in ("train", "eval"):
        chosen = [record for record in records if record["split"] == split]
        size = sum(record["bytes"] for record in chosen)
        print(f"{split}: {len(chosen)} packages, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
