"""Perplexity of the code model by position, on packages that training never saw.

    python3 -m tools.code.evaluate CORPUS MODEL [--results FILE]

Windows of --length tokens are drawn at even distances from the held-out text; every token is
predicted from all before it, with exact attention. Prints a table and appends a JSON line.
"""

import argparse
import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

from tools.needle import model as llama, tasks

EDGES = (0, 256, 1024, 4096, 16384, 32768, 65536, 131072)
LOGITS_ROWS = 8192  # made at once


@torch.inference_mode()
def losses(model: llama.Llama, ids: torch.Tensor) -> torch.Tensor:
    """Returns -log p of ids[1:] given what stands before each, fp32."""
    positions = torch.arange(len(ids) - 1, device=ids.device)[None]
    hidden = model(ids[None, :-1], positions)[0]
    parts = [F.cross_entropy(model.logits(h).float(), t, reduction="none")
             for h, t in zip(hidden.split(LOGITS_ROWS), ids[1:].split(LOGITS_ROWS))]
    return torch.cat(parts)


def by_position(all_losses: torch.Tensor) -> list[dict]:
    """Returns mean loss and perplexity of each range of positions; losses [windows, length]."""
    rows = []
    for begin, end in zip(EDGES, EDGES[1:]):
        part = all_losses[:, begin:end]
        if part.numel() > 0:
            loss = part.mean().item()
            rows.append({"begin": begin, "end": min(end, all_losses.shape[1]),
                         "tokens": part.numel(), "loss": loss, "perplexity": math.exp(loss)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=pathlib.Path, help="folder that encode.py wrote")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--length", type=int, default=tasks.MAX_LENGTH,
                        help="tokens of a window (default: %(default)s)")
    parser.add_argument("--windows", type=int, default=16, help="(default: %(default)s)")
    parser.add_argument("--results", type=pathlib.Path, help="file that gets a JSON line")
    arguments = parser.parse_args()
    if not 2 <= arguments.length <= tasks.MAX_LENGTH or arguments.windows < 1:
        parser.error(f"--length must be 2 to {tasks.MAX_LENGTH}, --windows at least 1")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    raw = (arguments.corpus / "eval.bin").read_bytes()
    data = torch.frombuffer(bytearray(raw), dtype=torch.int16).long().to(device)
    if len(data) <= arguments.length:
        sys.exit(f"evaluate: {len(data)} tokens of held-out text, needs more than "
                 f"{arguments.length}: use a shorter --length")
    model = llama.load(arguments.model, device)
    found = []
    for window in range(arguments.windows):
        begin = (len(data) - arguments.length - 1) * window // max(1, arguments.windows - 1)
        found.append(losses(model, data[begin:begin + arguments.length + 1]))
        print(f"window {window + 1} of {arguments.windows}", file=sys.stderr, flush=True)
    rows = by_position(torch.stack(found))
    print("| positions | loss | perplexity |\n| --- | --- | --- |")
    for row in rows:
        print(f"| {row['begin']:,} to {row['end']:,} | {row['loss']:.4f} "
              f"| {row['perplexity']:.3f} |")
    if arguments.results:
        name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        with open(arguments.results, "a", encoding="utf-8") as file:
            record = {"device": name, "length": arguments.length,
                      "windows": arguments.windows, "by_position": rows}
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
