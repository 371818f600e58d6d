"""Kimi Linear's decay: formula, initialisation, numerics."""

from __future__ import annotations

import math

import pytest
import torch

from k3lab.decay.softplus import Softplus, SoftplusSettings


def test_is_the_published_formula_in_float64() -> None:
    torch.manual_seed(0)
    decay = Softplus(SoftplusSettings(), 2, 3).double()
    z = torch.randn(1, 4, 2, 3, dtype=torch.float64) * 5
    g = decay.log_decay(z)
    for t, h, k in ((0, 0, 0), (3, 1, 2), (2, 0, 1)):
        logit = z[0, t, h, k].item() + decay.dt_bias[3 * h + k].item()
        expected = -math.exp(decay.A_log[h].item()) * math.log1p(math.exp(logit))
        assert g[0, t, h, k].item() == pytest.approx(expected, rel=1e-12)


def test_median_half_life_at_the_start() -> None:
    torch.manual_seed(0)
    decay = Softplus(SoftplusSettings(), 2048, 32)
    assert decay.half_lives().median().item() == pytest.approx(9.8, abs=0.5)
    assert decay.dead_fraction() == 0
    assert decay.bound is None


def test_large_logits_stay_finite_and_unbounded() -> None:
    decay = Softplus(SoftplusSettings(a_init="zero"), 1, 2)
    z = torch.tensor([-1e4, 1e4]).view(1, 1, 1, 2).requires_grad_(True)
    g = decay.log_decay(z)
    g.sum().backward()
    assert g[0, 0, 0, 0] == 0
    assert g[0, 0, 0, 1].item() == pytest.approx(-1e4, rel=1e-3)
    assert torch.isfinite(z.grad).all()


def test_half_precision_logits_give_fp32() -> None:
    decay = Softplus(SoftplusSettings(), 1, 2)
    assert decay.log_decay(torch.zeros(1, 1, 1, 2, dtype=torch.bfloat16)).dtype == torch.float32
    assert decay.bfloat16().log_decay(torch.zeros(1, 1, 1, 2, dtype=torch.bfloat16)).dtype == torch.float32


def test_refuses_bad_settings() -> None:
    with pytest.raises(ValueError, match=r"a_init=zeros.*zero"):
        SoftplusSettings(a_init="zeros")
    with pytest.raises(ValueError, match="dt_max"):
        SoftplusSettings(dt_max=0.0001)
