"""Pre-norm: one running sum, each sublayer reads its norm. (Xiong et al., arXiv 2002.04745; Llama's order.)

Per token and sublayer it reads and writes 3·D elements: the sum, the output, the new sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from k3lab.config.checks import positive
from k3lab.residual.base import Residual


@dataclass(frozen=True)
class PreNormSettings:
    """Settings of the pre-norm stream."""

    name: str = "prenorm"
    eps: float | None = None  # added to the mean square in the norms; null: model.eps

    def __post_init__(self) -> None:
        positive("eps", self.eps)


class PreNormStream(NamedTuple):
    """The running sum of the embedding and all outputs so far."""

    sum_BTD: Tensor


class PreNorm(Residual):
    """h_l = v_0 + Σ_{i<l} v_i; D norm weights a sublayer and D for the output."""

    def start(self, embedding_BTD: Tensor) -> PreNormStream:
        """The stream below the first sublayer is the embedding."""
        return PreNormStream(embedding_BTD)

    def mixture(self, stream: PreNormStream, i: int) -> Tensor:
        """The sum so far, [B,T,D]."""
        return stream.sum_BTD

    def write(self, stream: PreNormStream, i: int, output_BTD: Tensor) -> PreNormStream:
        """Add the output of sublayer i."""
        return PreNormStream(stream.sum_BTD + output_BTD.to(stream.sum_BTD.dtype))
