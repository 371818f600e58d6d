"""optim=adamw: Adam with decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101), on matrices only."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from k3lab.config.checks import in_range, non_negative, positive
from k3lab.optim.groups import decayed_and_plain


@dataclass(frozen=True)
class AdamWSettings:
    """Rates of the update."""

    name: str = "adamw"
    lr: float = 1e-3  # peak learning rate; the schedule multiplies it
    weight_decay: float = 0.1  # of matrices; norms, biases, embeddings and other vectors have none
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])  # averages of gradient and square
    eps: float = 1e-8  # added to the root of the averaged square

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        non_negative("weight_decay", self.weight_decay)
        positive("eps", self.eps)
        if len(self.betas) != 2:
            raise ValueError(f"betas={list(self.betas)}: must be two numbers, such as [0.9, 0.95]")
        for beta in self.betas:
            in_range("betas", beta, 0, 1, high_open=True)


class AdamW:
    """Builds the optimizer of a model."""

    @staticmethod
    def build(settings: AdamWSettings, model: nn.Module) -> torch.optim.Optimizer:
        """One optimizer, two parameter groups (with and without decay), parameters in the model's
        order; fused where all of them are on CUDA."""
        decayed, plain = decayed_and_plain(model)
        parameters = [*decayed, *plain]
        first, second = settings.betas
        return torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": settings.weight_decay},
                {"params": plain, "weight_decay": 0.0},
            ],
            lr=settings.lr,
            betas=(first, second),
            eps=settings.eps,
            fused=bool(parameters) and all(p.is_cuda for p in parameters),
        )
