"""What every feed-forward layer offers: a map of each token, its routing if it has experts, and its costs.

B batch, T time, D hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from k3lab.model_dims import ModelDims
from k3lab.router.base import Router, Routing

RouterFactory = Callable[[int, int, int], Router]  # (hidden size, experts, experts a token) → router


class FFN(nn.Module, ABC):
    """Base of all feed-forward layers; ctor ``(settings, dims, router)``, where a dense layer ignores router.

    A settings class has ``at_layer(index)``: the settings to build that decoder layer from, by default its
    own; a mixture of experts returns those of a dense layer for its leading layers.
    """

    router: Router | None

    def __init__(self, settings: Any, dims: ModelDims, router: RouterFactory | None = None) -> None:
        super().__init__()
        self.settings = settings
        self.dims = dims
        self.router = None

    @abstractmethod
    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> tuple[Tensor, Routing | None]:
        """x [B,T,D] → (y [B,T,D], routing of the B·T tokens); ``mask_BT`` (bool) is False at padding."""

    @abstractmethod
    def flops_per_token(self) -> int:
        """Forward FLOPs a token; a multiply-add counts as two."""

    def parameters_active(self) -> int:
        """Parameters that one token meets."""
        return sum(p.numel() for p in self.parameters())


def linear(inputs: int, outputs: int, std: float) -> nn.Linear:
    """A linear map without bias and with weights from N(0, std²)."""
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=std)
    return layer
