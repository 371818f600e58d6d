"""The dense SiTU layer: y = W_out [4·tanh(a/4)·σ(a)]·[25·tanh(u/25)], a = W_gate x, u = W_up x.

Both factors saturate, so that no activation exceeds 100 in size however large the input grows, while small
inputs see SwiGLU. Source: SiTU-GLU of Kimi K3 (arXiv 2607.24653).
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
class SiTUSettings:
    """Settings of the dense SiTU layer."""

    name: str = "situ"
    hidden: int | None = None  # F; null: 8/3 of the model's width, rounded up to a multiple of 8

    def __post_init__(self) -> None:
        positive("hidden", self.hidden)

    def at_layer(self, index: int) -> SiTUSettings:
        """The same layer everywhere."""
        return self


class SiTU(FFN):
    """A dense gated layer; routes nothing."""

    def __init__(self, settings: SiTUSettings, dims: ModelDims, router: RouterFactory | None = None) -> None:
        super().__init__(settings, dims)
        hidden = settings.hidden or matched_hidden(dims.hidden_size)
        self.mlp = Gated(dims.hidden_size, hidden, "situ", dims.init_std)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> tuple[Tensor, Routing | None]:
        """Map every token on its own, padding too."""
        return self.mlp(x_BTD), None

    def flops_per_token(self) -> int:
        """Two matrices."""
        return self.mlp.flops_per_token()
