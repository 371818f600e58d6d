"""Gated activations and the dense two-matrix layer that uses them.

D input width, F hidden width; the first matrix makes gate a and up-projection u side by side, [a | u].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from k3lab.ffn.base import linear

GATE_CAP = 4.0  # SiTU: the gate saturates here …
UP_CAP = 25.0  # … and the up-projection here, so that no product exceeds 100


def swiglu(au: Tensor) -> Tensor:
    """[…, 2F] → [a·σ(a)] · u, [..., F] (Shazeer, arXiv 2002.05202, Eq. 6)."""
    a, u = au.chunk(2, dim=-1)
    return F.silu(a) * u


def situ(au: Tensor) -> Tensor:
    """[…, 2F] → [4·tanh(a/4)·σ(a)] · [25·tanh(u/25)], [..., F], bounded by 100 (Kimi K3, arXiv 2607.24653)."""
    a, u = au.chunk(2, dim=-1)
    gate = GATE_CAP * torch.tanh(a / GATE_CAP) * torch.sigmoid(a)
    return gate * (UP_CAP * torch.tanh(u / UP_CAP))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": swiglu, "situ": situ}


def matched_hidden(width: int, parts: int = 1) -> int:
    """F of one of ``parts`` equal gated layers that together cost as much as an ungated one of 4·width."""
    return -(-8 * width // (3 * parts * 8)) * 8  # rounded up to a multiple of 8: 16 bytes in bf16


class Gated(nn.Module):
    """y = W_out · act(W_in · x) on […, D]; a gated layer of hidden width F without biases."""

    def __init__(self, width: int, hidden: int, activation: str, std: float) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.w_in = linear(width, 2 * hidden, std)
        self.w_out = linear(hidden, width, std)

    def forward(self, x: Tensor) -> Tensor:
        """[…, D] → […, D]."""
        return self.w_out(self.activation(self.w_in(x)))

    def flops_per_token(self) -> int:
        """Forward FLOPs of the two matrices."""
        return 2 * (self.w_in.weight.numel() + self.w_out.weight.numel())
