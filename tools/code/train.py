"""Trains the code model and writes its folder.

    python3 -m tools.code.train --corpus CORPUS --model models/code --checkpoint code.pt

CORPUS has what corpus.py and encode.py wrote. Windows of the text are drawn at random places, short
ones first: most of what a model of source code can do is local, and long windows cost most. With
--resume a run goes on at the second it had reached, so that a training may be cut into several.
"""

import argparse
import dataclasses
import pathlib
import sys
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tools.needle import bpe, model as llama, prompt

CHECKPOINT_SECONDS = 60
REPORT_STEPS = 100
LOSS_PARTS = 8  # logits of so many parts of a batch are made one after the other


@dataclasses.dataclass(frozen=True)
class Stage:
    """Windows of `length` tokens, `batch` at a time, until `until` of the time has passed."""
    length: int
    batch: int
    until: float


STAGES = (Stage(4096, 32, 0.50), Stage(16384, 8, 0.75), Stage(65536, 2, 0.92),
          Stage(131072, 1, 1.0))
# Beside long windows, every third step takes short ones, of which a step holds more texts.
SHORT = STAGES[0]
WARM_UP_STEPS = 200


def stage_at(spent: float, step: int) -> Stage:
    """Returns what a step trains on when `spent` of the time has passed."""
    stage = next((stage for stage in STAGES if spent < stage.until), STAGES[-1])
    return SHORT if step % 3 == 2 else stage


def rate_at(spent: float, step: int, cooldown: float) -> float:
    """Returns the factor of the learning rate."""
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    return warm * min(1.0, max(0.02, (1.0 - spent) / cooldown))


class Trainer:
    """A training run: data, model, optimizers, clock and checkpoints."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        encoder = bpe.Encoder(arguments.model)
        self.special = [encoder.special(name) for name in (prompt.BEGIN_OF_TEXT,
                                                           prompt.END_OF_TEXT)]
        data = torch.frombuffer(bytearray((arguments.corpus / "train.bin").read_bytes()),
                                dtype=torch.int16)
        self.data = data.to(self.device)
        torch.manual_seed(arguments.seed)
        self.model = llama.Llama(llama.Shape(
            encoder.size, arguments.hidden, arguments.layers, arguments.feed_forward,
            arguments.heads, arguments.kv_heads, rope_theta=1e7)).to(self.device)
        self.optimizers = llama.optimizers(self.model, arguments.rate)
        self.step, self.trained_s, self.tokens = 0, 0.0, 0
        if arguments.resume:
            self._load(arguments.resume)
        if self.device == "cuda":
            torch._dynamo.config.recompile_limit = 64
            for layer in self.model.model.layers:
                layer.compile(dynamic=False)

    def run(self) -> None:
        """Trains until the time of the whole training, or of this run, is used up."""
        begin = saved = time.monotonic()
        already, total = self.trained_s, self.arguments.minutes * 60
        stop_after = (self.arguments.stop_after or self.arguments.minutes) * 60
        while True:
            now = time.monotonic()
            self.trained_s = already + now - begin
            if self.trained_s >= total or now - begin >= stop_after:
                break
            loss, length = self._train_step(self.trained_s / total)
            if self.step % self.arguments.report == 0:
                print(f"{self.trained_s:.0f}s step {self.step} {self.tokens / 1e6:.0f} M tokens "
                      f"length {length} loss {loss.item():.4f}", flush=True)
            if now - saved > CHECKPOINT_SECONDS:
                self.save()
                saved = time.monotonic()
        self.save()

    def _train_step(self, spent: float):
        stage = stage_at(spent, self.step)
        factor = rate_at(spent, self.step, self.arguments.cooldown)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.arguments.rate * factor
        ids = self._batch(stage)
        positions = torch.arange(stage.length, device=self.device).expand(stage.batch, -1)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            hidden = self.model(ids[:, :-1], positions)
            loss = self._loss(hidden.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += stage.length * stage.batch
        return loss.detach(), stage.length

    def _batch(self, stage: Stage) -> torch.Tensor:
        begins = torch.randint(len(self.data) - stage.length, (stage.batch, 1), device=self.device)
        return self.data[begins + torch.arange(stage.length + 1, device=self.device)].long()

    def _loss(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        def part(h, t):
            return F.cross_entropy(self.model.logits(h).float(), t, reduction="sum")
        parts = [checkpoint(part, h, t, use_reentrant=False)
                 for h, t in zip(hidden.chunk(LOSS_PARTS), targets.chunk(LOSS_PARTS))]
        return sum(parts) / targets.numel()

    def save(self) -> None:
        """Writes the checkpoint and the model folder."""
        path = pathlib.Path(self.arguments.checkpoint)
        partial = path.with_suffix(".partial")
        torch.save({"model": self._plain_state(), "step": self.step, "tokens": self.tokens,
                    "trained_s": self.trained_s,
                    "optimizers": [o.state_dict() for o in self.optimizers]}, partial)
        partial.replace(path)
        llama.save(self.model, self.arguments.model, *self.special)

    def _plain_state(self) -> dict:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def _load(self, path: str) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        self.step, self.trained_s, self.tokens = state["step"], state["trained_s"], state["tokens"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True,
                        help="model folder: has tokenizer.json, receives the weights")
    parser.add_argument("--checkpoint", required=True, help="file for going on later")
    parser.add_argument("--resume", help="checkpoint to go on from")
    parser.add_argument("--minutes", type=float, default=16,
                        help="of the whole training (default: %(default)s)")
    parser.add_argument("--stop-after", type=float, help="minutes of this run (default: all)")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--cooldown", type=float, default=0.4,
                        help="last part of the time in which the rate falls (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=320)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--feed-forward", type=int, default=640)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--report", type=int, default=REPORT_STEPS, help="steps between reports")
    arguments = parser.parse_args()
    try:
        trainer = Trainer(arguments)
    except FileNotFoundError as error:
        sys.exit(f"train: {error}")
    count = sum(p.numel() for p in trainer.model.parameters())
    print(f"{count / 1e6:.2f} M parameters, {trainer.device}, {len(trainer.data) / 1e6:.1f} M "
          "tokens of text", flush=True)
    trainer.run()


if __name__ == "__main__":
    main()
