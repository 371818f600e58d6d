"""Unbounded decay a channel: g = −e^A · softplus(z + dt_bias).

Source: Kimi Linear (arXiv 2510.26692), §3. Nothing limits g, so the diagonal tiles of the chunk form need
their decays computed pair by pair. B batch, T time, H heads, K key dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from k3lab.config.checks import one_of, positive
from k3lab.decay.base import Decay, at_least_fp32, inverse_softplus, log_uniform_


@dataclass(frozen=True)
class SoftplusSettings:
    """Settings of Kimi Linear's decay."""

    name: str = "softplus"
    a_init: str = "kimi_linear"  # kimi_linear: e^A ~ U(1, 16) | zero: A = 0
    dt_min: float = 0.001  # dt_bias starts as softplus⁻¹(u), u log-uniform; smallest u
    dt_max: float = 0.1  # largest u

    def __post_init__(self) -> None:
        one_of("a_init", self.a_init, ["kimi_linear", "zero"])
        positive("dt_min", self.dt_min)
        positive("dt_max", self.dt_max)
        if self.dt_min > self.dt_max:
            raise ValueError(f"dt_min={self.dt_min}: must not exceed dt_max={self.dt_max}")


class Softplus(Decay):
    """One logit a channel; A [H] and dt_bias [H·K] are learned."""

    def __init__(self, settings: SoftplusSettings, heads: int, head_dim: int) -> None:
        super().__init__(settings, heads, head_dim)
        self.channels = head_dim
        self.A_log = nn.Parameter(torch.empty(heads))
        self.dt_bias = nn.Parameter(torch.empty(heads * head_dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial A and dt_bias; with the defaults the median half-life is ≈ 10 tokens."""
        if self.settings.a_init == "kimi_linear":
            self.A_log.uniform_(1, 16).log_()
        else:
            self.A_log.zero_()
        u = log_uniform_(self.dt_bias, self.settings.dt_min, self.settings.dt_max)
        self.dt_bias.copy_(inverse_softplus(u))

    def log_decay(self, z_BTHC: Tensor) -> Tensor:
        """z [B,T,H,K] → g ≤ 0."""
        z_BTHK = at_least_fp32(z_BTHC) + at_least_fp32(self.dt_bias).view(self.heads, self.head_dim)
        # Above the threshold torch returns z itself; 40 keeps that exact in fp64 too.
        return -at_least_fp32(self.A_log).exp()[:, None] * F.softplus(z_BTHK, threshold=40)

    def kernel_args(self, z_BTHC: Tensor) -> dict[str, Any]:
        """Raw logits and parameters: the kernel applies the gate."""
        return {"g": z_BTHC, "use_gate_in_kernel": True, "A_log": self.A_log, "dt_bias": self.dt_bias}
