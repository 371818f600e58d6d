"""Full attention residuals against hand-derived mixes."""

from __future__ import annotations

import math

import pytest
import torch

from k3lab.residual.full_attnres import FullAttnRes, FullAttnResSettings
from k3lab.residual.prenorm import PreNorm, PreNormSettings

F64 = torch.float64


def scalar(value: float) -> torch.Tensor:
    return torch.tensor([[[value]]], dtype=F64)


def test_sources_are_the_embedding_and_every_output() -> None:
    residual = FullAttnRes(FullAttnResSettings(eps=1e-30), 3, 1, 1.0).double()
    stream = residual.start(scalar(2))
    means = [residual.mixture(stream, 0).item()]
    for i, output in enumerate((4, -3, 9)):
        stream = residual.write(stream, i, scalar(output))
        means.append(residual.mixture(stream, i + 1).item())
    # zero queries: h is the mean of the sources
    assert means == pytest.approx([2, 3, 1, 3])


def test_one_channel_by_hand() -> None:
    # With D = 1 and eps → 0 the normalised source is its sign, so the logits are ±w. w = ln 3 over (2, −1):
    # weights 3 : 1/3, that is 0.9 and 0.1, and h = 1.8 − 0.1.
    residual = FullAttnRes(FullAttnResSettings(eps=1e-30), 2, 1, 1.0).double()
    residual.mix(1).query.data.fill_(math.log(3))
    stream = residual.write(residual.start(scalar(2)), 0, scalar(-1))
    torch.testing.assert_close(residual.source_weights(stream, 1).flatten(), torch.tensor([0.9, 0.1], dtype=F64))
    torch.testing.assert_close(residual.mixture(stream, 1), scalar(1.7))
    torch.testing.assert_close(residual.read(stream, 1), scalar(1.0))
    # a key-norm weight of its own scales the logits: −1 exchanges the two weights
    residual.mix(1).key_weight.data.fill_(-1)
    torch.testing.assert_close(residual.mixture(stream, 1), scalar(0.2 - 0.9))


def test_general_mix_against_the_formula() -> None:
    torch.manual_seed(0)
    residual = FullAttnRes(FullAttnResSettings(), 3, 6, 0.1).double()
    for p in residual.parameters():
        p.data = torch.randn_like(p)
    sources = [torch.randn(2, 5, 6, dtype=F64) for _ in range(4)]
    stream = residual.start(sources[0])
    for i in range(3):
        stream = residual.write(stream, i, sources[i + 1])
    v = torch.stack(sources)
    mix = residual.mix(3)
    logits = (v / (v.square().mean(-1, keepdim=True) + 0.1).sqrt() * mix.key_weight) @ mix.query
    h = (logits.softmax(0)[..., None] * v).sum(0)
    torch.testing.assert_close(residual.source_weights(stream, 3), logits.softmax(0))
    torch.testing.assert_close(residual.mixture(stream, 3), h)
    normed = h / (h.square().mean(-1, keepdim=True) + 0.1).sqrt() * residual.final_norm.weight
    torch.testing.assert_close(residual.finish(stream), normed)


def test_zero_queries_give_the_prenorm_model_when_eps_vanishes() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8).double() for _ in range(6)]
    x = torch.randn(2, 3, 8, dtype=F64) * 0.02

    def run(residual: torch.nn.Module) -> torch.Tensor:
        stream = residual.start(x)
        for i, layer in enumerate(layers):
            stream = residual.write(stream, i, layer(residual.read(stream, i)).tanh())
        return residual.finish(stream)

    def gap(eps: float) -> float:
        full = run(FullAttnRes(FullAttnResSettings(), 6, 8, eps).double())
        return (full - run(PreNorm(PreNormSettings(), 6, 8, eps).double())).abs().max().item()

    assert gap(1e-30) < 1e-13
    assert gap(1e-5) > 1e-4  # with a small embedding the usual eps is not negligible


def test_settings_refuse_a_zero_eps() -> None:
    with pytest.raises(ValueError, match="eps=0"):
        FullAttnResSettings(eps=0.0)
