"""Documents that were read once, kept in files, and read again without their prompt's minutes.

    python3 -m tools.lab.kept_documents --model FOLDER --texts FOLDER --keep FOLDER --cells 31744,2

A file holds the tokens of one window of text with what stands behind it, and keys and values of
every layer in the model's type. With --threshold the prompt attends to chosen blocks of keys
(block_choice.py), which a CPU reads three times as fast; keys and values are then those that
such a prompt leaves.
"""

import argparse
import copy
import dataclasses
import pathlib
import time

import torch

from . import block_sparse
from .block_choice import Choice
from .block_sparse import Counts
from .document import Document
from .prefill_programs import Models, arguments_of_models, cells_of
from .real_text import RealText
from .sources import prompt_tokens

BEHIND = 512  # tokens of text that are kept behind a document


class Kept(Document):
    """A document out of a file."""

    chunk_elements = 2 ** 26

    def __init__(self, model, path: pathlib.Path):
        self._path = path
        found = torch.load(path, weights_only=True)
        self.ids, self.behind = found["ids"], found["behind"]
        self._found = found
        super().__init__(model, self.ids)
        del self._found

    def _prefill(self, ids) -> None:
        for name in ("keys", "values"):
            getattr(self, name).extend(x.float().to(self._device) for x in self._found[name])
        # What no system here learns from: queries of the document.
        self.queries = [None] * len(self.keys)


def path_of(folder: pathlib.Path, model: str, tokens: int, name: str, number: int) -> pathlib.Path:
    """Returns where a document is kept."""
    return folder / f"{model.replace(' ', '_').replace(':', '-')}-{tokens}-{name}-{number}.pt"


def keep(arguments: argparse.Namespace) -> None:
    """Reads the documents that are not kept yet."""
    models = Models(arguments)
    text = RealText(arguments.texts, arguments.model)
    arguments.keep.mkdir(parents=True, exist_ok=True)
    rule = (Choice(threshold=arguments.threshold, dense=arguments.dense)
            if arguments.threshold < 1 else None)
    for length, documents, only in arguments.cells:
        model, shown = models.of(length)
        tokens = prompt_tokens(length, BEHIND)
        for name, number in text.documents(tokens + BEHIND + 1, documents):
            path = path_of(arguments.keep, shown, tokens, name, number)
            if only not in name or path.exists():
                continue
            began = time.monotonic()
            ids, behind = text.make(name, number, tokens, BEHIND + 1)
            read(first_layers(model, arguments.layers), ids, behind, rule, path)
            print(f"{path.name}: {time.monotonic() - began:.0f} s", flush=True)


def first_layers(model, count: int):
    """Returns a model with the first `count` layers of another; 0: with all. Weights are shared."""
    if not count:
        return model
    found = copy.copy(model)
    found._modules = dict(model._modules)
    found._modules["model"] = copy.copy(model.model)
    found.model._modules = dict(model.model._modules)
    found.model.layers = model.model.layers[:count]
    found.shape = dataclasses.replace(model.shape, num_hidden_layers=count)
    return found


@torch.inference_mode()
def read(model, ids: list[int], behind: list[int], rule: Choice | None,
         path: pathlib.Path) -> None:
    """Reads one document and writes its file, whole or not at all."""
    keys, values, counts = [], [], Counts()
    whole = Choice(dense=len(ids))
    last = model.shape.num_hidden_layers - 1

    def attend(layer, q, k, v):
        keys.append(k[0].cpu())
        values.append(v[0].cpu())
        # Nothing is asked of what stands behind the last layer's keys.
        return torch.zeros_like(q) if layer == last else block_sparse.attention(
            rule or whole, counts, q, k, v)
    tokens = torch.tensor(ids, device=next(model.parameters()).device)[None]
    model(tokens, torch.arange(len(ids), device=tokens.device)[None], attend)
    written = path.with_suffix(".part")
    torch.save({"ids": ids, "behind": behind, "keys": keys, "values": values}, written)
    written.rename(path)


def main() -> None:
    """Keeps documents."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments_of_models(parser)
    parser.add_argument("--texts", type=pathlib.Path, required=True, help="a folder of .txt")
    parser.add_argument("--keep", type=pathlib.Path, required=True, help="where files go")
    parser.add_argument("--cells", type=cells_of, action="append", required=True,
                        metavar="LENGTH,DOCUMENTS[,NAME]",
                        help="tokens of a document and what is behind, how many, and a part of "
                             "their names; may be repeated")
    parser.add_argument("--threshold", type=float, default=1.0,
                        help="mass that a prompt's blocks must have; 1: exact (default)")
    parser.add_argument("--layers", type=int, default=0,
                        help="only the first so many layers (default: all)")
    arguments = parser.parse_args()
    if arguments.dtype is None:
        arguments.dtype = torch.bfloat16
    keep(arguments)


if __name__ == "__main__":
    main()
