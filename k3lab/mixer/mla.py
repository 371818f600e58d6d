"""Multi-head latent attention without positional encoding: keys and values are read from one small latent.

Source: DeepSeek-V2 (arXiv 2405.04434), §2.1, with the rotary part left unrotated as in Kimi Linear
(arXiv 2510.26692) and the output gate of Kimi K3 (arXiv 2607.24653).
B batch, T time, L tokens seen, D hidden size, H heads, N key dim of each head alone, P key dim shared by all heads,
R latent dim, V value dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from k3lab.config.checks import positive
from k3lab.decay.base import Decay
from k3lab.mixer.attention import attention_flops, causal_attention
from k3lab.mixer.base import CACHE_ELEMENT_BYTES, Mixer, linear
from k3lab.mixer.cache import TokenCache
from k3lab.mixer.documents import Documents
from k3lab.mixer.norm import RMSNorm
from k3lab.model_dims import ModelDims


@dataclass(frozen=True)
class MLASettings:
    """Settings of multi-head latent attention."""

    name: str = "mla"
    heads: int | None = None  # null: model.heads
    q_rank: int | None = None  # rank of the query projection; null: full rank
    kv_rank: int | None = None  # R, width of the latent; null: 4 · model.head_dim
    nope_dim: int | None = None  # N, key width of each head alone; null: model.head_dim
    shared_dim: int | None = None  # P, key width shared by all heads, unrotated; null: model.head_dim / 2
    value_dim: int | None = None  # V, width of values; null: model.head_dim
    output_gate: bool = True  # full-rank sigmoid gate on the output

    def __post_init__(self) -> None:
        for key in ("heads", "q_rank", "kv_rank", "nope_dim", "shared_dim", "value_dim"):
            positive(key, getattr(self, key))


class MLA(Mixer):
    """Queries and keys have N + P channels; the decoding cache holds R + P numbers a token."""

    def __init__(self, settings: MLASettings, model: ModelDims, decay: Callable[[int, int], Decay]) -> None:
        super().__init__(settings, model, decay)
        hidden, std = model.hidden_size, model.init_std
        self.heads = settings.heads or model.heads
        self.latent_dim = settings.kv_rank or 4 * model.head_dim
        self.nope_dim = settings.nope_dim or model.head_dim
        self.shared_dim = settings.shared_dim or max(1, model.head_dim // 2)
        self.value_dim = settings.value_dim or model.head_dim
        self.scale = (self.nope_dim + self.shared_dim) ** -0.5
        queries = self.heads * (self.nope_dim + self.shared_dim)

        self.q: nn.Module
        if settings.q_rank is None:
            self.q = linear(hidden, queries, std)
        else:
            self.q = nn.Sequential(
                linear(hidden, settings.q_rank, std),
                RMSNorm(settings.q_rank, model.eps),
                linear(settings.q_rank, queries, std),
            )
        self.kv_down = linear(hidden, self.latent_dim + self.shared_dim, std)
        self.kv_norm = RMSNorm(self.latent_dim, model.eps)
        self.kv_up = linear(self.latent_dim, self.heads * (self.nope_dim + self.value_dim), std)
        self.gate = linear(hidden, self.heads * self.value_dim, std) if settings.output_gate else None
        self.out = linear(self.heads * self.value_dim, hidden, std)

    def forward(self, x_BTD: Tensor, cache: TokenCache | None = None, documents: Documents | None = None) -> Tensor:
        """See `Mixer.forward`."""
        q_BTHx = self.q(x_BTD).unflatten(-1, (self.heads, self.nope_dim + self.shared_dim))
        c_BTR, p_BTP = self.kv_down(x_BTD).split([self.latent_dim, self.shared_dim], dim=-1)
        c_BTR = self.kv_norm(c_BTR)
        if cache is not None:
            seen = cache.append(torch.cat([c_BTR, p_BTP], dim=-1))
            c_BTR, p_BTP = seen.split([self.latent_dim, self.shared_dim], dim=-1)
        if cache is not None and x_BTD.shape[1] == 1:
            o_BTHV = self._attend_latent(q_BTHx, c_BTR, p_BTP)
        else:
            o_BTHV = self._attend_expanded(q_BTHx, c_BTR, p_BTP, documents)
        o_BTx = o_BTHV.flatten(2)
        if self.gate is not None:
            o_BTx = o_BTx * torch.sigmoid(self.gate(x_BTD))
        return self.out(o_BTx)

    def _attend_expanded(
        self, q_BTHx: Tensor, c_BLR: Tensor, p_BLP: Tensor, documents: Documents | None = None
    ) -> Tensor:
        """Expand the latent to keys and values of every head → o [B,T,H,V]."""
        kv_BLHx = self.kv_up(c_BLR).unflatten(-1, (self.heads, self.nope_dim + self.value_dim))
        n_BLHN, v_BLHV = kv_BLHx.split([self.nope_dim, self.value_dim], dim=-1)
        p_BLHP = p_BLP.unsqueeze(2).expand(-1, -1, self.heads, -1)
        return causal_attention(q_BTHx, torch.cat([n_BLHN, p_BLHP], dim=-1), v_BLHV, self.scale, documents)

    def _attend_latent(self, q_BTHx: Tensor, c_BLR: Tensor, p_BLP: Tensor) -> Tensor:
        """The same for one new token, with kv_up moved to the query and output sides, so that the latent itself
        serves as the one key and value of all heads."""
        up_HxR = self.kv_up.weight.unflatten(0, (self.heads, self.nope_dim + self.value_dim)).to(c_BLR.dtype)
        k_up_HNR, v_up_HVR = up_HxR.split([self.nope_dim, self.value_dim], dim=1)
        n_BTHN, p_BTHP = q_BTHx.split([self.nope_dim, self.shared_dim], dim=-1)
        q_BTHR = torch.einsum("bthn,hnr->bthr", n_BTHN, k_up_HNR)
        q_BTHx = torch.cat([q_BTHR, p_BTHP], dim=-1)
        k_BL1x = torch.cat([c_BLR, p_BLP], dim=-1).unsqueeze(2)
        o_BTHR = causal_attention(q_BTHx, k_BL1x, c_BLR.unsqueeze(2), self.scale)
        return torch.einsum("bthr,hvr->bthv", o_BTHR, v_up_HVR)

    def new_cache(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> TokenCache:
        """Latent and shared key of every token seen."""
        return TokenCache(batch, device, dtype)

    def flops_per_token(self, seq_len: int) -> int:
        """Projections and causal attention in the expanded form."""
        matrices = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        key_dim = self.nope_dim + self.shared_dim
        return 2 * matrices + attention_flops(seq_len, self.heads, key_dim, self.value_dim)

    def kv_bytes_per_token(self) -> int:
        """The latent and the shared key."""
        return CACHE_ELEMENT_BYTES * (self.latent_dim + self.shared_dim)
