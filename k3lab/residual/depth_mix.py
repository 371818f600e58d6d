"""Attention over depth: the part that full and block attention residuals share.

A topology says which tensors are a sublayer's sources; this base holds the pseudo-queries and key norms and
does the mixing of "Attention Residuals" (arXiv 2603.15031):

    h_l = Σ_i softmax_i(w_l · RMSNorm_l(v_i)) v_i

with a learned w_l a sublayer, a key-norm weight of its own, no 1/√D, values as they are, everything inside
in fp32 with one final cast. A mix over one source is that source, so the first sublayer needs no query and
has none: it reads the plain norm of the embedding.

B batch, T time, D hidden size, L sublayers, N sources.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from k3lab.residual.base import Residual, Stream
from k3lab_kernels.attnres import fused_attnres


class DepthMix(nn.Module):
    """The learned part of one mix: pseudo-query [D], zero at the start, and key-norm weight [D], one."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(hidden_size))
        self.key_weight = nn.Parameter(torch.ones(hidden_size))


class DepthAttention(Residual):
    """Base of the attention-residual topologies; they define ``start``, ``write`` and ``sources``.

    All-zero queries weigh N sources by exactly 1/N: h is their mean. Adds 2·D parameters to each sublayer but
    the first, and to the output: L·2·D. Neither kind is a matrix, so neither is decayed.
    """

    def __init__(self, settings: Any, sublayers: int, hidden_size: int, eps: float) -> None:
        super().__init__(settings, sublayers, hidden_size, eps)
        self.mixes = nn.ModuleList(DepthMix(hidden_size) for _ in range(sublayers))  # of sublayers 1 … L

    @abstractmethod
    def sources(self, stream: Stream, i: int) -> tuple[Tensor, ...]:
        """What sublayer i (i = L: the output) attends to, oldest first: N tensors [B,T,D]."""

    def mixture(self, stream: Stream, i: int) -> Tensor:
        """The weighted sum of the sources of sublayer i, [B,T,D]."""
        sources = self.sources(stream, i)
        return sources[0] if len(sources) == 1 else self._attend(sources, i)

    def read(self, stream: Stream, i: int) -> Tensor:
        """The normalised mix, [B,T,D]; the op fuses the norm, so only the sources stay for backward."""
        sources, norm = self.sources(stream, i), self.norm(i)
        return norm(sources[0]) if len(sources) == 1 else self._attend(sources, i, norm.weight)

    def _attend(self, sources: tuple[Tensor, ...], i: int, norm_weight: Tensor | None = None) -> Tensor:
        mix = self.mix(i)
        mixed = fused_attnres(mix.query, sources, mix.key_weight, norm_weight, rms_eps=self.eps)
        assert isinstance(mixed, Tensor)
        return mixed

    def source_weights(self, stream: Stream, i: int) -> Tensor:
        """The softmax over the sources of sublayer i, [N,B,T]."""
        sources = self.sources(stream, i)
        if len(sources) == 1:
            dtype = torch.float64 if sources[0].dtype == torch.float64 else torch.float32
            return torch.ones(1, *sources[0].shape[:-1], dtype=dtype, device=sources[0].device)
        mix = self.mix(i)
        return fused_attnres(mix.query, sources, mix.key_weight, rms_eps=self.eps, return_weights=True)[1]

    def mix(self, i: int) -> DepthMix:
        """The learned part of the mix that sublayer i ≥ 1 (i = L: the output) reads."""
        assert i >= 1, "the first sublayer has no mix"
        mix = self.mixes[i - 1]
        assert isinstance(mix, DepthMix)
        return mix
