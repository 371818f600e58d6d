"""Helpers of the decays, and what all decays share."""

from __future__ import annotations

import pytest
import torch

from k3lab.config.registry import component, options, settings_class
from k3lab.decay.base import inverse_softplus, log_uniform_
from k3lab_kernels.kda import chunk_kda


def test_inverse_softplus_does_not_cancel() -> None:
    u = torch.tensor([1e-7, 1e-3, 0.1, 3.0, 50.0])
    torch.testing.assert_close(torch.nn.functional.softplus(inverse_softplus(u), threshold=90), u, rtol=1e-5, atol=0)


def test_log_uniform_covers_its_range_evenly_in_logarithm() -> None:
    torch.manual_seed(0)
    x = log_uniform_(torch.empty(20000), 1e-3, 0.1)
    assert x.min() >= 1e-3
    assert x.max() <= 0.1
    assert x.log10().mean().item() == pytest.approx(-2, abs=0.02)


@pytest.mark.parametrize("name", options("decay"))
def test_the_kernel_applies_the_same_gate_as_log_decay(name: str) -> None:
    """The arguments for a fused gate and a finished g must be two ways to say the same decay."""
    torch.manual_seed(0)
    decay = component("decay", name)(settings_class("decay", name)(), 2, 4).double()
    q, k, v = (torch.randn(1, 21, 2, 4, dtype=torch.float64) for _ in range(3))
    beta = torch.rand(1, 21, 2, dtype=torch.float64)
    z = torch.randn(1, 21, 2, decay.channels, dtype=torch.float64)
    fused, _ = chunk_kda(q, k, v, beta=beta, use_qk_l2norm_in_kernel=True, **decay.kernel_args(z))
    ready, _ = chunk_kda(q, k, v, decay.log_decay(z), beta, use_qk_l2norm_in_kernel=True)
    torch.testing.assert_close(fused, ready, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", options("decay"))
def test_same_seed_same_start_and_logits_get_gradients(name: str) -> None:
    cls, settings = component("decay", name), settings_class("decay", name)()
    torch.manual_seed(3)
    first = cls(settings, 2, 8)
    torch.manual_seed(3)
    second = cls(settings, 2, 8)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.ndim == 1, "vectors, so that no optimizer takes them for matrices"
    z = torch.randn(1, 3, 2, first.channels, requires_grad=True)
    g = first.log_decay(z)
    assert g.shape == (1, 3, 2, 8)
    assert (g <= 0).all()
    if first.channels:
        g.sum().backward()
        assert (z.grad < 0).all()
