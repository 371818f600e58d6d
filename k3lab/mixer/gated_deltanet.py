"""Gated DeltaNet: the delta rule under one decay a head (arXiv 2412.06464, Eq. 10), a rival of KDA.

It has KDA's projections and ``decay=scalar``'s rule as its own, so that the two differ in how finely the memory
forgets and in nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from k3lab.config.checks import divides, in_range, one_of, positive
from k3lab.decay.base import Decay
from k3lab.decay.scalar import Scalar, ScalarSettings
from k3lab.mixer.delta_rule import DeltaRule
from k3lab.model_dims import ModelDims


@dataclass(frozen=True)
class GatedDeltaNetSettings:
    """Settings of Gated DeltaNet; the last three are those of its decay."""

    name: str = "gated_deltanet"
    heads: int | None = None  # query and key heads; null: model.heads
    value_heads: int | None = None  # value heads, a multiple of heads; null: heads
    head_dim: int | None = None  # K, width of queries and keys; null: model.head_dim
    value_head_dim: int | None = None  # V, width of values; null: head_dim
    conv: int = 4  # taps of the causal convolutions on q, k and v; 1: a scaling
    output_gate: str = "full"  # full | low_rank | none
    gate_rank: int | None = None  # rank of the low_rank output gate; null: value_head_dim
    negative_eigenvalues: bool = False  # β in (0, 2) instead of (0, 1)
    chunk: int | None = None  # tokens a chunk of the kernel, 32 or 64; null: 32 for K up to 48, else 64
    a_init: str = "kimi_linear"  # kimi_linear: e^A ~ U(1, 16) | zero: A = 0
    dt_min: float = 0.001  # dt_bias starts as softplus⁻¹(u), u log-uniform; smallest u
    dt_max: float = 0.1  # largest u

    def __post_init__(self) -> None:
        for key in ("heads", "value_heads", "head_dim", "value_head_dim", "gate_rank", "dt_min", "dt_max"):
            positive(key, getattr(self, key))
        in_range("conv", self.conv, 1, 16)
        one_of("output_gate", self.output_gate, ["full", "low_rank", "none"])
        one_of("a_init", self.a_init, ["kimi_linear", "zero"])
        if self.chunk not in (None, 32, 64):
            raise ValueError(f"chunk={self.chunk}: must be 32 or 64, or null")
        if self.dt_min > self.dt_max:
            raise ValueError(f"dt_min={self.dt_min}: must not exceed dt_max={self.dt_max}")

    def check(self, config: Any) -> None:
        """The value heads divide evenly over the heads."""
        heads = self.heads or config.model.heads
        divides("mixer.gated_deltanet.value_heads", self.value_heads or heads, "heads", heads)


class GatedDeltaNet(DeltaRule):
    """The delta rule under a decay of its own, whatever ``decay=`` selects."""

    def __init__(self, settings: GatedDeltaNetSettings, model: ModelDims, decay: Callable[[int, int], Decay]) -> None:
        own = ScalarSettings(a_init=settings.a_init, dt_min=settings.dt_min, dt_max=settings.dt_max)
        super().__init__(settings, model, lambda heads, head_dim: Scalar(own, heads, head_dim))
