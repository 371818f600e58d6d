"""What recurrent mixers share: projections, short convolutions, a decay, an output norm and gate, and the cache.

They differ in how a head's memory S [K,V] is written and read between these: `RecurrentMixer.remember`.
B batch, T time, D hidden size, H query/key heads, G value heads, K key dim, V value dim, C decay logits a head.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from k3lab.decay.base import Decay
from k3lab.mixer.base import CACHE_ELEMENT_BYTES, Mixer, linear
from k3lab.mixer.documents import Documents
from k3lab.mixer.norm import RMSNorm
from k3lab.mixer.short_conv import ShortConv
from k3lab.model_dims import ModelDims


class DecayLogit(nn.Module):
    """x [B,T,D] → z [B,T,G,C] through a bottleneck, or directly where C = 1 or that is smaller; C = 0: no weights."""

    def __init__(self, hidden: int, rank: int, heads: int, channels: int, std: float) -> None:
        super().__init__()
        self.heads = heads
        self.channels = channels
        self.down: nn.Linear | None = None
        self.up: nn.Linear | None = None
        outputs = heads * channels
        if channels > 1 and outputs > rank:
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
class RecurrentCache:
    """What decoding carries on: the newest inputs of the convolutions and the memory S [B,G,K,V]."""

    q_tail: Tensor | None = None
    k_tail: Tensor | None = None
    v_tail: Tensor | None = None
    state: Tensor | None = None


class RecurrentMixer(Mixer):
    """q, k, v through convolutions and SiLU; a memory a value head; head-wise RMSNorm and a sigmoid gate.

    Its settings have heads, value_heads, head_dim, value_head_dim, conv, output_gate, gate_rank and chunk.
    """

    def __init__(
        self, settings: Any, model: ModelDims, decay: Callable[[int, int], Decay], decay_rank: int | None = None
    ) -> None:
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
        rank = decay_rank or self.key_dim
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

    @abstractmethod
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
        """Write and read the memory, from raw q, k, logits of β and of the decay → o [B,T,G,V] and the new state.

        Starts from the cache's state; without a cache the new state may be None.
        """

    def forward(self, x_BTD: Tensor, cache: RecurrentCache | None = None, documents: Documents | None = None) -> Tensor:
        """See `Mixer.forward`; the cached state is fp32 (fp64 for fp64)."""
        past = cache or RecurrentCache()
        q_BTx, k_BTx, v_BTx = self.q(x_BTD), self.k(x_BTD), self.v(x_BTD)
        o_BTGV, state = self.remember(
            self.q_conv(q_BTx, past.q_tail, documents).unflatten(-1, (self.heads, self.key_dim)),
            self.k_conv(k_BTx, past.k_tail, documents).unflatten(-1, (self.heads, self.key_dim)),
            self.v_conv(v_BTx, past.v_tail, documents).unflatten(-1, (self.value_heads, self.value_dim)),
            self.beta(x_BTD),
            self.decay_logit(x_BTD),
            cache,
            documents,
        )
        if cache is not None:
            cache.q_tail = self.q_conv.next_tail(q_BTx, cache.q_tail)
            cache.k_tail = self.k_conv.next_tail(k_BTx, cache.k_tail)
            cache.v_tail = self.v_conv.next_tail(v_BTx, cache.v_tail)
            cache.state = state
        return self.out(self._gated(o_BTGV, x_BTD))

    def _gated(self, o_BTGV: Tensor, x_BTD: Tensor) -> Tensor:
        o_BTx = self.norm(o_BTGV).flatten(2)
        return o_BTx if self.gate is None else o_BTx * torch.sigmoid(self.gate(x_BTD))

    def new_cache(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> RecurrentCache:
        """Empty; the first forward fills it, on its own device."""
        return RecurrentCache()

    @abstractmethod
    def memory_flops_per_token(self) -> int:
        """FLOPs a token and value head of writing and reading the memory."""

    def flops_per_token(self, seq_len: int) -> int:
        """Projections, convolutions, and the chunk form with its triangular products counted half."""
        taps = sum(c.weight.numel() for c in (self.q_conv, self.k_conv, self.v_conv))
        matrices = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        return 2 * (matrices + taps) + self.value_heads * self.memory_flops_per_token()

    def state_bytes(self) -> int:
        """The fp32 memory and the bf16 tails of the convolutions."""
        memory = 4 * self.value_heads * self.key_dim * self.value_dim
        channels = 2 * self.heads * self.key_dim + self.value_heads * self.value_dim
        return memory + CACHE_ELEMENT_BYTES * (self.settings.conv - 1) * channels
