"""The dense SwiGLU layer: y = W_out [silu(W_gate x) · W_up x] (Shazeer, arXiv 2002.05202).

B batch, T time, D hidden size, F hidden width of the layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from k3lab.config.checks import positive
from k3lab.ffn.base import FFN, RouterFactory
from k3lab.ffn.gated import Gated, matched_hidden
from k3lab.model_dims import ModelDims
from k3lab.router.base import Routing


@dataclass(frozen=True)
class SwiGLUSettings:
    """Settings of the dense SwiGLU layer."""

    name: str = "swiglu"
    hidden: int | None = None  # F; null: 8/3 of the model's width, rounded up to a multiple of 8

    def __post_init__(self) -> None:
        positive("hidden", self.hidden)

    def at_layer(self, index: int) -> SwiGLUSettings:
        """The same layer everywhere."""
        return self


class SwiGLU(FFN):
    """A dense gated layer; routes nothing."""

    def __init__(self, settings: SwiGLUSettings, dims: ModelDims, router: RouterFactory | None = None) -> None:
        super().__init__(settings, dims)
        hidden = settings.hidden or matched_hidden(dims.hidden_size)
        self.mlp = Gated(dims.hidden_size, hidden, "swiglu", dims.init_std)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> tuple[Tensor, Routing | None]:
        """Map every token on its own, padding too."""
        return self.mlp(x_BTD), None

    def flops_per_token(self) -> int:
        """Two matrices."""
        return self.mlp.flops_per_token()
