"""One decay a head: the same on every channel, Gated DeltaNet's formula."""

from __future__ import annotations

import math

import pytest
import torch

from k3lab.decay.scalar import Scalar, ScalarSettings


def test_is_one_decay_a_head_by_the_published_formula() -> None:
    torch.manual_seed(0)
    decay = Scalar(ScalarSettings(), 3, 5).double()
    z = torch.randn(2, 4, 3, 1, dtype=torch.float64)
    g = decay.log_decay(z)
    assert g.shape == (2, 4, 3, 5)
    assert torch.equal(g, g[..., :1].expand_as(g))
    expected = -math.exp(decay.A_log[2].item()) * math.log1p(math.exp(z[1, 3, 2, 0].item() + decay.dt_bias[2].item()))
    assert g[1, 3, 2, 0].item() == pytest.approx(expected, rel=1e-12)


def test_asks_for_one_logit_a_head_and_hands_over_a_finished_gate() -> None:
    decay = Scalar(ScalarSettings(), 3, 5)
    assert (decay.channels, decay.bound) == (1, None)
    arguments = decay.kernel_args(torch.zeros(1, 2, 3, 1))
    assert not arguments["use_gate_in_kernel"]
    assert arguments["g"].shape == (1, 2, 3, 5)


def test_refuses_bad_settings() -> None:
    with pytest.raises(ValueError, match="dt_min=1: must not exceed"):
        ScalarSettings(dt_min=1)
