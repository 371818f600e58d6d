"""What every decay offers: logits in, log-decay out, and the arguments that let a kernel fuse the gate.

B batch, T time, H value heads, K key dim, C decay logits a head (K, 1 or 0).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

DEAD = 1e-6  # nats a step: a channel that forgets less than this never forgets within any sequence


class Decay(nn.Module, ABC):
    """Base of all decays; ctor ``(settings, heads, head_dim)``.

    ``bound`` is the lowest log-decay the rule can give, in nats a step (None: it has no lowest value);
    the mixer's kernel picks its tensor-core path from it. ``channels`` is C, the number of logits a head
    that the mixer must produce.
    """

    bound: float | None = None
    channels: int

    def __init__(self, settings: Any, heads: int, head_dim: int) -> None:
        super().__init__()
        self.settings = settings
        self.heads = heads
        self.head_dim = head_dim

    @abstractmethod
    def log_decay(self, z_BTHC: Tensor) -> Tensor:
        """Logits of any floating dtype → g [B,T,H,K] ≤ 0 in fp32 (fp64 for fp64)."""

    def kernel_args(self, z_BTHC: Tensor) -> dict[str, Any]:
        """Keyword arguments for ``chunk_kda``: raw logits and parameters where the kernel fuses the gate,
        otherwise the finished g."""
        return {"g": self.log_decay(z_BTHC), "use_gate_in_kernel": False}

    @torch.no_grad()
    def dead_fraction(self) -> float:
        """Share of channels whose |g| is below 1e-6 when every logit is 0, measured on the parameters."""
        device = next((p.device for p in self.parameters()), None)
        g_BTHK = self.log_decay(torch.zeros(1, 1, self.heads, self.channels, device=device))
        return (g_BTHK.abs() < DEAD).double().mean().item()

    @torch.no_grad()
    def half_lives(self) -> Tensor:
        """Tokens after which each channel has halved, [H,K], when every logit is 0 (inf: never)."""
        device = next((p.device for p in self.parameters()), None)
        g_BTHK = self.log_decay(torch.zeros(1, 1, self.heads, self.channels, device=device))
        return math.log(2) / -g_BTHK[0, 0]


def at_least_fp32(x: Tensor) -> Tensor:
    """Promote half precision to fp32; fp32 and fp64 stay."""
    return x if x.dtype == torch.float64 else x.float()


def log_uniform_(x: Tensor, low: float, high: float) -> Tensor:
    """Fill ``x`` in place with log-uniform draws from [low, high]."""
    return x.uniform_(math.log(low), math.log(high)).exp_()


def inverse_softplus(u: Tensor) -> Tensor:
    """The z whose softplus is u > 0: log(e^u − 1), without cancellation for small u."""
    return u + torch.log(-torch.expm1(-u))
