"""From a configuration to a model."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from k3lab.config.registry import options
from k3lab.model.build import build_model


@pytest.mark.parametrize(
    ("decay", "router", "residual"),
    [
        (decay, router, residual)
        for n, (decay, router, residual) in enumerate(
            itertools.product(options("decay"), options("router"), options("residual"))
        )
        if n % 4 == 0 or (decay, router, residual) == ("lower_bound", "quantile", "block_attnres")
    ],
)
def test_compositions_give_finite_losses_and_gradients(
    compose: Callable[..., Any], decay: str, router: str, residual: str
) -> None:
    torch.manual_seed(0)
    config = compose(decay=decay, router=router, residual=residual)
    model = build_model(config, 7)
    out = model(torch.randint(7, (2, 10)))
    loss = out.logits_BTV.logsumexp(-1).mean() + sum(r.aux_loss for r in out.routings if r.aux_loss is not None)
    loss.backward()
    assert torch.isfinite(loss)
    assert model.layers[0].mixer.decay.settings.name == decay
    assert model.routers[0].settings.name == router
    assert model.residual.settings.name == residual


def test_layers_follow_the_pattern_and_know_their_place(compose: Callable[..., Any]) -> None:
    model = build_model(compose(layers=5), 7)
    assert [layer.mixer.settings.name for layer in model.layers] == ["kda", "kda", "kda", "mla", "mla"]
    assert [layer.mixer.dims.layer_index for layer in model.layers] == list(range(5))
    assert {layer.mixer.dims.layers for layer in model.layers} == {5}


def test_settings_of_a_mixer_reach_it(compose: Callable[..., Any]) -> None:
    model = build_model(compose(mixers=(("kda", {"conv": 2, "value_heads": 4}),)), 7)
    assert model.layers[0].mixer.q_conv.taps == 2
    assert model.layers[0].mixer.decay.heads == 4


def test_vocabulary(compose: Callable[..., Any]) -> None:
    assert build_model(compose(), 7).vocab_size == 7
    assert build_model(compose(vocab_size=64), 7).head.weight.shape[0] == 64
    with pytest.raises(ValueError, match=r"model\.vocab_size=5: must be at least the 7 token ids"):
        build_model(compose(vocab_size=5), 7)
