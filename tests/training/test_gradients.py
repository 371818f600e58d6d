"""Norm, clipping and the statistics of a failure."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from k3lab.training.gradients import clip_to, layer_statistics, total_norm


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(0)
    found = [nn.Parameter(torch.zeros(n, dtype=dtype)) for n in (3, 5, 2)]
    for p in found[:2]:
        p.grad = torch.randn(p.shape).to(dtype)
    return found  # the last one has no gradient


def test_norm_and_clipping_span_all_parameters() -> None:
    own = parameters()
    wanted = torch.cat([p.grad for p in own[:2]]).norm()
    torch.testing.assert_close(total_norm(own), wanted)
    before = [p.grad.clone() for p in own[:2]]
    clip_to(own, total_norm(own), 10 * float(wanted))
    assert all(torch.equal(p.grad, g) for p, g in zip(own[:2], before, strict=True)), "small ones stay as they are"
    clip_to(own, total_norm(own), 0.5)
    assert float(total_norm(own)) == pytest.approx(0.5, rel=1e-5)


def test_norm_keeps_its_width() -> None:
    assert total_norm(parameters(torch.float64)).dtype == torch.float64
    wide = nn.Parameter(torch.zeros(1 << 16, dtype=torch.bfloat16))
    wide.grad = torch.full_like(wide, 1.0)
    assert total_norm([wide]).dtype == torch.float32
    assert float(total_norm([wide])) == 256.0
    assert float(total_norm([])) == 0.0


def test_layer_statistics_count_what_is_not_finite() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[3.0, math.nan], [4.0, math.inf]]))
    model[2].weight.grad = torch.tensor([[1.0, 1.0]])
    table = layer_statistics(model)
    assert set(table) == {"0", "2"}
    assert table["0"] == {
        "param_rms": pytest.approx(math.sqrt(12.5)),
        "param_nonfinite": 2,
        "grad_rms": None,
        "grad_nonfinite": 0,
    }
    assert table["2"]["grad_rms"] == 1.0
