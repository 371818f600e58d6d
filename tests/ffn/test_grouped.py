"""The grouped linear map: against a loop, empty groups, odd sizes, and what torch asks of an operator."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from k3lab.ffn.grouped import grouped_linear
from tests.ffn.helpers import inputs

SIZES = [0, 5, 0, 1, 9, 0]  # rows of each group; the first, the last and one between are empty
WIDTHS = [(16, 24), (15, 24), (16, 7), (60, 4), (1, 1)]  # some with strides that the grouped matmul refuses


def problem(c: int, o: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x = inputs(sum(SIZES), c).to(dtype).requires_grad_()
    weight = inputs(len(SIZES), o, c, seed=1).to(dtype).requires_grad_()
    return x, weight, torch.tensor(SIZES).cumsum(0).int()


def by_group(x: Tensor, weight: Tensor) -> Tensor:
    return torch.cat([rows @ w.T for rows, w in zip(x.split(SIZES), weight, strict=True)])


@pytest.mark.parametrize(("c", "o"), WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_equals_the_loop(c: int, o: int, dtype: torch.dtype) -> None:
    x, weight, ends = problem(c, o, dtype)
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    expected = by_group(*exact)
    found = grouped_linear(x, weight, ends)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 0.1}[dtype]
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)
    dy = inputs(*found.shape, seed=2).to(dtype)
    found_grads = torch.autograd.grad(found, [x, weight], dy)
    for a, b in zip(found_grads, torch.autograd.grad(expected, exact, dy.double()), strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_groups_without_rows_get_zero_gradients(dtype: torch.dtype) -> None:
    x, weight, ends = problem(16, 24, dtype)
    for _ in range(10):
        stale = [torch.full(weight.shape, torch.nan, dtype=dtype) for _ in range(4)]
        del stale  # freed memory full of NaN, for a result that is not written to show
        _, gradient = torch.autograd.grad(grouped_linear(x, weight, ends).square().sum(), [x, weight])
        assert all((gradient[e] == 0).all() for e, size in enumerate(SIZES) if size == 0)
        assert gradient.isfinite().all()
        assert gradient.is_contiguous()


def test_no_rows_at_all() -> None:
    weight = inputs(3, 8, 16).requires_grad_()
    y = grouped_linear(torch.zeros(0, 16), weight, torch.zeros(3, dtype=torch.int32))
    assert y.shape == (0, 8)
    y.sum().backward()
    assert not weight.grad.any()  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_a_proper_operator(dtype: torch.dtype) -> None:
    torch.library.opcheck(grouped_linear, problem(16, 24, dtype))


def test_gradients_of_views() -> None:
    x, weight, ends = problem(16, 24, torch.float32)
    wide = torch.zeros(15, 40)
    wide[:, 20:36] = x.detach()
    torch.testing.assert_close(grouped_linear(wide[:, 20:36], weight, ends), grouped_linear(x, weight, ends))
    turned = weight.detach().mT.contiguous().mT
    torch.testing.assert_close(grouped_linear(x, turned, ends), grouped_linear(x, weight, ends))
    y = grouped_linear(x, weight, ends)
    expanded = torch.autograd.grad(y.sum(), [x, weight])  # an expanded gradient with strides of 0
    plain = torch.autograd.grad(by_group(x, weight).sum(), [x, weight])
    for a, b in zip(expanded, plain, strict=True):
        torch.testing.assert_close(a, b)
