"""RMSNorm: value and precision."""

from __future__ import annotations

import torch

from k3lab.mixer.norm import RMSNorm


def test_value_in_float64() -> None:
    norm = RMSNorm(5, 1e-3).double()
    with torch.no_grad():
        norm.weight.copy_(torch.arange(5))
    x = torch.randn(2, 5, dtype=torch.float64)
    torch.testing.assert_close(norm(x), x * (x.square().mean(-1, keepdim=True) + 1e-3).rsqrt() * norm.weight)


def test_bf16_is_rounded_once() -> None:
    norm = RMSNorm(64, 1e-6)
    x = torch.randn(8, 64).bfloat16()
    assert torch.equal(norm(x), norm(x.float()).bfloat16())
