"""What every token mixer offers: a causal map over time, a decoding cache, and its costs.

B batch, T new tokens, D hidden size, H heads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from k3lab.decay.base import Decay
from k3lab.mixer.documents import Documents
from k3lab.model_dims import ModelDims

CACHE_ELEMENT_BYTES = 2  # costs are quoted for bf16 key/value caches; recurrent states are always fp32


class Mixer(nn.Module, ABC):
    """Base of all mixers; ctor ``(settings, model, decay)``, where ``decay(heads, head_dim)`` makes one.

    Output at token t depends on tokens ≤ t alone. With a cache, ``forward`` treats its T ≥ 1 tokens as the
    continuation of those the cache has seen, and updates it in place. With documents, which exclude a cache, each
    gives what it would give alone.
    """

    def __init__(self, settings: Any, model: ModelDims, decay: Callable[[int, int], Decay]) -> None:
        super().__init__()
        self.settings = settings
        self.dims = model

    @abstractmethod
    def forward(self, x_BTD: Tensor, cache: Any = None, documents: Documents | None = None) -> Tensor:
        """x [B,T,D] → out [B,T,D], dtype of x (the autocast dtype under autocast)."""

    @abstractmethod
    def new_cache(self, batch: int, device: torch.device | str, dtype: torch.dtype) -> Any:
        """An empty decoding cache for ``batch`` sequences, filled by ``forward``."""

    @abstractmethod
    def flops_per_token(self, seq_len: int) -> int:
        """Forward FLOPs a token, averaged over ``seq_len`` tokens; a multiply-add counts as two."""

    def state_bytes(self) -> int:
        """Bytes of decoding state a sequence whose size does not grow with its length."""
        return 0

    def kv_bytes_per_token(self) -> int:
        """Bytes of decoding cache added by each token, in bf16."""
        return 0


def linear(inputs: int, outputs: int, std: float, bias: bool = False) -> nn.Linear:
    """A linear map with weights from N(0, std²) and zero bias."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
