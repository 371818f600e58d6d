"""The dense SwiGLU layer."""

from __future__ import annotations

import pytest
import torch

from k3lab.ffn.gated import matched_hidden
from k3lab.ffn.swiglu import SwiGLUSettings
from tests.ffn.helpers import gated, inputs, make


def test_formula() -> None:
    layer, x = make("swiglu", hidden=24).double(), inputs(2, 5, 16).double()
    y, routing = layer(x)
    assert routing is None
    expected = [gated(layer.mlp.w_in.weight, layer.mlp.w_out.weight, "swiglu", t) for t in x.flatten(0, 1)]
    torch.testing.assert_close(y.flatten(0, 1), torch.stack(expected))


def test_costs() -> None:
    layer = make("swiglu", hidden=24)
    assert layer.parameters_active() == 3 * 16 * 24
    assert layer.flops_per_token() == 6 * 16 * 24


def test_default_width_costs_what_an_ungated_layer_of_four_widths_does() -> None:
    assert make("swiglu", width=96).mlp.w_out.weight.shape == (96, 256)
    assert matched_hidden(100) == 272  # 266.7, rounded up to a multiple of 8
    assert matched_hidden(96, parts=5) == 56


def test_settings() -> None:
    settings = SwiGLUSettings(hidden=32)
    assert settings.at_layer(3) is settings
    with pytest.raises(ValueError, match="hidden=0"):
        SwiGLUSettings(hidden=0)
