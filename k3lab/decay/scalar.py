"""One decay for a whole head: g = −e^A · softplus(z + dt_bias), the same on all K channels.

With it the mixer is Gated DeltaNet (arXiv 2412.06464, Eq. 10). B batch, T time, H heads, K key dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from k3lab.config.checks import one_of, positive
from k3lab.decay.base import Decay, at_least_fp32, inverse_softplus, log_uniform_


@dataclass(frozen=True)
class ScalarSettings:
    """Settings of the decay a head."""

    name: str = "scalar"
    a_init: str = "kimi_linear"  # kimi_linear: e^A ~ U(1, 16) | zero: A = 0
    dt_min: float = 0.001  # dt_bias starts as softplus⁻¹(u), u log-uniform; smallest u
    dt_max: float = 0.1  # largest u

    def __post_init__(self) -> None:
        one_of("a_init", self.a_init, ["kimi_linear", "zero"])
        positive("dt_min", self.dt_min)
        positive("dt_max", self.dt_max)
        if self.dt_min > self.dt_max:
            raise ValueError(f"dt_min={self.dt_min}: must not exceed dt_max={self.dt_max}")


class Scalar(Decay):
    """One logit a head; A [H] and dt_bias [H] are learned."""

    channels = 1

    def __init__(self, settings: ScalarSettings, heads: int, head_dim: int) -> None:
        super().__init__(settings, heads, head_dim)
        self.A_log = nn.Parameter(torch.empty(heads))
        self.dt_bias = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial A and dt_bias."""
        if self.settings.a_init == "kimi_linear":
            self.A_log.uniform_(1, 16).log_()
        else:
            self.A_log.zero_()
        u = log_uniform_(self.dt_bias, self.settings.dt_min, self.settings.dt_max)
        self.dt_bias.copy_(inverse_softplus(u))

    def log_decay(self, z_BTHC: Tensor) -> Tensor:
        """z [B,T,H,1] → g [B,T,H,K] ≤ 0, an expanded view."""
        z_BTH1 = at_least_fp32(z_BTHC) + at_least_fp32(self.dt_bias)[:, None]
        g_BTH1 = -at_least_fp32(self.A_log).exp()[:, None] * F.softplus(z_BTH1, threshold=40)
        return g_BTH1.expand(*g_BTH1.shape[:-1], self.head_dim)
