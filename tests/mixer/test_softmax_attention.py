"""Plain attention against a loop, and rotary positions by their defining property."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from k3lab.mixer.softmax_attention import SoftmaxAttention, SoftmaxAttentionSettings, rotate, rotation
from k3lab.model_dims import ModelDims


def make(**settings: Any) -> SoftmaxAttention:
    torch.manual_seed(0)
    dims = ModelDims(hidden_size=12, heads=2, head_dim=4, init_std=0.4)
    return SoftmaxAttention(SoftmaxAttentionSettings(**settings), dims, lambda h, k: pytest.fail("no decay")).double()


@pytest.mark.parametrize("rope", [False, True])
def test_equals_attention_by_hand(rope: bool) -> None:
    m = make(rope=rope)
    x = torch.randn(7, 12, dtype=torch.float64)
    q, k, v = (project(x).view(7, 2, 4) for project in (m.q, m.k, m.v))
    if rope:
        turned = []
        for y in (q, k):
            pairs = torch.complex(y[..., :2], y[..., 2:])
            angle = torch.arange(7.0, dtype=torch.float64)[:, None] * torch.tensor(
                [1.0, 1e4**-0.5], dtype=torch.float64
            )
            pairs = pairs * torch.polar(torch.ones_like(angle), angle)[:, None]
            turned.append(torch.cat([pairs.real, pairs.imag], dim=-1))
        q, k = turned
    rows = []
    for t in range(7):
        weights = torch.einsum("hk,lhk->hl", q[t], k[: t + 1]).div(2).softmax(-1)
        rows.append(torch.einsum("hl,lhk->hk", weights, v[: t + 1]).flatten())
    torch.testing.assert_close(m(x[None])[0], m.out(torch.stack(rows)), rtol=1e-10, atol=1e-12)


def test_rotation_makes_scores_depend_on_distance_alone() -> None:
    q, k = torch.randn(2, 8, dtype=torch.float64)

    def score(i: int, j: int) -> float:
        a, b = (rotate(x.view(1, 1, 1, 8), *rotation(at, 1, 8, 1e4, x)) for x, at in ((q, i), (k, j)))
        return (a * b).sum().item()

    assert score(5, 2) == pytest.approx(score(1005, 1002), rel=1e-9)
    assert score(5, 2) != pytest.approx(score(5, 3), rel=1e-3)


def test_positions_matter_only_with_rope() -> None:
    x = torch.randn(1, 8, 12, dtype=torch.float64)
    swapped = x[:, [1, 0, *range(2, 8)]]
    assert torch.allclose(make(rope=False)(swapped)[:, 2:], make(rope=False)(x)[:, 2:])
    assert not torch.allclose(make(rope=True)(swapped)[:, 2:], make(rope=True)(x)[:, 2:])


def test_refuses_odd_heads_with_rope() -> None:
    config = SimpleNamespace(model=SimpleNamespace(head_dim=7))
    with pytest.raises(ValueError, match="head_dim=7: must be even when rope=true"):
        SoftmaxAttentionSettings().check(config)
    SoftmaxAttentionSettings(rope=False).check(config)
    with pytest.raises(ValueError, match="rope_base"):
        SoftmaxAttentionSettings(rope_base=0)
