"""MLA against attention written out head by head, and its latent decoding form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from k3lab.mixer.mla import MLA, MLASettings
from k3lab.model_dims import ModelDims


def make(dims: ModelDims | None = None, **settings: Any) -> MLA:
    torch.manual_seed(0)
    dims = dims or ModelDims(hidden_size=12, heads=2, head_dim=4, init_std=0.4)
    return MLA(MLASettings(**settings), dims, lambda heads, head_dim: pytest.fail("attention needs no decay")).double()


def by_hand(m: MLA, x_TD: Tensor) -> Tensor:
    time = len(x_TD)
    q_THx = m.q(x_TD).view(time, m.heads, -1)
    c_TR, p_TP = m.kv_down(x_TD).split([m.latent_dim, m.shared_dim], dim=-1)
    c_TR = m.kv_norm.weight * c_TR / (c_TR.square().mean(-1, keepdim=True) + m.dims.eps).sqrt()
    kv_THx = m.kv_up(c_TR).view(time, m.heads, -1)
    heads = []
    for h in range(m.heads):
        k = torch.cat([kv_THx[:, h, : m.nope_dim], p_TP], dim=-1)
        scores = q_THx[:, h] @ k.T / (m.nope_dim + m.shared_dim) ** 0.5
        weights = scores.masked_fill(torch.ones(time, time).triu(1).bool(), -torch.inf).softmax(-1)
        heads.append(weights @ kv_THx[:, h, m.nope_dim :])
    o_TC = torch.cat(heads, dim=-1)
    return m.out(o_TC if m.gate is None else o_TC * torch.sigmoid(m.gate(x_TD)))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"q_rank": 5, "kv_rank": 6, "nope_dim": 3, "shared_dim": 2, "value_dim": 7},
        {"heads": 3, "output_gate": False},
    ],
)
def test_equals_attention_by_hand(settings: dict) -> None:
    mixer = make(**settings)
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    expected = torch.stack([by_hand(mixer, x[b]) for b in range(2)])
    torch.testing.assert_close(mixer(x), expected, rtol=1e-10, atol=1e-12)


def test_has_no_positions() -> None:
    """Exchanging two earlier tokens leaves later outputs alone."""
    mixer = make()
    x = torch.randn(1, 8, 12, dtype=torch.float64)
    swapped = x[:, [1, 0, *range(2, 8)]]
    torch.testing.assert_close(mixer(swapped)[:, 2:], mixer(x)[:, 2:], rtol=1e-10, atol=1e-12)


def test_sizes_follow_the_head_dim() -> None:
    mixer = make(ModelDims(hidden_size=64, heads=2, head_dim=16))
    assert (mixer.latent_dim, mixer.nope_dim, mixer.shared_dim, mixer.value_dim) == (64, 16, 8, 16)
    assert mixer.kv_bytes_per_token() == 2 * (64 + 8)


def test_the_latent_form_is_the_expanded_form() -> None:
    mixer = make(kv_rank=6, nope_dim=3, value_dim=7)
    q = torch.randn(2, 1, 2, mixer.nope_dim + mixer.shared_dim, dtype=torch.float64)
    c = torch.randn(2, 11, 6, dtype=torch.float64)
    p = torch.randn(2, 11, mixer.shared_dim, dtype=torch.float64)
    torch.testing.assert_close(mixer._attend_latent(q, c, p), mixer._attend_expanded(q, c, p))


def test_refuses_bad_settings() -> None:
    with pytest.raises(ValueError, match="kv_rank=0: must be positive"):
        MLASettings(kv_rank=0)
