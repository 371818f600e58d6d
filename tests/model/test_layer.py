"""One decoder layer on a stream it knows nothing of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from k3lab.model.layer import DecoderLayer


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor, cache: Any, documents: Any) -> Tensor:
        self.seen = cache, documents
        return x * self.factor


class ScaleFFN(Scale):
    def forward(self, x: Tensor, mask: Any) -> Any:  # type: ignore[override]
        self.mask = mask
        return x * self.factor, "routing"


class Tape(nn.Module):
    """A topology that notes what it is asked: reads give i + 1, writes are kept."""

    def read(self, stream: tuple, i: int) -> Tensor:
        return torch.full((1, 2, 3), i + 1.0)

    def write(self, stream: tuple, i: int, output: Tensor) -> tuple:
        return (*stream, (i, output))


def test_reads_and_writes_its_two_sublayers_in_order() -> None:
    layer = DecoderLayer(2, Scale(10.0), ScaleFFN(100.0), dropout=0.0)  # type: ignore[arg-type]
    mask = torch.ones(1, 2, dtype=torch.bool)
    stream, routing = layer(Tape(), (), mask, "cache", "documents")
    assert routing == "routing"
    assert layer.ffn.mask is mask
    assert layer.mixer.seen == ("cache", "documents")
    assert [i for i, _ in stream] == [4, 5]
    assert torch.equal(stream[0][1], torch.full((1, 2, 3), 50.0))
    assert torch.equal(stream[1][1], torch.full((1, 2, 3), 600.0))


def test_dropout_acts_on_sublayer_outputs_in_training_only() -> None:
    torch.manual_seed(0)
    layer = DecoderLayer(0, Scale(1.0), ScaleFFN(1.0), dropout=0.5)  # type: ignore[arg-type]
    streams = [layer(Tape(), ())[0] for _ in range(20)]
    values = torch.cat([output.flatten() for stream in streams for i, output in stream if i == 0])
    assert set(values.tolist()) == {0.0, 2.0}
    stream, _ = layer.eval()(Tape(), ())
    assert torch.equal(stream[0][1], torch.ones(1, 2, 3))
