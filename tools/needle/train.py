"""Trains the model and writes its folder.

    python3 -m tools.needle.train --model models/needle --minutes 24 --checkpoint needle.pt

The tokenizer must be there (train_tokenizer.py). A stage ends when its tasks are solved or its
share of the time is used up. `--resume` goes on from a checkpoint, at the stage it had reached.
"""

import argparse
import dataclasses
import pathlib
import random
import sys
import time

import torch
import torch.nn.functional as F

from . import bpe, document, model as llama, prompt, tasks
from .training_data import Course, loader

LANGUAGE_WEIGHT = 0.05
# A word list has few answer tokens and only two questions, so each of them counts more.
LIST_WEIGHT = 10.0
LANGUAGE_TOKENS = 4096
REPORT_STEPS = 50
CHECKPOINT_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Stage:
    """Courses that alternate, each with its weight, until solved or out of time.

    share: most of the whole time that the stage may take.
    target: token accuracy of the worst task of the first course at which the stage ends.
    rate: factor of the learning rate.
    """
    name: str
    courses: tuple[tuple[float, Course], ...]
    share: float
    target: float
    rate: float = 1.0


STAGES = (
    Stage("copy", ((1, Course(256, 256, copying=1.0)),), 0.10, 0.97),
    Stage("lookup-256", ((1, Course(256, 256, copying=0.1, spread=0.0, all_tasks=False)),),
          0.25, 0.98),
    Stage("mixed-512", ((1, Course(512, 128, copying=0.05, spread=0.2)),), 0.25, 0.96),
    Stage("mixed-2k", ((1, Course(2048, 48, lists=0.2)), (0.2, Course(512, 128))), 0.10, 0.975),
    Stage("mixed-8k", ((1, Course(8192, 16, lists=0.2)), (0.2, Course(1024, 96))), 0.10, 0.98, 0.8),
    Stage("mixed-32k", ((1, Course(32768, 4)), (0.5, Course(4096, 32, lists=0.4))),
          0.15, 0.985, 0.6),
    Stage("mixed-128k", ((1, Course(131072, 1, lists=0.1)), (0.5, Course(32768, 4, lists=0.2)),
                         (1.0, Course(4096, 32, lists=0.4))), 0.7, 2.0, 0.6),
    Stage("finish", ((1.0, Course(32768, 4, lists=0.15)), (1.0, Course(8192, 16, lists=0.15)),
                     (0.5, Course(131072, 1, lists=0.1))), 1.0, 2.0, 0.3),
)


class Progress:
    """Token accuracy by task, averaged over the last steps of each length."""

    def __init__(self):
        self._average: dict[tuple[int, int], float] = {}

    def add(self, length: int, labels: torch.Tensor, right: torch.Tensor) -> None:
        """Takes the labels of the answer tokens and whether each was predicted."""
        for label in labels.unique().tolist():
            now = right[labels == label].float().mean().item()
            known = self._average.get((length, label), now / 2)
            self._average[length, label] = 0.85 * known + 0.15 * now

    def worst(self, length: int) -> float:
        """Returns the accuracy of the worst sentence task at a length (word lists left out)."""
        lists = [1 + tasks.TASKS.index(task) for task in tasks.WORD_LIST_TASKS]
        found = [value for (at, label), value in self._average.items()
                 if at == length and label not in lists]
        return min(found, default=0.0)

    def text(self, length: int) -> str:
        """Returns the accuracies at a length, in words."""
        return " ".join(f"{tasks.TASKS[label - 1]} {value:.3f}"
                        for (at, label), value in sorted(self._average.items()) if at == length)


class Trainer:
    """A training run: model, optimizers, clock and checkpoints."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.encoder = bpe.Encoder(arguments.model)
        self.bank = document.FillerBank(self.encoder, f"train {arguments.seed}", 32768)
        self.end = self.encoder.special(prompt.END_OF_TEXT)
        self.first_list = 1 + tasks.TASKS.index(tasks.COMMON_WORDS)
        torch.manual_seed(arguments.seed)
        self.model = llama.Llama(_shape(arguments, self.encoder)).to(self.device)
        self.optimizers = llama.optimizers(self.model, arguments.rate)
        self.progress = Progress()
        self.step = self.stage = 0
        self.trained_s = 0.0
        if arguments.resume:
            self._load(arguments.resume)
        if arguments.stage:
            self.stage = [stage.name for stage in STAGES].index(arguments.stage)
        if self.device == "cuda":
            torch._dynamo.config.recompile_limit = 64
            for layer in self.model.model.layers:
                layer.compile(dynamic=False)
        self.start = self.saved = time.monotonic()

    def elapsed(self) -> float:
        """Returns the seconds since this run began."""
        return time.monotonic() - self.start

    def run(self) -> None:
        """Goes through the stages."""
        total = self.arguments.minutes * 60
        while self.stage < len(STAGES) and self.elapsed() < total:
            self._run_stage(STAGES[self.stage], total)
            self.stage += 1
            self.save()
        self.stage = min(self.stage, len(STAGES) - 1)
        self.save()

    def _run_stage(self, stage: Stage, total: float) -> None:
        began = self.elapsed()
        per_course = max(1, self.arguments.workers // len(stage.courses))
        streams = [iter(loader(course, self.encoder, self.bank, self.arguments.seed + self.step,
                               per_course)) for _, course in stage.courses]
        rng = random.Random(self.step)
        weights = [weight for weight, _ in stage.courses]
        main = stage.courses[0][1].length
        steps = 0
        while True:
            now = self.elapsed()
            if now > total or now - began > stage.share * total:
                self._say(f"{stage.name}: out of time")
                return
            which = rng.choices(range(len(streams)), weights)[0] if steps else 0
            loss = self._train_step(next(streams[which]), stage.rate, now / total)
            steps += 1
            if steps % self.arguments.report == 0:
                self._say(f"{stage.name} loss {loss.item():.4f} {self.progress.text(main)}")
            if time.monotonic() - self.saved > CHECKPOINT_SECONDS:
                self.save()
            if steps >= 60 and self.progress.worst(main) > stage.target:
                self._say(f"{stage.name}: solved; {self.progress.text(main)}")
                return

    def _train_step(self, batch, rate: float, spent: float) -> torch.Tensor:
        ids, labels, positions = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        factor = rate * min(1.0, (self.step + 1) / 200) * self._decay(spent)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.arguments.rate * factor
        with torch.autocast(self.device, dtype=torch.bfloat16):
            hidden = self.model(ids, positions)
            loss, found, right = self._loss(hidden, ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.step % 5 == 0 or ids.shape[1] > 16384:
            self.progress.add(ids.shape[1], found, right)
        self.step += 1
        return loss.detach()

    def _decay(self, spent: float) -> float:
        """Holds the rate, then lets it fall linearly over the last part of the time."""
        hold = 1.0 - self.arguments.cooldown
        return 1.0 if spent < hold else max(0.02, (1.0 - spent) / self.arguments.cooldown)

    def _loss(self, hidden, ids, labels):
        """Loss on the answers, and a little on a sample of all tokens."""
        hidden, targets, labels = hidden[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), \
            labels[:, 1:].flatten()
        answers = labels.nonzero().squeeze(1)
        logits = self.model.logits(hidden[answers]).float()
        weights = torch.where(labels[answers] >= self.first_list, LIST_WEIGHT, 1.0)
        losses = F.cross_entropy(logits, targets[answers], reduction="none")
        loss = (losses * weights).sum() / weights.sum()
        sample = torch.randint(len(targets), (LANGUAGE_TOKENS,), device=ids.device)
        sampled = targets[sample].masked_fill(targets[sample] == self.end, -100)
        language = F.cross_entropy(self.model.logits(hidden[sample]).float(), sampled)
        right = logits.argmax(-1) == targets[answers]
        return loss + LANGUAGE_WEIGHT * language, labels[answers], right

    def _say(self, text: str) -> None:
        print(f"{self.elapsed():.0f}s step {self.step} {text}", flush=True)

    def save(self) -> None:
        """Writes the checkpoint and the model folder."""
        self.saved = time.monotonic()
        path = pathlib.Path(self.arguments.checkpoint)
        state = {"model": self.model.state_dict(), "step": self.step, "stage": self.stage,
                 "optimizers": [o.state_dict() for o in self.optimizers],
                 "trained_s": self.trained_s + self.elapsed()}
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(path)
        llama.save(self.model, self.arguments.model,
                   self.encoder.special(prompt.BEGIN_OF_TEXT), self.end)

    def _load(self, path: str) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        if "optimizers" in state:
            for optimizer, saved in zip(self.optimizers, state["optimizers"]):
                optimizer.load_state_dict(saved)
        self.step, self.stage = state["step"], state["stage"]
        self.trained_s = state["trained_s"]


def _shape(arguments, encoder: bpe.Encoder) -> llama.Shape:
    return llama.Shape(encoder.size, arguments.hidden, arguments.layers, arguments.feed_forward)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, required=True,
                        help="model folder: has tokenizer.json, receives the weights")
    parser.add_argument("--checkpoint", required=True, help="file for going on later")
    parser.add_argument("--resume", help="checkpoint to go on from")
    parser.add_argument("--stage", choices=[stage.name for stage in STAGES],
                        help="stage to begin with (default: the first, or the checkpoint's)")
    parser.add_argument("--minutes", type=float, default=24, help="(default: %(default)s)")
    parser.add_argument("--rate", type=float, default=1.5e-3, help="peak learning rate")
    parser.add_argument("--cooldown", type=float, default=0.3,
                        help="last part of the time in which the rate falls (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=14, help="processes that write text")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=320)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--feed-forward", type=int, default=640)
    parser.add_argument("--report", type=int, default=REPORT_STEPS, help="steps between reports")
    arguments = parser.parse_args()
    try:
        trainer = Trainer(arguments)
    except FileNotFoundError as error:
        sys.exit(f"train: {error}")
    count = sum(p.numel() for p in trainer.model.parameters())
    print(f"{count / 1e6:.2f} M parameters, {trainer.device}", flush=True)
    trainer.run()


if __name__ == "__main__":
    main()
