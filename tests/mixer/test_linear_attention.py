"""The chunk form and the token loop of linear attention against the recurrence, in any length and decay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from k3lab.mixer.linear_attention import chunk_linear_attention, recurrent_linear_attention, segment_decays


def naive(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """The recurrence of one batch element and head at a time."""
    B, T, H, K = q.shape
    finals, outputs = torch.zeros(B, H, K, v.shape[-1], dtype=q.dtype), torch.zeros_like(v)
    for b in range(B):
        for h in range(H):
            S = torch.zeros(K, v.shape[-1], dtype=q.dtype) if state is None else state[b, h]
            for t in range(T):
                S = g[b, t, h].exp() * S + torch.outer(k[b, t, h], v[b, t, h])
                outputs[b, t, h] = scale * S.T @ q[b, t, h]
            finals[b, h] = S
    return outputs, finals


def inputs(time: int, lowest: float = -2.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(time)
    q, k = torch.randn(2, 2, time, 3, 5, dtype=dtype)
    v = torch.randn(2, time, 3, 4, dtype=dtype)
    return [q, k, v, lowest * torch.rand(2, time, 3, dtype=dtype)]


@pytest.mark.parametrize("time", [1, 2, 15, 16, 17, 33, 50])
@pytest.mark.parametrize("chunk", [16, 7])
@pytest.mark.parametrize("started", [False, True])
def test_both_forms_are_the_recurrence(time: int, chunk: int, started: bool) -> None:
    x = inputs(time)
    state = torch.randn(2, 3, 5, 4, dtype=torch.float64) if started else None
    expected = naive(*x, 0.3, state)
    torch.testing.assert_close(chunk_linear_attention(*x, 0.3, state, chunk), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(recurrent_linear_attention(*x, 0.3, state), expected, rtol=1e-10, atol=1e-12)


def test_gradients_are_those_of_the_recurrence() -> None:
    x = [t.requires_grad_(True) for t in inputs(37)]
    state = torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 37, 3, 4, dtype=torch.float64)
    gradients = []
    for form in (
        naive(*x, 0.3, state),
        chunk_linear_attention(*x, 0.3, state, 16),
        recurrent_linear_attention(*x, 0.3, state),
    ):
        loss = (form[0] * weight).sum() + form[1].square().sum()
        gradients.append(torch.autograd.grad(loss, [*x, state]))
    for found in gradients[1:]:
        torch.testing.assert_close(found, gradients[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("lowest", [-1e-4, -50.0, -1000.0])
def test_any_decay_keeps_fp32_close_and_gradients_finite(lowest: float) -> None:
    x = inputs(70, lowest)
    expected, _ = naive(*x, 1.0, None)
    single = [t.float().requires_grad_(True) for t in x]
    o, _ = chunk_linear_attention(*single, 1.0, None, 32)
    assert ((o.double() - expected).norm() / expected.norm()).item() < 1e-5
    assert all(torch.isfinite(d).all() for d in torch.autograd.grad(o.square().sum(), single))


def test_a_decay_of_minus_infinity_forgets_all_and_costs_its_neighbours_nothing() -> None:
    q, k, v, g = inputs(40)
    cut = g.clone()
    cut[:, 23] = -torch.inf
    o, state = chunk_linear_attention(q, k, v, cut, 1.0, None, 16)
    before, _ = chunk_linear_attention(q[:, :23], k[:, :23], v[:, :23], g[:, :23], 1.0, None, 16)
    after, last = chunk_linear_attention(q[:, 23:], k[:, 23:], v[:, 23:], g[:, 23:], 1.0, None, 16)
    torch.testing.assert_close(o, torch.cat([before, after], dim=1), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-13)


def test_segment_decays_are_products_of_the_steps_between() -> None:
    g = -torch.rand(3, 9, dtype=torch.float64)
    found = segment_decays(g)
    for i in range(9):
        for j in range(9):
            expected = g[:, j + 1 : i + 1].sum(-1).exp() if j <= i else torch.zeros(3, dtype=torch.float64)
            torch.testing.assert_close(found[:, i, j], expected, rtol=1e-12, atol=0)


def test_half_precision_is_summed_in_fp32() -> None:
    x = inputs(40)
    o, state = chunk_linear_attention(*(t.bfloat16() for t in x), 1.0, None, 16)
    exact, _ = naive(*(t.bfloat16().double() for t in x), 1.0, None)
    assert (o.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    assert ((o.double() - exact).norm() / exact.norm()).item() < 5e-3
