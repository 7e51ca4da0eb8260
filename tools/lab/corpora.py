"""Texts to follow with a checkpoint of others: prose and code, a file a text.

    python3 -m tools.lab.corpora FOLDER

Prose is what Debian packages hold, which are downloaded by apt and unpacked, not installed; code is
Python's own library and packages that are installed here. Nothing of it is kept in this tree: a
file's SHA-256 is in every result.
"""

import gzip
import html
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

MOST_CHARACTERS = 1_200_000  # of a file: enough for two documents of 120K tokens
# A text's name, the Debian package, and where its pages are, in their order.
PROSE = (("prose_anarchism", "anarchism", "usr/share/doc/anarchism/markdown/*.md.gz"),
         ("prose_jargon", "jargon-text", "usr/share/doc/jargon-text/jargon.txt.gz"),
         ("prose_reference", "debian-reference-en",
          "usr/share/debian-reference/debian-reference.en.txt.gz"),
         ("prose_handbook", "debian-handbook", "usr/share/doc/debian-handbook/html/en-US/*.html"))
CODE = (("code_stdlib", ""), ("code_networkx", "networkx"), ("code_sympy", "sympy"))


def _page(path: pathlib.Path) -> str:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            return file.read()
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".html":
        text = re.sub(r"(?is)<(script|style|head)\b.*?</\1>", "", text)
        text = html.unescape(re.sub(r"<[^>]+>", "", text))
        text = re.sub(r"[ \t]+", " ", text)
        text = re.sub(r"\n\s*\n+", "\n\n", text)
    return text


def prose(package: str, pattern: str) -> str:
    """Returns the text of a Debian package."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "-q", package], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        archive = next(pathlib.Path(folder).glob("*.deb"))
        subprocess.run(["dpkg", "-x", str(archive), folder], check=True)
        pages = sorted(pathlib.Path(folder).glob(pattern))
        return "\n\n".join(_page(path) for path in pages)


def code(package: str) -> str:
    """Returns the Python source of an installed package; of Python's own library for ''."""
    paths = sysconfig.get_paths()
    root = pathlib.Path(paths["purelib"]) / package if package else pathlib.Path(paths["stdlib"])
    found = sorted(root.glob("*.py") if not package else root.rglob("*.py"))
    return "".join(f"# file: {path.relative_to(root.parent)}\n{_page(path)}\n" for path in found
                   if "test" not in path.parts)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python3 -m tools.lab.corpora FOLDER")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, *where in PROSE + CODE:
        text = (prose(*where) if name.startswith("prose") else code(*where))[:MOST_CHARACTERS]
        if not text:
            sys.exit(f"corpora: no text for {name}; needs {where[0]}")
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"{name}: {len(text)} characters", flush=True)


if __name__ == "__main__":
    main()
