"""Block attention residuals: sublayers attend to the sums of whole blocks of layers. (arXiv 2603.15031 §3.2)

Outputs add up inside a block; a finished block's sum b_n is one source for all later sublayers. The first
sublayer of a block reads [b_0 = embedding, b_1, …]; the later ones also read the sum of their own block so
far, which never contains the embedding. The last block is shorter when the layers do not fill it. The output
is a mix over all sources too, with its own query.

K3 uses blocks of 12 decoder layers: 8 blocks and the embedding, 9 sources, for 93 layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from k3lab.config.checks import positive
from k3lab.residual.depth_mix import DepthAttention


@dataclass(frozen=True)
class BlockAttnResSettings:
    """Settings of block attention residuals."""

    name: str = "block_attnres"
    block_layers: int = 2  # decoder layers whose outputs add up to one source
    eps: float | None = None  # added to the mean square in the norms and key norms; null: model.eps

    def __post_init__(self) -> None:
        positive("block_layers", self.block_layers)
        positive("eps", self.eps)

    def warnings(self, config: Any) -> list[str]:
        """Say so when the whole model is one block."""
        if config.model.layers <= self.block_layers:
            return [
                f"residual.block_layers={self.block_layers}: covers all {config.model.layers} layers, so there "
                "is one block and little to attend to"
            ]
        return []


class BlockAttnResStream(NamedTuple):
    """Finished blocks, the embedding first, and the sum of the block under way (None at its start)."""

    blocks: tuple[Tensor, ...]
    partial_BTD: Tensor | None


class BlockAttnRes(DepthAttention):
    """h_l mixes the finished blocks and the partial sum: at most ⌈L/S⌉ + 1 sources for blocks of S sublayers."""

    def __init__(self, settings: BlockAttnResSettings, sublayers: int, hidden_size: int, eps: float) -> None:
        super().__init__(settings, sublayers, hidden_size, eps)
        self.block_sublayers = 2 * settings.block_layers

    def start(self, embedding_BTD: Tensor) -> BlockAttnResStream:
        """The embedding is a block of its own."""
        return BlockAttnResStream((embedding_BTD,), None)

    def sources(self, stream: BlockAttnResStream, i: int) -> tuple[Tensor, ...]:
        """The embedding, the finished blocks, and the partial sum if there is one."""
        return stream.blocks if stream.partial_BTD is None else (*stream.blocks, stream.partial_BTD)

    def write(self, stream: BlockAttnResStream, i: int, output_BTD: Tensor) -> BlockAttnResStream:
        """Add the output of sublayer i to its block, and close the block after its last sublayer.

        Each partial sum is a new tensor: taking one back out by subtraction would not give the same bits.
        """
        blocks, partial_BTD = stream
        output_BTD = output_BTD.to(blocks[0].dtype)
        partial_BTD = output_BTD if partial_BTD is None else partial_BTD + output_BTD
        if (i + 1) % self.block_sublayers == 0:
            return BlockAttnResStream((*blocks, partial_BTD), None)
        return BlockAttnResStream(blocks, partial_BTD)
