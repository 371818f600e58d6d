"""What the kernel tests share: one thread, a fresh seed a test, and relative errors."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_one_seed(request):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(sum(map(ord, request.node.name)))
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def error():
    """RMS of the difference over RMS of the right value."""

    def relative(got: torch.Tensor, want: torch.Tensor) -> float:
        assert got.shape == want.shape
        size = want.double().norm()
        return ((got.double() - want.double()).norm() / (size if size > 0 else 1.0)).item()

    return relative
