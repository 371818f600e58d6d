"""Gated DeltaNet is KDA under the scalar decay, and its decay is its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from k3lab.config.registry import component, settings_class
from k3lab.mixer.gated_deltanet import GatedDeltaNet, GatedDeltaNetSettings
from k3lab.mixer.kda import KDA, KDASettings
from k3lab.model_dims import ModelDims

DIMS = ModelDims(hidden_size=12, heads=2, head_dim=4, init_std=0.4)


def scalar(heads: int, head_dim: int) -> Any:
    return component("decay", "scalar")(settings_class("decay", "scalar")(), heads, head_dim)


def make(dims: ModelDims = DIMS, **settings: Any) -> GatedDeltaNet:
    torch.manual_seed(0)
    other = lambda heads, head_dim: pytest.fail("the group's decay is not for it")
    return GatedDeltaNet(GatedDeltaNetSettings(**settings), dims, other).double()


@pytest.mark.parametrize("settings", [{}, {"value_heads": 4, "negative_eigenvalues": True, "output_gate": "none"}])
def test_equals_kda_with_the_scalar_decay(settings: dict) -> None:
    mixer = make(**settings)
    torch.manual_seed(0)
    kda = KDA(KDASettings(**settings), DIMS, scalar).double()
    assert mixer.state_dict().keys() == kda.state_dict().keys()
    x = torch.randn(2, 40, 12, dtype=torch.float64)
    assert torch.equal(mixer(x), kda(x))


def test_its_decay_is_scalar_and_starts_as_set() -> None:
    mixer = make(a_init="zero", dt_min=0.01, dt_max=0.02)
    assert mixer.decay.settings.name == "scalar"
    assert mixer.decay_logit.up.weight.shape == (2, 12)
    g = mixer.decay.log_decay(torch.zeros(1, 1, 2, 1))
    assert -0.0201 < g.min() <= g.max() < -0.0099


def test_one_logit_a_head_needs_no_bottleneck_however_many_heads() -> None:
    assert make(ModelDims(hidden_size=10, heads=6, head_dim=4)).decay_logit.down is None


def test_refuses_bad_settings() -> None:
    with pytest.raises(ValueError, match="a_init=one"):
        GatedDeltaNetSettings(a_init="one")
    with pytest.raises(ValueError, match=r"dt_min=0\.2: must not exceed dt_max=0\.1"):
        GatedDeltaNetSettings(dt_min=0.2)
    with pytest.raises(ValueError, match="chunk=16: must be 32 or 64"):
        GatedDeltaNetSettings(chunk=16)
    config = SimpleNamespace(model=SimpleNamespace(heads=2))
    with pytest.raises(ValueError, match=r"mixer\.gated_deltanet\.value_heads=3: must be a multiple"):
        GatedDeltaNetSettings(value_heads=3).check(config)
