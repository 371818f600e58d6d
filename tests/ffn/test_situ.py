"""The dense SiTU layer: its formula, its bound, and SwiGLU where inputs are small."""

from __future__ import annotations

import pytest
import torch

from k3lab.ffn.gated import situ, swiglu
from k3lab.ffn.situ import SiTUSettings
from tests.ffn.helpers import gated, inputs, make


def test_formula() -> None:
    layer, x = make("situ", hidden=24).double(), 5 * inputs(2, 5, 16).double()
    y, routing = layer(x)
    assert routing is None
    expected = [gated(layer.mlp.w_in.weight, layer.mlp.w_out.weight, "situ", t) for t in x.flatten(0, 1)]
    torch.testing.assert_close(y.flatten(0, 1), torch.stack(expected))


def test_values() -> None:
    au = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    # 4·tanh(0.25)·σ(1) · 25·tanh(0.08)
    torch.testing.assert_close(situ(au), torch.tensor([[1.4293512]], dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_bounded_with_finite_gradients(dtype: torch.dtype) -> None:
    corners = torch.tensor([[a, u] for a in (-1e30, -1e4, 1e4, 1e30) for u in (-1e30, 1e30)], dtype=dtype)
    corners.requires_grad_()
    y = situ(corners)
    assert y.abs().max() <= 100
    assert y.abs().max() == 100
    y.sum().backward()
    assert corners.grad is not None
    assert corners.grad.isfinite().all()


def test_small_inputs_see_swiglu() -> None:
    au = 0.05 * inputs(50, 8).double()
    torch.testing.assert_close(situ(au), swiglu(au), atol=1e-6, rtol=1e-3)


def test_costs_and_settings() -> None:
    assert make("situ", hidden=24).flops_per_token() == 6 * 16 * 24
    with pytest.raises(ValueError, match="hidden=-1"):
        SiTUSettings(hidden=-1)
