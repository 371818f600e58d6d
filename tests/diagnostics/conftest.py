"""A language model small enough to follow by hand, with every part that a probe looks at."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from k3lab.decay.lower_bound import LowerBound, LowerBoundSettings
from k3lab.residual.base import Residual
from k3lab.residual.block_attnres import BlockAttnRes, BlockAttnResSettings
from k3lab.residual.prenorm import PreNorm, PreNormSettings
from k3lab.router.base import Routing

D, HEADS, EXPERTS, TOP_K, VOCAB = 8, 2, 6, 2, 16


class ToyMixer(nn.Module):
    """Means over the past, gated by a decay that is computed but used as a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.decay_logit = nn.Linear(D, D)
        self.decay = LowerBound(LowerBoundSettings(), HEADS, D // HEADS)
        self.out = nn.Linear(D, D)

    def forward(self, x_BTD: Tensor) -> Tensor:
        g = self.decay.log_decay(self.decay_logit(x_BTD).unflatten(-1, (HEADS, -1))).flatten(-2)
        steps = torch.arange(1, x_BTD.shape[1] + 1)[:, None]
        return self.out(x_BTD.cumsum(1) / steps * g.exp().to(x_BTD.dtype))


class PlainMixer(nn.Module):
    """A mixer without a decay."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(D, D)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.out(x_BTD)


class ToyRouter(nn.Module):
    """What a router shows of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.top_k = EXPERTS, TOP_K
        self.register_buffer("bias", torch.linspace(-0.5, 0.5, EXPERTS))


class ToyFFN(nn.Module):
    """Maybe routed: the routing scales the output."""

    def __init__(self, routed: bool) -> None:
        super().__init__()
        self.out = nn.Linear(D, D)
        self.router = ToyRouter() if routed else None
        self.gate = nn.Linear(D, EXPERTS)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None) -> tuple[Tensor, Routing | None]:
        y = self.out(x_BTD).tanh()
        if self.router is None:
            return y, None
        scores, ids = self.gate(x_BTD).flatten(0, 1).sigmoid().topk(TOP_K)
        real = ids if mask_BT is None else ids[mask_BT.flatten()]
        counts = torch.bincount(real.flatten(), minlength=EXPERTS)
        return y * scores.sum(-1).view(*x_BTD.shape[:2], 1), Routing(ids, scores, counts)


class ToyOutput(NamedTuple):
    logits_BTV: Tensor
    routings: tuple[Routing, ...]


class ToyModel(nn.Module):
    """Three layers: a recurrent one with a dense FFN, then two routed ones, the last without a decay."""

    def __init__(self, residual: Residual, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, D)
        self.layers = nn.ModuleList()
        for mixer, routed in ((ToyMixer(), False), (ToyMixer(), True), (PlainMixer(), True)):
            layer = nn.Module()
            layer.mixer, layer.ffn = mixer, ToyFFN(routed)
            self.layers.append(layer)
        self.residual = residual
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(D, VOCAB)
        self.register_buffer("pending", torch.zeros(2, EXPERTS, dtype=torch.int64))

    @property
    def routers(self) -> list[ToyRouter]:
        return [layer.ffn.router for layer in self.layers if layer.ffn.router is not None]

    def forward(self, tokens_BT: Tensor, mask_BT: Tensor | None = None, documents_BT: None = None) -> ToyOutput:
        stream = self.residual.start(self.embedding(tokens_BT))
        routings = []
        for index, layer in enumerate(self.layers):
            y = self.dropout(layer.mixer(self.residual.read(stream, 2 * index)))
            stream = self.residual.write(stream, 2 * index, y)
            y, routing = layer.ffn(self.residual.read(stream, 2 * index + 1), mask_BT)
            stream = self.residual.write(stream, 2 * index + 1, self.dropout(y))
            routings += [routing] if routing is not None else []
        return ToyOutput(self.head(self.residual.finish(stream)), tuple(routings))


def make(residual: str, dropout: float = 0.0) -> ToyModel:
    """A toy model with pseudo-queries away from zero."""
    torch.manual_seed(0)
    if residual == "prenorm":
        return ToyModel(PreNorm(PreNormSettings(), 6, D, 1e-5), dropout)
    topology = BlockAttnRes(BlockAttnResSettings(block_layers=1), 6, D, 1e-5)
    for mix in topology.mixes:
        nn.init.normal_(mix.query)
    return ToyModel(topology, dropout)


@pytest.fixture(params=["prenorm", "block_attnres"])
def model(request: pytest.FixtureRequest) -> ToyModel:
    return make(request.param)


@pytest.fixture
def make_model() -> Any:
    return make


@pytest.fixture
def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(VOCAB, (3, 13), generator=generator)
    targets = tokens[:, 1:].clone()
    targets[:, :2] = -100
    return {"tokens": tokens[:, :-1], "targets": targets}
