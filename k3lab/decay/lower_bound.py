"""Decay with a floor: g = g_min · σ(e^A · (z + dt_bias)), never below g_min nats a step.

Source: Kimi K3 (arXiv 2607.24653), Eq. 5. The floor is what lets every causal tile of the chunk form be two
plain matmul operands: 2^(γ_i − γ_j) factors inside 16 rows without leaving the range of fp32 or bf16.
B batch, T time, H heads, K key dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from k3lab.config.checks import one_of, positive
from k3lab.decay.base import Decay, at_least_fp32, inverse_softplus, log_uniform_


@dataclass(frozen=True)
class LowerBoundSettings:
    """Settings of the bounded decay."""

    name: str = "lower_bound"
    g_min: float = -5.0  # nats a step, in [-5.9, 0)
    learn_a: bool = True  # one steepness e^A a head; false: no A, the gate is g_min · σ(z + dt_bias)
    a_init: str = "zero"  # zero: A = 0 | kimi_linear: e^A ~ U(1, 16), made for softplus
    dt_bias_init: str = "log_uniform"  # log_uniform: softplus⁻¹(u), u from [dt_min, dt_max] | zero
    dt_min: float = 0.001  # smallest u
    dt_max: float = 0.1  # largest u

    def __post_init__(self) -> None:
        if not -5.9 <= self.g_min < 0:
            raise ValueError(
                f"g_min={self.g_min}: must lie in [-5.9, 0), because a causal tile of 16 rows spans "
                "15·g_min nats and its factors overflow below -5.9; decay=softplus has no bound"
            )
        one_of("a_init", self.a_init, ["zero", "kimi_linear"])
        one_of("dt_bias_init", self.dt_bias_init, ["log_uniform", "zero"])
        positive("dt_min", self.dt_min)
        positive("dt_max", self.dt_max)
        if self.dt_min > self.dt_max:
            raise ValueError(f"dt_min={self.dt_min}: must not exceed dt_max={self.dt_max}")
        if not self.learn_a and self.a_init != "zero":
            raise ValueError(f"a_init={self.a_init}: must be zero when learn_a=false")

    def initial_decays(self) -> list[float]:
        """|g| at z = 0 over a grid of the initial distribution of A and dt_bias."""
        grid = [(i + 0.5) / 64 for i in range(64)]
        steepness = [1 + 15 * x for x in grid] if self.a_init == "kimi_linear" else [1.0]
        ratio = self.dt_max / self.dt_min
        biases = [math.log(math.expm1(self.dt_min * ratio**x)) for x in grid]
        if self.dt_bias_init == "zero":
            biases = [0.0]
        return [-self.g_min / (1 + math.exp(min(-a * b, 700.0))) for a in steepness for b in biases]

    def warnings(self, config: Any) -> list[str]:
        """Say so when the initial gate never forgets, or forgets within a token."""
        decays = sorted(self.initial_decays())
        dead = sum(g < 1e-6 for g in decays) / len(decays)
        median = decays[len(decays) // 2]
        init = f"decay.a_init={self.a_init} with decay.dt_bias_init={self.dt_bias_init}"
        if dead > 0.05:
            return [f"{init}: dead gate, {dead:.0%} of channels start with |g| < 1e-6 and never forget"]
        if median > math.log(2):
            half_life = math.log(2) / median
            return [f"{init}: the median channel starts with g = {-median:.2g}, a half-life of {half_life:.2g} token"]
        return []


class LowerBound(Decay):
    """One logit a channel; A [H] and dt_bias [H·K] are learned."""

    def __init__(self, settings: LowerBoundSettings, heads: int, head_dim: int) -> None:
        super().__init__(settings, heads, head_dim)
        self.bound = settings.g_min
        self.channels = head_dim
        self.A_log = nn.Parameter(torch.empty(heads)) if settings.learn_a else None
        self.dt_bias = nn.Parameter(torch.empty(heads * head_dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial A and dt_bias; with the defaults g starts in [−0.48, −0.005]."""
        if self.A_log is not None:
            if self.settings.a_init == "kimi_linear":
                self.A_log.uniform_(1, 16).log_()
            else:
                self.A_log.zero_()
        if self.settings.dt_bias_init == "zero":
            self.dt_bias.zero_()
        else:
            u = log_uniform_(self.dt_bias, self.settings.dt_min, self.settings.dt_max)
            self.dt_bias.copy_(inverse_softplus(u))

    def log_decay(self, z_BTHC: Tensor) -> Tensor:
        """z [B,T,H,K] → g in (g_min, 0)."""
        z_BTHK = at_least_fp32(z_BTHC) + at_least_fp32(self.dt_bias).view(self.heads, self.head_dim)
        if self.A_log is not None:
            z_BTHK = at_least_fp32(self.A_log).exp()[:, None] * z_BTHK
        return self.settings.g_min * torch.sigmoid(z_BTHK)

    def kernel_args(self, z_BTHC: Tensor) -> dict[str, Any]:
        """Raw logits and parameters: the kernel applies the gate."""
        return {
            "g": z_BTHC,
            "use_gate_in_kernel": True,
            "safe_gate": True,
            "lower_bound": self.bound,
            "A_log": self.A_log,
            "dt_bias": self.dt_bias,
        }
