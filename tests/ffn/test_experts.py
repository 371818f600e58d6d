"""Routed experts: against a loop in float64, every gradient, experts without tokens, repeats."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from k3lab.ffn.experts import Experts, group_by_expert
from tests.ffn.helpers import gradients, inputs, loop


def problem(
    dtype: torch.dtype = torch.float64, tokens: int = 21, width: int = 16, hidden: int = 24, used: int = 5, k: int = 3
) -> tuple[Experts, Tensor, Tensor, Tensor]:
    """Eight experts of which the last ones get no token."""
    torch.manual_seed(0)
    experts = Experts(8, width, hidden, "situ", 0.3).to(dtype)
    ids = torch.rand(tokens, used).argsort(dim=-1)[:, :k]
    weights = torch.rand(tokens, k).to(dtype if dtype == torch.float64 else torch.float32)
    return experts, inputs(tokens, width).to(dtype).requires_grad_(), ids, weights.requires_grad_()


@pytest.mark.parametrize("activation", ["swiglu", "situ"])
@pytest.mark.parametrize(("tokens", "k"), [(21, 3), (21, 1), (1, 2), (64, 5)])
def test_equals_the_loop_in_fp64(activation: str, tokens: int, k: int) -> None:
    _, x, ids, weights = problem(tokens=tokens, k=k)
    experts = Experts(8, 16, 24, activation, 0.3).double()
    leaves = [x, weights, experts.w_in, experts.w_out]
    found, expected = experts(x, ids, weights), loop(experts, activation, x, ids, weights)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    for a, b in zip(gradients(found, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("width", "hidden"), [(16, 24), (15, 20), (60, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_loop_in_lower_precision(dtype: torch.dtype, width: int, hidden: int) -> None:
    experts, x, ids, weights = problem(dtype, width=width, hidden=hidden)
    leaves = [x, weights, experts.w_in, experts.w_out]
    found = experts(x, ids, weights)
    assert found.dtype == torch.float32  # the sum over k is in the weights' precision
    found_grads = gradients(found, leaves)
    exact = Experts(8, width, hidden, "situ", 0.3).double()
    exact.load_state_dict(experts.state_dict())
    x64, w64 = x.detach().double().requires_grad_(), weights.detach().double().requires_grad_()
    expected = loop(exact, "situ", x64, ids, w64)
    expected_grads = gradients(expected, [x64, w64, exact.w_in, exact.w_out])
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    for a, b in zip([found, *found_grads], [expected, *expected_grads], strict=True):
        assert (a.double() - b).norm() <= tolerance * b.norm()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_experts_without_tokens_get_zero_gradients(dtype: torch.dtype) -> None:
    experts, x, ids, weights = problem(dtype)
    experts(x, ids, weights).square().sum().backward()
    for parameter in experts.parameters():
        assert parameter.grad is not None
        assert (parameter.grad[5:] == 0).all()
        assert (parameter.grad[:5].flatten(1) != 0).any(dim=1).all()


def test_every_row_lies_in_a_group() -> None:
    ids = torch.tensor([[2, 0], [2, 5], [0, 2]])
    order = group_by_expert(ids, 6)
    assert order.ends_E.tolist() == [2, 2, 5, 5, 5, 6]
    assert order.ends_E.dtype == torch.int32
    assert order.row_N.tolist() == [1, 4, 0, 2, 5, 3]  # stable: rows of an expert stay in order
    assert order.row_N[order.place_N].tolist() == list(range(6))


def test_nothing_is_read_from_stale_memory() -> None:
    experts, x, ids, weights = problem(torch.float32)
    expected = experts(x, ids, weights)
    for _ in range(10):
        stale = [torch.full((63, width), torch.nan) for width in (16, 24, 48) for _ in range(3)]
        del stale
        assert torch.equal(experts(x, ids, weights), expected)


def test_repeats_give_the_same_bits() -> None:
    experts, x, ids, weights = problem(torch.float32, tokens=200)
    leaves = [x, weights, experts.w_in, experts.w_out]
    first = gradients(experts(x, ids, weights), leaves)
    for _ in range(5):
        again = gradients(experts(x, ids, weights), leaves)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_autocast() -> None:
    experts, x, ids, weights = problem(torch.float32)
    exact = experts(x, ids, weights)
    with torch.autocast("cpu", torch.bfloat16):
        y = experts(x, ids, weights)
    error = ((y - exact).norm() / exact.norm()).item()
    assert 1e-4 < error < 0.02  # bf16 matmuls, as asked
    y.sum().backward()
    assert experts.w_in.grad is not None
    assert experts.w_in.grad.dtype == torch.float32
