"""The bounded decay: formula, initialisation, refused bounds, dead gates."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from k3lab.decay.lower_bound import LowerBound, LowerBoundSettings


def make(heads: int = 64, head_dim: int = 128, **settings: object) -> LowerBound:
    torch.manual_seed(0)
    return LowerBound(LowerBoundSettings(**settings), heads, head_dim)  # type: ignore[arg-type]


def test_is_the_published_formula_in_float64() -> None:
    decay = make(2, 3, g_min=-4.0).double()
    with torch.no_grad():
        assert decay.A_log is not None
        decay.A_log.copy_(torch.tensor([0.3, -0.7]))
    z = torch.randn(2, 5, 2, 3, dtype=torch.float64)
    g = decay.log_decay(z)
    for b, t, h, k in ((0, 0, 0, 0), (1, 4, 1, 2), (0, 2, 1, 1)):
        steepness = math.exp([0.3, -0.7][h])
        logit = z[b, t, h, k].item() + decay.dt_bias[3 * h + k].item()
        assert g[b, t, h, k].item() == pytest.approx(-4.0 / (1 + math.exp(-steepness * logit)), rel=1e-6)


def test_start_lies_in_the_published_range_with_a_half_life_of_14_tokens() -> None:
    decay = make()
    g = decay.log_decay(torch.zeros(1, 1, 64, 128))
    assert -0.48 <= g.min() < -0.46
    assert -0.0052 < g.max() <= -0.0049
    assert decay.half_lives().median().item() == pytest.approx(14, abs=0.7)
    assert decay.dead_fraction() == 0
    assert LowerBoundSettings().warnings(None) == []


def test_without_a_zero_logits_give_half_the_bound_and_a_has_no_gradient() -> None:
    decay = make(2, 4, learn_a=False, dt_bias_init="zero")
    z = torch.zeros(1, 3, 2, 4, requires_grad=True)
    arguments = decay.kernel_args(z)
    assert arguments["A_log"] is None
    assert "A_log" not in dict(decay.named_parameters())
    decay.log_decay(z).sum().backward()
    assert torch.equal(decay.log_decay(z), torch.full((1, 3, 2, 4), -2.5))
    assert torch.equal(z.grad, torch.full((1, 3, 2, 4), -5 / 4))


def test_a_at_zero_is_the_same_as_no_a() -> None:
    z = torch.randn(1, 2, 4, 8)
    assert torch.equal(make(4, 8).log_decay(z), make(4, 8, learn_a=False).log_decay(z))


def test_never_leaves_the_bound_and_stays_finite() -> None:
    decay = make(1, 4)
    z = torch.tensor([-1e30, -50.0, 50.0, 1e30]).view(1, 1, 1, 4).requires_grad_(True)
    g = decay.log_decay(z)
    g.sum().backward()
    assert (g >= -5).all()
    assert (g <= 0).all()
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("bound", [-5.91, -10, 0, 1, math.nan, -math.inf])
def test_refuses_a_bound_that_tiles_of_16_rows_cannot_hold(bound: float) -> None:
    with pytest.raises(ValueError, match=r"g_min=.*must lie in \[-5.9, 0\).*16 rows"):
        LowerBoundSettings(g_min=bound)


def test_every_allowed_bound_keeps_tile_factors_finite_in_fp32_and_bf16() -> None:
    largest = torch.tensor(15 * 5.9 / math.log(2))
    assert torch.exp2(largest).isfinite()
    assert torch.exp2(largest).bfloat16().isfinite()


def test_kimi_linears_a_leaves_a_dead_gate_and_both_warnings_say_so() -> None:
    settings = LowerBoundSettings(a_init="kimi_linear")
    measured = make(512, 64, a_init="kimi_linear").dead_fraction()
    assert measured == pytest.approx(0.82, abs=0.02)
    (line,) = settings.warnings(SimpleNamespace())
    assert "dead gate" in line
    assert "82%" in line


def test_kimi_linears_a_with_zero_bias_forgets_within_a_token() -> None:
    settings = LowerBoundSettings(a_init="kimi_linear", dt_bias_init="zero")
    decay = make(4, 8, a_init="kimi_linear", dt_bias_init="zero")
    assert torch.equal(decay.log_decay(torch.zeros(1, 1, 4, 8)), torch.full((1, 1, 4, 8), -2.5))
    (line,) = settings.warnings(SimpleNamespace())
    assert "half-life of 0.28 token" in line


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"a_init": "kimi"}, "a_init=kimi.*kimi_linear"),
        ({"dt_bias_init": "ones"}, "dt_bias_init=ones"),
        ({"dt_min": 0.2}, "dt_min=0.2: must not exceed dt_max=0.1"),
        ({"dt_min": 0.0}, "dt_min=0.0: must be positive"),
        ({"learn_a": False, "a_init": "kimi_linear"}, "must be zero when learn_a=false"),
    ],
)
def test_refuses_bad_settings(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LowerBoundSettings(**settings)
