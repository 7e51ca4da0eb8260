"""Cheap first passes over the clusters of a long context: what each loses, and what each costs.

    python3 -m tools.lab.coarse_scoring --model FOLDER --keep FOLDER --lengths 8192,31744 --out FILE
    python3 -m tools.lab.coarse_scoring --report FILE docs/evaluation/coarse-scoring.md

Documents are those of kept_documents.py, shorter ones the beginnings of longer ones. The tokens
behind a document are followed under exact attention, and in every layer each first pass
(systems/coarse.py) is asked with the same queries: error of attention's output, recall of what
scoring all clusters by their centroids in int8 chooses, and the weight that is attended exactly.
All retrieve 3.5 % of the clusters, as 1M tokens do. What they do to words is coarse_words.py's.
"""

import argparse
import copy
import pathlib
import re
import time

import torch

from . import checkpoint, coarse_report
from .coarse_forms import BASE, forms
from .document import Document, Seen
from .indexed_tails import first
from .kept_documents import Kept, first_layers
from .results import Results, read_lines
from .sources import prompt_tokens
from .systems.coarse import Coarse
from .systems.full import Full


class Layer:
    """What the forms are asked about one chunk of rows in one layer."""

    def __init__(self, seen: Seen):
        self._seen = seen
        step = seen.step
        top = torch.maximum(step.logits.amax(-1), seen.own_logits.amax(-1))[..., None]
        self._top = top
        self._weights = (step.logits - top).exp()
        own = (seen.own_logits - top).exp()
        self._own = own.sum(-1), own @ seen.own_values
        self._whole = self._weights.sum(-1) + self._own[0]
        self._zones: tuple[torch.Tensor, torch.Tensor] | None = None  # of the first one asked

    def measure(self, system: Coarse, index) -> dict[str, float]:
        """Returns means over rows and heads."""
        seen = self._seen
        choice = system.choose(index, seen.step)
        out, mass = self._attend(choice)
        error = (out - seen.out).norm(dim=-1) / seen.out.norm(dim=-1)
        found = {"error": error.mean().item(), "mass": mass.mean().item()}
        zones = system.zones(index, seen.step)[1:]
        self._zones = self._zones or zones
        if zones[0].shape == self._zones[0].shape:  # of the same clusters
            for name, own, base in zip(("retrieved", "estimated"), zones, self._zones):
                recall = (own & base).sum(-1) / base.sum(-1).clamp(min=1)
                found[name] = recall.mean().item()
        return {name: round(value, 5) for name, value in found.items()}

    def _attend(self, choice):
        """Returns the output [b, h, g, d], and the true weight of what is attended exactly."""
        exact = self._weights * choice.exact
        inside = exact.sum(-1)
        b, h, g, t = exact.shape
        mixed = (exact.transpose(0, 1).reshape(h, b * g, t) @ self._seen.values).view(
            h, b, g, -1).transpose(0, 1) + self._own[1]
        total = inside + self._own[0]
        for estimate in choice.estimates:
            weights = (estimate.logits - self._top).exp()
            total = total + torch.einsum("bhgc,hc->bhg", weights, estimate.sizes)
            mixed = mixed + torch.einsum("bhgc,hcd->bhgd", weights, estimate.values)
        return mixed / total[..., None], (inside + self._own[0]) / self._whole


def measure(document: Document, behind: torch.Tensor, wanted: dict[int, list[Coarse]], note) -> None:
    """Calls note(layer, form, what the form does there), one layer after the other.

    The base comes first among the forms of a layer, since the others are compared with it. Layers
    behind the last wanted one are not followed.
    """
    cut, last = copy.copy(document), max(wanted) + 1
    cut.keys, cut._model = document.keys[:last], first_layers(document._model, last)

    def see(seen: Seen) -> None:
        # All rows of a layer are one chunk (Kept.chunk_elements), so that each is seen once.
        layer = seen.step.layer
        if layer not in wanted:
            return
        cut.forget()
        asked = Layer(seen)
        for system in wanted[layer]:
            index = cut.index(system, layer)
            system.prepare(index, cut.tokens)
            note(layer, system, asked.measure(system, index))
    cut.follow(Full(), behind, observer=see)


def run(arguments: argparse.Namespace) -> None:
    """Measures what is missing."""
    results = Results(arguments.out)
    systems = [system for system in forms() if re.search(arguments.forms, system.name)
               or system.name == BASE]
    for path in sorted(arguments.keep.glob("*.pt")):
        if arguments.only not in path.stem:
            continue
        document = Kept(model_of(arguments, path), path)
        for length in arguments.lengths:
            head = prompt_tokens(length, 0)
            if head <= document.tokens:
                _measure_layers(arguments, results, path.stem, document, head, systems)


def _measure_layers(arguments, results, stem, document, head, systems) -> None:
    began = time.monotonic()
    ids = document.ids + document.behind
    wanted = {}

    def key_of(layer, system):
        return ["coarse", stem, head, arguments.tail, layer, system.name]
    for layer in arguments.layers:
        missing = [system for system in systems if not results.has(key_of(layer, system))]
        if layer < len(document.keys) and missing:
            wanted[layer] = systems[:1] + [one for one in missing if one is not systems[0]]
    if wanted:
        measure(first(document, head), torch.tensor(ids[head:head + arguments.tail]), wanted,
                lambda layer, system, content: results.add(key_of(layer, system), content))
    print(f"{stem}, {head}: {time.monotonic() - began:.0f} s", flush=True)


def model_of(arguments, path: pathlib.Path):
    """Returns the model that has read a document: with scaled RoPE where its name says so, and
    the layers that were kept."""
    scaled = re.search(r"_yarn-([0-9.]+)", path.stem)
    layers = len(torch.load(path, weights_only=True, mmap=True)["keys"])
    model = checkpoint.load(arguments.model, "cpu", torch.float32,
                            f"yarn:{scaled[1]}" if scaled else "")
    model.model.layers = model.model.layers[:layers]
    return model


def numbers_of(text: str) -> list[int]:
    """Reads numbers with commas between them."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Measures, or writes the tables of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, help="a Hugging Face folder")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder of kept documents")
    parser.add_argument("--only", default="", help="a part of the names of documents")
    parser.add_argument("--lengths", type=numbers_of, default=[8260, 16452, 31812, 65604])
    parser.add_argument("--tail", type=int, default=48, help="tokens (default: %(default)s)")
    parser.add_argument("--layers", type=numbers_of, default=[2, 7, 12, 17, 22],
                        help="which layers are asked (default: %(default)s)")
    parser.add_argument("--forms", default="", help="a regular expression of forms")
    parser.add_argument("--out", type=pathlib.Path, help="JSON lines")
    parser.add_argument("--report", type=pathlib.Path, nargs=2, metavar=("LINES", "PAGE"))
    arguments = parser.parse_args()
    if arguments.report:
        coarse_report.write(read_lines(arguments.report[:1]), arguments.report[1])
        return
    if not all((arguments.model, arguments.keep, arguments.out)):
        parser.error("--model, --keep and --out are needed, or --report")
    with torch.inference_mode():
        run(arguments)


if __name__ == "__main__":
    main()
