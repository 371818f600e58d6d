"""Full attention residuals: every sublayer attends to the embedding and to each earlier output by itself.

The general form of "Attention Residuals" (arXiv 2603.15031). A sublayer at depth l reads l + 1 sources, so the
traffic of a forward pass grows with the square of the depth: (L/2 + 5)·D elements a token and sublayer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from k3lab.config.checks import positive
from k3lab.residual.depth_mix import DepthAttention


@dataclass(frozen=True)
class FullAttnResSettings:
    """Settings of full attention residuals."""

    name: str = "full_attnres"
    eps: float | None = None  # added to the mean square in the norms and key norms; null: model.eps

    def __post_init__(self) -> None:
        positive("eps", self.eps)


class FullAttnResStream(NamedTuple):
    """The embedding and the output of every sublayer so far."""

    outputs: tuple[Tensor, ...]


class FullAttnRes(DepthAttention):
    """h_l mixes v_0 … v_{l−1}, all of them."""

    def start(self, embedding_BTD: Tensor) -> FullAttnResStream:
        """The first source is the embedding."""
        return FullAttnResStream((embedding_BTD,))

    def sources(self, stream: FullAttnResStream, i: int) -> tuple[Tensor, ...]:
        """The embedding and the outputs of sublayers 0 … i − 1."""
        return stream.outputs

    def write(self, stream: FullAttnResStream, i: int, output_BTD: Tensor) -> FullAttnResStream:
        """Append the output of sublayer i."""
        return FullAttnResStream((*stream.outputs, output_BTD.to(stream.outputs[0].dtype)))
