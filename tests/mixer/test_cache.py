"""The token cache: content, growth, dtype, refusal."""

from __future__ import annotations

import pytest
import torch

from k3lab.mixer.cache import TokenCache


def test_returns_everything_appended_and_copies_rarely() -> None:
    cache = TokenCache(2, "cpu", torch.float32)
    rows = torch.randn(2, 100, 3)
    buffers = set()
    for t in range(100):
        seen = cache.append(rows[:, t : t + 1])
        assert torch.equal(seen, rows[:, : t + 1])
        buffers.add(seen.untyped_storage().data_ptr())
    assert len(buffers) <= 8, "the buffer doubles instead of growing by a token"


def test_keeps_its_own_dtype_and_answers_in_that_of_the_input() -> None:
    cache = TokenCache(1, "cpu", torch.bfloat16)
    x = torch.randn(1, 4, 2)
    seen = cache.append(x)
    assert seen.dtype == torch.float32
    assert torch.equal(seen, x.bfloat16().float())


def test_refuses_another_batch_size() -> None:
    with pytest.raises(ValueError, match="made for a batch of 2, got one of 3"):
        TokenCache(2, "cpu", torch.float32).append(torch.randn(3, 1, 2))
