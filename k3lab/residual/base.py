"""What every residual topology offers: a stream that sublayers read from and write to.

The model's loop is the same for all of them::

    stream = residual.start(embedding)
    for i, sublayer in enumerate(sublayers):
        stream = residual.write(stream, i, sublayer(residual.read(stream, i)))
    hidden = residual.finish(stream)

A stream is a NamedTuple of tensors and tuples of tensors that nobody changes: ``write`` returns a new one
that shares the old one's tensors. So recomputing a sublayer replays nothing, and a stream can be
checkpointed, traced, or sent to another device as it is.

The topology owns every norm of the residual path: one before each sublayer and one before the head.

B batch, T time, D hidden size, L sublayers (a mixer and an FFN are one each), N sources of a mix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

Stream = Any  # a NamedTuple of the topology's own


class Residual(nn.Module, ABC):
    """Base of all topologies; ctor ``(settings, sublayers, hidden_size, eps)``.

    ``eps`` is the model's, used unless the settings give their own. Sublayer outputs are cast to the dtype
    of the embedding that opened the stream: under autocast the stream stays fp32.
    """

    def __init__(self, settings: Any, sublayers: int, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.settings = settings
        self.sublayers = sublayers
        self.hidden_size = hidden_size
        self.eps = eps if settings.eps is None else settings.eps
        self.norms = nn.ModuleList(nn.RMSNorm(hidden_size, eps=self.eps) for _ in range(sublayers))
        self.final_norm = nn.RMSNorm(hidden_size, eps=self.eps)

    @abstractmethod
    def start(self, embedding_BTD: Tensor) -> Stream:
        """The stream below the first sublayer."""

    @abstractmethod
    def mixture(self, stream: Stream, i: int) -> Tensor:
        """What sublayer i reads, before its norm: [B,T,D]; i = L is what the final norm reads."""

    @abstractmethod
    def write(self, stream: Stream, i: int, output_BTD: Tensor) -> Stream:
        """The stream above sublayer i, given its output [B,T,D]."""

    def source_weights(self, stream: Stream, i: int) -> Tensor | None:
        """The weight of each source in ``mixture(stream, i)``: [N,B,T] in fp32 (fp64 for fp64), oldest
        first and the embedding at 0; None where the topology has no weights to show."""
        return None

    def read(self, stream: Stream, i: int) -> Tensor:
        """The normalised input of sublayer i: [B,T,D]."""
        return self.norm(i)(self.mixture(stream, i))

    def finish(self, stream: Stream) -> Tensor:
        """The normalised hidden state that the head reads: [B,T,D]."""
        return self.read(stream, self.sublayers)

    def norm(self, i: int) -> nn.RMSNorm:
        """The norm before sublayer i; i = L is the final one."""
        norm = self.final_norm if i == self.sublayers else self.norms[i]
        assert isinstance(norm, nn.RMSNorm)
        return norm
