"""How far one model's words are from another's: the same weights, another attention."""

import dataclasses
import math

import torch

ROWS = 1024  # logits that are made at once


@dataclasses.dataclass
class Sums:
    """Sums over tokens, so that documents can be added up."""
    tokens: int = 0
    loss_full: float = 0.0   # -log p of the text's token under full attention
    loss: float = 0.0
    change: float = 0.0      # |difference of the two|
    divergence: float = 0.0  # KL of full attention's distribution and the system's
    agreed: int = 0          # tokens whose most probable word is the same

    def add(self, other: "Sums") -> "Sums":
        """Returns the sum of both."""
        return Sums(*(a + b for a, b in zip(dataclasses.astuple(self),
                                            dataclasses.astuple(other))))

    def measures(self) -> dict[str, float]:
        """Returns the figures for readers."""
        n = max(1, self.tokens)
        return {"followed": self.tokens,
                "perplexity_full": math.exp(self.loss_full / n),
                "perplexity_ratio": math.exp((self.loss - self.loss_full) / n),
                "mean_change": self.change / n,
                "top1_agreement": self.agreed / n,
                "kl": self.divergence / n}


@torch.inference_mode()
def compare(logits_of, full: torch.Tensor, hidden: torch.Tensor, targets: torch.Tensor,
            bins: int) -> tuple[list[Sums], torch.Tensor]:
    """Compares hidden states [n, w] with those of full attention; logits_of maps them to logits.

    Returns sums over `bins` equal ranges of positions, and the change of each token's -log p [n].
    """
    parts = []
    for a, b, target in zip(full.split(ROWS), hidden.split(ROWS), targets.split(ROWS)):
        wanted, found = (logits_of(x).float().log_softmax(-1) for x in (a, b))
        losses = [-x.gather(-1, target[:, None])[:, 0] for x in (wanted, found)]
        divergence = (wanted.exp() * (wanted - found)).sum(-1)
        parts.append(torch.stack([*losses, divergence,
                                  (wanted.argmax(-1) == found.argmax(-1)).float()]))
    loss_full, loss, divergence, agreed = torch.cat(parts, 1).cpu().double()
    change = loss - loss_full
    edges = [len(change) * i // bins for i in range(bins + 1)]
    sums = [Sums(b - a, loss_full[a:b].sum().item(), loss[a:b].sum().item(),
                 change[a:b].abs().sum().item(), divergence[a:b].sum().item(),
                 int(agreed[a:b].sum())) for a, b in zip(edges, edges[1:])]
    return sums, change
