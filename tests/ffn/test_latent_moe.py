"""The latent mixture: its norm, its widths, its costs. What it shares with moe is tested there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from k3lab.ffn.latent_moe import LatentMoESettings
from tests.ffn.helpers import inputs, make


def test_the_norm_makes_the_scale_of_the_weights_irrelevant() -> None:
    layer, x = make("latent_moe", shared=0).double(), inputs(1, 12, 16).double()
    y, _ = layer(x)
    with torch.no_grad():
        layer.experts.w_out.mul_(50)
    scaled, _ = layer(x)
    torch.testing.assert_close(scaled, y, rtol=1e-3, atol=1e-3 * y.abs().max().item())


def test_router_and_shared_experts_read_the_full_width() -> None:
    layer = make("latent_moe", latent=4)
    assert layer.router is not None
    assert layer.router.weight.shape == (6, 16)
    assert layer.shared.w_in.weight.shape == (2 * 2 * 8, 16)
    assert layer.experts.w_in.shape == (6, 2 * 8, 4)
    assert layer.experts.w_out.shape == (6, 4, 8)


def test_default_widths() -> None:
    layer = make("latent_moe", width=96, expert_hidden=None, top_k=4, shared=1)
    assert layer.w_down.weight.shape == (48, 96)
    assert layer.experts.w_out.shape == (6, 48, 56)
    assert make("latent_moe", width=20).w_down.weight.shape == (16, 20)


def test_costs() -> None:
    layer = make("latent_moe", latent=4)  # width 16, 6 experts of 8 on width 4, top-2, 2 shared on width 16
    routed, shared, around = 3 * 4 * 8, 3 * 16 * 8, 2 * 16 * 4 + 6 * 16
    assert layer.parameters_active() == 2 * routed + 2 * shared + around + 4
    assert sum(p.numel() for p in layer.parameters()) == 6 * routed + 2 * shared + around + 4
    assert layer.flops_per_token() == 2 * (2 * routed + 2 * shared + around)


def test_settings() -> None:
    with pytest.raises(ValueError, match="latent=0"):
        LatentMoESettings(latent=0)
    config = SimpleNamespace(router=SimpleNamespace(normalise=False))
    assert "the norm cancels the only weight" in LatentMoESettings(top_k=1).warnings(config)[0]
    assert LatentMoESettings().warnings(config) == []
