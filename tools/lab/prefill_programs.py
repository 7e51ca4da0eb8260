"""What the programs of sparse prefill and indexed tails have in common: arguments, the checkpoint, the setup."""

import argparse
import pathlib
import time

import torch
import torch.nn.functional as F

from . import checkpoint
from .results import Results, read_lines


class Models:
    """The checkpoint as it is and, for prompts that are longer than it knows, with scaled RoPE."""

    def __init__(self, arguments: argparse.Namespace):
        self._arguments = arguments
        self.device, self.dtype = arguments.device, arguments.dtype
        self._known = checkpoint.load(arguments.model, arguments.device, arguments.dtype)
        self._scaled = None
        self.heads = self._known.shape.num_attention_heads
        # Inputs in bf16 pass through TF32 unrounded, so that logits have the digits of fp32.
        torch.backends.cuda.matmul.allow_tf32 = True
        tied = self._known.model.embed_tokens if self._known._tied else self._known.lm_head
        self._out = tied.weight.float()

    def name(self, length: int) -> str:
        """Returns the name of the model for prompts of so many tokens."""
        name, scaling = self._arguments.model.name, self._arguments.rope_scaling
        known = self._known.shape.max_position_embeddings
        if length > known and not scaling:
            raise ValueError(f"{length} tokens: {name} knows {known}; give --rope-scaling")
        return name if length <= known else f"{name} {scaling}"

    def of(self, length: int):
        """Returns the model for prompts of so many tokens, and its name."""
        name, scaling = self.name(length), self._arguments.rope_scaling
        if length <= self._known.shape.max_position_embeddings:
            return self._known, name
        if self._scaled is None:
            self._scaled = checkpoint.load(self._arguments.model, self._arguments.device,
                                           self._arguments.dtype, scaling)
        return self._scaled, name

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns logits in fp32."""
        return F.linear(hidden.float(), self._out)


def note_setup(results: Results, arguments: argparse.Namespace) -> None:
    """Writes what the figures were made on."""
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    results.add(["setup", name, int(time.time())],
                {"torch": torch.__version__, "dtype": str(arguments.dtype)})


def cells_of(text: str) -> tuple[int, int, str]:
    """Reads LENGTH,DOCUMENTS[,RULES]."""
    length, documents, *only = text.split(",", 2)
    return int(length), int(documents), only[0] if only else ""


def dtype_of(name: str) -> torch.dtype:
    """Reads the type that a model computes in."""
    if name not in ("bfloat16", "float32"):
        raise argparse.ArgumentTypeError(f"{name}: bfloat16 and float32 are known")
    return getattr(torch, name)


def arguments_of_runs(parser: argparse.ArgumentParser) -> None:
    """Adds where and how long a program runs, and where its results are."""
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", type=dtype_of, help="bfloat16 (default on a GPU) or float32")
    parser.add_argument("--dense", type=int, default=4096, help="rows that attend to everything")
    parser.add_argument("--seconds", type=float, default=1e9,
                        help="begin nothing new after this time")
    parser.add_argument("--out", type=pathlib.Path, help="JSON lines")
    parser.add_argument("--report", type=pathlib.Path, help="prints the tables of these lines")


def arguments_of_models(parser: argparse.ArgumentParser) -> None:
    """Adds the same, and the checkpoint."""
    parser.add_argument("--model", type=pathlib.Path, help="a Hugging Face folder")
    parser.add_argument("--rope-scaling", default="", metavar="yarn:FACTOR[:ORIGINAL]",
                        help="for prompts that are longer than the model knows")
    arguments_of_runs(parser)


def parser_of_cells(description: str, kind: str) -> argparse.ArgumentParser:
    """Returns a parser of programs that read texts of several lengths; `kind`: what is compared there."""
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments_of_models(parser)
    parser.add_argument("--texts", type=pathlib.Path, help="a folder of .txt")
    parser.add_argument("--cells", type=cells_of, action="append", metavar=f"LENGTH,DOCUMENTS[,{kind.upper()}]",
                        help="tokens of document and tail, how many, and a regular expression "
                             f"that names of {kind} match; may be repeated")
    return parser


def run_or_report(parser: argparse.ArgumentParser, needed: list[str], run, report) -> None:
    """Reads the arguments; then prints the tables of --report, or runs."""
    arguments = parser.parse_args()
    if arguments.report:
        print(report(read_lines([arguments.report])))
        return
    if not all(getattr(arguments, name) for name in needed):
        parser.error(", ".join(f"--{name}" for name in needed) + " are needed, or --report")
    if arguments.dtype is None:
        arguments.dtype = torch.bfloat16 if arguments.device == "cuda" else torch.float32
    run(arguments)
