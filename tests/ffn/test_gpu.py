"""On a GPU: the same values as the float64 loop, zero gradients for idle experts, and no wait for the device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from k3lab.ffn.experts import Experts
from tests.ffn.helpers import OPTIONS, gradients, inputs, loop, make

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture
def no_sync() -> Iterator[None]:
    """Makes every operation that waits for the device an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("width", "hidden"), [(64, 128), (60, 36)])
def test_experts_in_bf16(width: int, hidden: int) -> None:
    torch.manual_seed(0)
    experts = Experts(8, width, hidden, "situ", 0.1).cuda().bfloat16()
    ids = torch.rand(200, 5).argsort(dim=-1)[:, :3].cuda()
    weights = torch.rand(200, 3).cuda().requires_grad_()
    x = inputs(200, width).cuda().bfloat16().requires_grad_()
    found = experts(x, ids, weights)
    found_grads = gradients(found.cpu(), [x, weights, experts.w_in, experts.w_out])
    exact = Experts(8, width, hidden, "situ", 0.1).double()
    exact.load_state_dict(experts.state_dict())
    x64, w64 = x.detach().cpu().double().requires_grad_(), weights.detach().cpu().double().requires_grad_()
    expected = loop(exact, "situ", x64, ids.cpu(), w64)
    expected_grads = gradients(expected, [x64, w64, exact.w_in, exact.w_out])
    for a, b in zip([found, *found_grads], [expected, *expected_grads], strict=True):
        assert (a.cpu().double() - b).norm() <= 0.02 * b.norm()
    for gradient in found_grads[2:]:
        assert (gradient[5:] == 0).all()


@pytest.mark.parametrize("name", OPTIONS)
def test_layers_never_wait_for_the_device(name: str, request: pytest.FixtureRequest) -> None:
    layer, x = make(name, width=64).cuda(), inputs(2, 100, 64).cuda().requires_grad_()
    mask = (torch.arange(200) % 7 > 0).view(2, 100).cuda()
    request.getfixturevalue("no_sync")
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            y, routing = layer(x, mask)
        y.float().square().mean().backward()
        if layer.router is not None:
            layer.router.count(routing)
            layer.router.end_of_global_batch()
