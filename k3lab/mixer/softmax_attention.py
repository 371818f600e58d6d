"""Multi-head softmax attention (arXiv 1706.03762), with or without rotary positions (arXiv 2104.09864, Eq. 34).

B batch, T time, L tokens seen, D hidden size, H heads, K head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from k3lab.config.checks import positive
from k3lab.decay.base import Decay
from k3lab.mixer.attention import attention_flops, causal_attention
from k3lab.mixer.base import CACHE_ELEMENT_BYTES, Mixer, linear
from k3lab.mixer.cache import TokenCache
from k3lab.mixer.documents import Documents
from k3lab.model_dims import ModelDims


@dataclass(frozen=True)
class SoftmaxAttentionSettings:
    """Settings of plain attention."""

    name: str = "softmax_attention"
    heads: int | None = None  # null: model.heads
    head_dim: int | None = None  # K, width of queries, keys and values; null: model.head_dim
    rope: bool = True  # rotate queries and keys by their position; false: no positions at all
    rope_base: float = 10000.0  # slowest wavelength is 2π · rope_base tokens

    def __post_init__(self) -> None:
        for key in ("heads", "head_dim", "rope_base"):
            positive(key, getattr(self, key))

    def check(self, config: Any) -> None:
        """Rotation acts on pairs of channels."""
        width = self.head_dim or config.model.head_dim
        if self.rope and width % 2:
            raise ValueError(
                f"mixer.softmax_attention.head_dim={width}: must be even when rope=true rotates pairs of channels"
            )


class SoftmaxAttention(Mixer):
    """softmax(q kᵀ / √K) v over all tokens up to the query's own."""

    def __init__(
        self, settings: SoftmaxAttentionSettings, model: ModelDims, decay: Callable[[int, int], Decay]
    ) -> None:
        super().__init__(settings, model, decay)
        hidden, std = model.hidden_size, model.init_std
        self.heads = settings.heads or model.heads
        self.head_dim = settings.head_dim or model.head_dim
        inner = self.heads * self.head_dim
        self.q = linear(hidden, inner, std)
        self.k = linear(hidden, inner, std)
        self.v = linear(hidden, inner, std)
        self.out = linear(inner, hidden, std)

    def forward(
        self,
        x_BTD: Tensor,
        cache: tuple[TokenCache, TokenCache] | None = None,
        documents: Documents | None = None,
    ) -> Tensor:
        """See `Mixer.forward`; positions count on over documents, since scores see only their differences."""
        q_BTHK, k_BTHK, v_BTHK = (
            project(x_BTD).unflatten(-1, (self.heads, self.head_dim)) for project in (self.q, self.k, self.v)
        )
        if self.settings.rope:
            first = 0 if cache is None else cache[0].length
            cos_TK, sin_TK = rotation(first, x_BTD.shape[1], self.head_dim, self.settings.rope_base, q_BTHK)
            q_BTHK, k_BTHK = rotate(q_BTHK, cos_TK, sin_TK), rotate(k_BTHK, cos_TK, sin_TK)
        if cache is not None:
            k_BTHK, v_BTHK = cache[0].append(k_BTHK), cache[1].append(v_BTHK)
        o_BTHK = causal_attention(q_BTHK, k_BTHK, v_BTHK, self.head_dim**-0.5, documents)
        return self.out(o_BTHK.flatten(2))

    def new_cache(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> tuple[TokenCache, TokenCache]:
        """Rotated keys, and values, of every token seen."""
        return TokenCache(batch, device, dtype), TokenCache(batch, device, dtype)

    def flops_per_token(self, seq_len: int) -> int:
        """Projections and causal attention."""
        matrices = sum(m.weight.numel() for m in (self.q, self.k, self.v, self.out))
        return 2 * matrices + attention_flops(seq_len, self.heads, self.head_dim, self.head_dim)

    def kv_bytes_per_token(self) -> int:
        """Keys and values of all heads."""
        return CACHE_ELEMENT_BYTES * 2 * self.heads * self.head_dim


def rotation(first: int, time: int, width: int, base: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of positions first … first+time−1, [T,K/2] each, in fp32 (fp64 for fp64)."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    position_T = torch.arange(first, first + time, device=like.device, dtype=dtype)
    exponent_K = torch.arange(0, width, 2, device=like.device, dtype=dtype) / width
    angle_TK = position_T[:, None] * (base**-exponent_K)[None, :]
    return angle_TK.cos(), angle_TK.sin()


def rotate(x_BTHK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """Turn the pairs (x_i, x_{i+K/2}) by their angles; dtype of x."""
    a, b = x_BTHK.to(cos_TK.dtype).chunk(2, dim=-1)
    cos, sin = cos_TK[:, None, :], sin_TK[:, None, :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x_BTHK.dtype)
