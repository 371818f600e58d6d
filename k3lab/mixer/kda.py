"""Kimi Delta Attention: a linear-time memory a head, written by the delta rule and decayed channel by channel.

Source: Kimi Linear (arXiv 2510.26692), §3; Kimi K3 (arXiv 2607.24653), Eq. 4–6. With ``decay=scalar`` this is
Gated DeltaNet, with ``decay=none`` DeltaNet.
B batch, T time, D hidden size, H query/key heads, G value heads, K key dim, V value dim, C decay logits a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from k3lab.config.checks import divides, in_range, one_of, positive
from k3lab.decay.base import Decay
from k3lab.mixer.base import CACHE_ELEMENT_BYTES, Mixer, linear
from k3lab.mixer.norm import RMSNorm
from k3lab.mixer.short_conv import ShortConv
from k3lab.model_dims import ModelDims
from k3lab_kernels.kda import chunk_kda, fused_recurrent_kda


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


class DecayLogit(nn.Module):
    """x [B,T,D] → z [B,T,G,C] through a bottleneck, or directly where that is smaller; C = 0 has no weights."""

    def __init__(self, hidden: int, rank: int, heads: int, channels: int, std: float) -> None:
        super().__init__()
        self.heads = heads
        self.channels = channels
        self.down: nn.Linear | None = None
        self.up: nn.Linear | None = None
        outputs = heads * channels
        if outputs > rank:
            self.down = linear(hidden, rank, std)
        if outputs > 0:
            self.up = linear(hidden if self.down is None else rank, outputs, std)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Logits before dt_bias, in the dtype of the linear maps."""
        if self.up is None:
            return x_BTD.new_empty(*x_BTD.shape[:2], self.heads, 0)
        z = self.up(x_BTD if self.down is None else self.down(x_BTD))
        return z.view(*x_BTD.shape[:2], self.heads, self.channels)


@dataclass
class KDACache:
    """What decoding carries on: the newest inputs of the convolutions and the memory S [B,G,K,V]."""

    q_tail: Tensor | None = None
    k_tail: Tensor | None = None
    v_tail: Tensor | None = None
    state: Tensor | None = None


class KDA(Mixer):
    """S ← diag(e^g) S; S ← S + β k (v − Sᵀk)ᵀ; o = K^-½ Sᵀq, then head-wise RMSNorm and a sigmoid gate."""

    def __init__(self, settings: KDASettings, model: ModelDims, decay: Callable[[int, int], Decay]) -> None:
        super().__init__(settings, model, decay)
        hidden, std = model.hidden_size, model.init_std
        self.heads = settings.heads or model.heads
        self.value_heads = settings.value_heads or self.heads
        self.key_dim = settings.head_dim or model.head_dim
        self.value_dim = settings.value_head_dim or self.key_dim
        # the squares of a chunk are most of the work of narrow heads, the state is that of wide ones
        self.chunk = settings.chunk or (32 if self.key_dim <= 48 else 64)
        keys, values = self.heads * self.key_dim, self.value_heads * self.value_dim

        self.q = linear(hidden, keys, std)
        self.k = linear(hidden, keys, std)
        self.v = linear(hidden, values, std)
        self.q_conv = ShortConv(keys, settings.conv)
        self.k_conv = ShortConv(keys, settings.conv)
        self.v_conv = ShortConv(values, settings.conv)
        self.decay = decay(self.value_heads, self.key_dim)
        rank = settings.decay_rank or self.key_dim
        self.decay_logit = DecayLogit(hidden, rank, self.value_heads, self.decay.channels, std)
        self.beta = linear(hidden, self.value_heads, std)
        self.norm = RMSNorm(self.value_dim, model.eps)
        self.gate: nn.Module | None = None
        if settings.output_gate == "full":
            self.gate = linear(hidden, values, std)
        elif settings.output_gate == "low_rank":
            narrow = settings.gate_rank or self.value_dim
            self.gate = nn.Sequential(linear(hidden, narrow, std), linear(narrow, values, std))
        self.out = linear(values, hidden, std)

    def forward(self, x_BTD: Tensor, cache: KDACache | None = None) -> Tensor:
        """See `Mixer.forward`; the cached state is fp32 (fp64 for fp64)."""
        past = cache or KDACache()
        q_BTx, k_BTx, v_BTx = self.q(x_BTD), self.k(x_BTD), self.v(x_BTD)
        arguments = {
            "q": self.q_conv(q_BTx, past.q_tail).unflatten(-1, (self.heads, self.key_dim)),
            "k": self.k_conv(k_BTx, past.k_tail).unflatten(-1, (self.heads, self.key_dim)),
            "v": self.v_conv(v_BTx, past.v_tail).unflatten(-1, (self.value_heads, self.value_dim)),
            "beta": self.beta(x_BTD),
            "use_qk_l2norm_in_kernel": True,
            "use_beta_sigmoid_in_kernel": True,
            "allow_neg_eigval": self.settings.negative_eigenvalues,
            "chunk_size": self.chunk,
            **self.decay.kernel_args(self.decay_logit(x_BTD)),
        }
        if cache is None:
            o_BTGV, _ = chunk_kda(**arguments)
        else:
            kernel = fused_recurrent_kda if x_BTD.shape[1] == 1 else chunk_kda
            o_BTGV, state = kernel(**arguments, initial_state=cache.state, output_final_state=True)
            cache.q_tail = self.q_conv.next_tail(q_BTx, cache.q_tail)
            cache.k_tail = self.k_conv.next_tail(k_BTx, cache.k_tail)
            cache.v_tail = self.v_conv.next_tail(v_BTx, cache.v_tail)
            cache.state = state
        return self.out(self._gated(o_BTGV, x_BTD))

    def _gated(self, o_BTGV: Tensor, x_BTD: Tensor) -> Tensor:
        o_BTx = self.norm(o_BTGV).flatten(2)
        return o_BTx if self.gate is None else o_BTx * torch.sigmoid(self.gate(x_BTD))

    def new_cache(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> KDACache:
        """Empty; the first forward fills it, on its own device."""
        return KDACache()

    def flops_per_token(self, seq_len: int) -> int:
        """Projections, convolutions, and the chunk form with its triangular products counted half."""
        key_dim, value_dim = self.key_dim, self.value_dim
        taps = sum(c.weight.numel() for c in (self.q_conv, self.k_conv, self.v_conv))
        matrices = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        within = self.chunk * (3 * key_dim + 2 * value_dim) + self.chunk**2 // 3
        across = 6 * key_dim * value_dim
        return 2 * (matrices + taps) + self.value_heads * (within + across)

    def state_bytes(self) -> int:
        """The fp32 memory and the bf16 tails of the convolutions."""
        memory = 4 * self.value_heads * self.key_dim * self.value_dim
        channels = 2 * self.heads * self.key_dim + self.value_heads * self.value_dim
        return memory + CACHE_ELEMENT_BYTES * (self.settings.conv - 1) * channels
