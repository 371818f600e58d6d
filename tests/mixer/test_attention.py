"""Causal attention for queries that continue a sequence."""

from __future__ import annotations

import pytest
import torch

from k3lab.mixer.attention import attention_flops, causal_attention
from k3lab.mixer.documents import find_documents


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


@pytest.mark.parametrize("shared", [False, True])
def test_a_query_sees_its_own_document_alone(shared: bool) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 6, 3, 4, dtype=torch.float64)
    k, v = (torch.randn(2, 6, 1 if shared else 3, width, dtype=torch.float64) for width in (4, 2))
    found = causal_attention(q, k, v, 0.3, find_documents(torch.tensor([[0, 0, 0, 1, 1, 2], [4, 4, 4, 4, 4, 4]])))
    for b, (start, stop) in ((0, (0, 3)), (0, (3, 5)), (0, (5, 6)), (1, (0, 6))):
        part = slice(start, stop)
        alone = causal_attention(q[b : b + 1, part], k[b : b + 1, part], v[b : b + 1, part], 0.3)
        torch.testing.assert_close(found[b : b + 1, part], alone)
