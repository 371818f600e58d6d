"""One decoder layer: a mixer sublayer and a feed-forward sublayer on a residual stream.

B batch, T time, D hidden size.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from k3lab.ffn.base import FFN
from k3lab.mixer.base import Mixer
from k3lab.mixer.documents import Documents
from k3lab.residual.base import Residual, Stream
from k3lab.router.base import Routing


class DecoderLayer(nn.Module):
    """Sublayers 2·index (mixer) and 2·index + 1 (feed-forward); the unit that is sharded or recomputed."""

    def __init__(self, index: int, mixer: Mixer, ffn: FFN, dropout: float) -> None:
        super().__init__()
        self.index = index
        self.mixer = mixer
        self.ffn = ffn
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        residual: Residual,
        stream: Stream,
        mask_BT: Tensor | None = None,
        cache: Any = None,
        documents: Documents | None = None,
    ) -> tuple[Stream, Routing | None]:
        """Read, map and write twice; whatever topology owns the stream."""
        sublayer = 2 * self.index
        mixed_BTD = self.mixer(residual.read(stream, sublayer), cache, documents)
        stream = residual.write(stream, sublayer, self.dropout(mixed_BTD))
        mapped_BTD, routing = self.ffn(residual.read(stream, sublayer + 1), mask_BT)
        return residual.write(stream, sublayer + 1, self.dropout(mapped_BTD)), routing
