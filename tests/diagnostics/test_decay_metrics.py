"""Half-lives and stuck channels by hand."""

from __future__ import annotations

import math

import pytest
import torch

from k3lab.diagnostics.decay_metrics import channel_half_lives, decay_metrics


def test_by_hand() -> None:
    bounded = torch.tensor([-5.0, -4.96, -0.5, -0.1, -1e-7])
    free = torch.tensor([-20.0, -0.25, 0.0])
    found = decay_metrics({0: (bounded, -5.0), 2: (free, None)})
    assert found["decay/layer_00/half_life_median"] == pytest.approx(math.log(2) / 0.5, rel=1e-6)
    assert found["decay/layer_00/dead_fraction"] == pytest.approx(1 / 5)
    assert found["decay/layer_00/at_bound_fraction"] == pytest.approx(2 / 5)
    assert found["decay/layer_02/half_life_median"] == pytest.approx(math.log(2) / 0.25)
    assert found["decay/layer_02/dead_fraction"] == pytest.approx(1 / 3)
    assert "decay/layer_02/at_bound_fraction" not in found
    # over all 8 channels; the share at the bound over the bounded ones
    assert found["decay/dead_fraction"] == pytest.approx(2 / 8)
    assert found["decay/at_bound_fraction"] == pytest.approx(2 / 5)
    assert found["decay/half_life_median"] == pytest.approx(math.log(2) / 0.25)


def test_quantiles_are_of_the_half_life() -> None:
    g = -math.log(2) / torch.arange(1.0, 12.0)  # half-lives of 1 to 11 tokens
    found = decay_metrics({0: (g, None)})
    assert found["decay/half_life_q10"] == pytest.approx(2)
    assert found["decay/half_life_median"] == pytest.approx(6)
    assert found["decay/layer_00/half_life_q90"] == pytest.approx(10)


def test_channels_one_by_one() -> None:
    g_MHK = -math.log(2) / torch.tensor([[[1.0, 20.0]], [[2.0, 30.0]], [[4.0, 1e9]]])
    assert channel_half_lives(g_MHK).tolist() == [[pytest.approx(2), pytest.approx(30)]]


def test_dead_channels_give_a_finite_half_life() -> None:
    found = decay_metrics({0: (torch.zeros(4), None)})
    assert found["decay/half_life_median"] == pytest.approx(math.log(2) / 1e-6)
    assert found["decay/dead_fraction"] == 1


def test_no_recurrent_layer_no_metric() -> None:
    assert decay_metrics({}) == {}
