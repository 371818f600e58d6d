"""Mamba-2's memory: one decay a head and no delta rule, so that nothing written is ever corrected.

`S ← e^g S + β k vᵀ; o = K^-½ Sᵀq`, as Kimi Linear's comparison writes it (arXiv 2510.26692, §2; the original is
arXiv 2405.21060, where the step of the decay also weighs what is written). With KDA's projections, q and k of
length 1 and ``decay=scalar``'s rule, it differs from Gated DeltaNet by the missing delta rule and in nothing else.
B batch, T time, H query/key heads, G value heads, K key dim, V value dim, C decay logits a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from k3lab.config.checks import divides, in_range, one_of, positive
from k3lab.decay.base import Decay
from k3lab.decay.scalar import Scalar, ScalarSettings
from k3lab.mixer.documents import Documents
from k3lab.mixer.linear_attention import chunk_linear_attention, recurrent_linear_attention
from k3lab.mixer.recurrent import RecurrentCache, RecurrentMixer
from k3lab.model_dims import ModelDims

L2_EPS = 1e-6  # as in KDA's kernels


@dataclass(frozen=True)
class Mamba2Settings:
    """Settings of Mamba-2's memory; the last three are those of its decay."""

    name: str = "mamba2"
    heads: int | None = None  # query and key heads; null: model.heads
    value_heads: int | None = None  # value heads, a multiple of heads; null: heads
    head_dim: int | None = None  # K, width of queries and keys; null: model.head_dim
    value_head_dim: int | None = None  # V, width of values; null: head_dim
    conv: int = 4  # taps of the causal convolutions on q, k and v; 1: a scaling
    output_gate: str = "full"  # full | low_rank | none
    gate_rank: int | None = None  # rank of the low_rank output gate; null: value_head_dim
    chunk: int | None = None  # tokens a chunk; null: 32 for K up to 48, else 64
    a_init: str = "kimi_linear"  # kimi_linear: e^A ~ U(1, 16) | zero: A = 0
    dt_min: float = 0.001  # dt_bias starts as softplus⁻¹(u), u log-uniform; smallest u
    dt_max: float = 0.1  # largest u

    def __post_init__(self) -> None:
        for key in ("heads", "value_heads", "head_dim", "value_head_dim", "gate_rank", "dt_min", "dt_max"):
            positive(key, getattr(self, key))
        in_range("conv", self.conv, 1, 16)
        in_range("chunk", self.chunk, 1, 256)
        one_of("output_gate", self.output_gate, ["full", "low_rank", "none"])
        one_of("a_init", self.a_init, ["kimi_linear", "zero"])
        if self.dt_min > self.dt_max:
            raise ValueError(f"dt_min={self.dt_min}: must not exceed dt_max={self.dt_max}")

    def check(self, config: Any) -> None:
        """The value heads divide evenly over the heads."""
        heads = self.heads or config.model.heads
        divides("mixer.mamba2.value_heads", self.value_heads or heads, "heads", heads)


class Mamba2(RecurrentMixer):
    """A linear memory under a decay of its own, whatever ``decay=`` selects."""

    def __init__(self, settings: Mamba2Settings, model: ModelDims, decay: Callable[[int, int], Decay]) -> None:
        own = ScalarSettings(a_init=settings.a_init, dt_min=settings.dt_min, dt_max=settings.dt_max)
        super().__init__(settings, model, lambda heads, head_dim: Scalar(own, heads, head_dim))

    def remember(
        self,
        q_BTHK: Tensor,
        k_BTHK: Tensor,
        v_BTGV: Tensor,
        beta_BTG: Tensor,
        z_BTGC: Tensor,
        cache: RecurrentCache | None,
        documents: Documents | None,
    ) -> tuple[Tensor, Tensor | None]:
        """See `RecurrentMixer.remember`; at the start of a document everything is forgotten."""
        q_BTGK, k_BTGK = (self._unit(x) for x in (q_BTHK, k_BTHK))
        k_BTGK = k_BTGK * torch.sigmoid(beta_BTG.to(k_BTGK.dtype)).unsqueeze(-1)
        g_BTG = self.decay.log_decay(z_BTGC)[..., 0]
        if documents is not None:
            g_BTG = g_BTG.masked_fill(documents.starts_BT().unsqueeze(-1), -torch.inf)
        arguments = (q_BTGK, k_BTGK, v_BTGV, g_BTG, self.key_dim**-0.5, None if cache is None else cache.state)
        if cache is not None and v_BTGV.shape[1] == 1:
            return recurrent_linear_attention(*arguments)
        return chunk_linear_attention(*arguments, self.chunk)

    def _unit(self, x_BTHK: Tensor) -> Tensor:
        """Vectors of length 1 in fp32 (fp64 for fp64), one a value head."""
        x_BTHK = x_BTHK.to(torch.promote_types(x_BTHK.dtype, torch.float32)).contiguous()
        x_BTHK = x_BTHK * (x_BTHK.square().sum(-1, keepdim=True) + L2_EPS).rsqrt()
        return x_BTHK.repeat_interleave(self.value_heads // self.heads, dim=2)

    def memory_flops_per_token(self) -> int:
        """Scores and values in a chunk, and the memory read and written."""
        return self.chunk * (self.key_dim + self.value_dim) + 4 * self.key_dim * self.value_dim
