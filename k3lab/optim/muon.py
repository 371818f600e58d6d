"""optim=muon: Per-Head Muon for matrices, AdamW for vectors, embeddings and the head (Kimi K3, arXiv 2607.24653).

The momenta of query, key and value projections are cut into heads before they are orthogonalised, and stacked
experts into experts, so that each head and each expert gets an update of full rank and equal size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from k3lab.config.checks import in_range, non_negative, positive
from k3lab.optim.matrices import divide
from k3lab.optim.muon_adamw import MuonAdamW


@dataclass(frozen=True)
class MuonSettings:
    """Rates of both updates."""

    name: str = "muon"
    lr: float = 1e-3  # peak learning rate of all parameters; the schedule multiplies it
    weight_decay: float = 0.1  # of matrices; norms, biases, embeddings and other vectors have none
    momentum: float = 0.95  # share of a matrix's momentum that stays
    nesterov: bool = True  # look one step ahead along the momentum
    steps: int = 5  # Newton–Schulz iterations
    rms: float = 0.2  # root mean square of a matrix's update at lr 1, that of AdamW
    per_head: bool = True  # orthogonalise query, key and value projections head by head; false: whole
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])  # AdamW's averages of gradient and square
    eps: float = 1e-8  # added to the root of AdamW's averaged square

    def __post_init__(self) -> None:
        for key in ("lr", "rms", "eps"):
            positive(key, getattr(self, key))
        non_negative("weight_decay", self.weight_decay)
        in_range("momentum", self.momentum, 0, 1, high_open=True)
        in_range("steps", self.steps, 1, 20)
        if len(self.betas) != 2:
            raise ValueError(f"betas={list(self.betas)}: must be two numbers, such as [0.9, 0.95]")
        for beta in self.betas:
            in_range("betas", beta, 0, 1, high_open=True)


class Muon:
    """Builds the optimizer of a model."""

    @staticmethod
    def build(settings: MuonSettings, model: nn.Module) -> torch.optim.Optimizer:
        """One optimizer of three groups: matrices by Muon, the head and convolutions by AdamW with decay, all
        other parameters by AdamW without; parameters in the model's order."""
        division = divide(model, settings.per_head)
        muon = {"momentum": settings.momentum, "nesterov": settings.nesterov, "steps": settings.steps}
        adamw = {"kind": "adamw", "betas": tuple(settings.betas), "eps": settings.eps}
        return MuonAdamW(
            [
                {
                    "params": list(division.stacks),
                    "kind": "muon",
                    "weight_decay": settings.weight_decay,
                    "rms": settings.rms,
                    **muon,
                },
                {"params": division.decayed, "weight_decay": settings.weight_decay, **adamw},
                {"params": division.plain, "weight_decay": 0.0, **adamw},
            ],
            division.stacks,
            settings.lr,
        )
