"""Causal attention for queries that continue a sequence."""

from __future__ import annotations

import pytest
import torch

from k3lab.mixer.attention import attention_flops, causal_attention


@pytest.mark.parametrize("new", [1, 2, 5, 9])
@pytest.mark.parametrize("value_dim", [2, 4, 6])
@pytest.mark.parametrize("shared", [False, True])
def test_the_last_queries_see_what_they_may(new: int, value_dim: int, shared: bool) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 9, 3, 4, dtype=torch.float64)
    k = torch.randn(2, 9, 1 if shared else 3, 4, dtype=torch.float64)
    v = torch.randn(2, 9, 1 if shared else 3, value_dim, dtype=torch.float64)
    scores = torch.einsum("bthk,blhk->bhtl", q, k.expand(2, 9, 3, 4)) * 0.3
    weights = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf).softmax(-1)
    expected = torch.einsum("bhtl,blhv->bthv", weights, v.expand(2, 9, 3, value_dim))
    torch.testing.assert_close(causal_attention(q[:, 9 - new :], k, v, 0.3), expected[:, 9 - new :])


def test_flops_are_the_mean_over_the_causal_triangle() -> None:
    seq_len, heads, key_dim, value_dim = 7, 3, 5, 2
    total = sum(2 * (t + 1) * heads * (key_dim + value_dim) for t in range(seq_len))
    assert attention_flops(seq_len, heads, key_dim, value_dim) == total // seq_len
