"""Kimi Delta Attention: a linear-time memory a head, written by the delta rule and decayed channel by channel.

Source: Kimi Linear (arXiv 2510.26692), §3; Kimi K3 (arXiv 2607.24653), Eq. 4–6. With ``decay=scalar`` this is
Gated DeltaNet, with ``decay=none`` DeltaNet.
K key dim, V value dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from k3lab.config.checks import divides, in_range, one_of, positive
from k3lab.decay.base import Decay
from k3lab.mixer.delta_rule import DeltaRule
from k3lab.model_dims import ModelDims


@dataclass(frozen=True)
class KDASettings:
    """Settings of Kimi Delta Attention."""

    name: str = "kda"
    heads: int | None = None  # query and key heads; null: model.heads
    value_heads: int | None = None  # value heads, a multiple of heads; null: heads
    head_dim: int | None = None  # K, width of queries and keys; null: model.head_dim
    value_head_dim: int | None = None  # V, width of values; null: head_dim
    conv: int = 4  # taps of the causal convolutions on q, k and v; 1: a scaling
    decay_rank: int | None = None  # rank of the map to the decay logits; null: head_dim
    output_gate: str = "full"  # full | low_rank | none
    gate_rank: int | None = None  # rank of the low_rank output gate; null: value_head_dim
    negative_eigenvalues: bool = False  # β in (0, 2) instead of (0, 1)
    chunk: int | None = None  # tokens a chunk of the kernel, 32 or 64; null: 32 for K up to 48, else 64

    def __post_init__(self) -> None:
        for key in ("heads", "value_heads", "head_dim", "value_head_dim", "decay_rank", "gate_rank"):
            positive(key, getattr(self, key))
        in_range("conv", self.conv, 1, 16)
        one_of("output_gate", self.output_gate, ["full", "low_rank", "none"])
        if self.chunk not in (None, 32, 64):
            raise ValueError(f"chunk={self.chunk}: must be 32 or 64, or null")

    def check(self, config: Any) -> None:
        """The value heads divide evenly over the heads."""
        heads = self.heads or config.model.heads
        divides("mixer.kda.value_heads", self.value_heads or heads, "heads", heads)


class KDA(DeltaRule):
    """The delta rule under the decay that ``decay=`` selects."""

    def __init__(self, settings: KDASettings, model: ModelDims, decay: Callable[[int, int], Decay]) -> None:
        super().__init__(settings, model, decay, settings.decay_rank)
