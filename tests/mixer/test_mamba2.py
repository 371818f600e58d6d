"""Mamba-2's memory against a token loop written from its equation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from k3lab.mixer.mamba2 import Mamba2, Mamba2Settings
from k3lab.model_dims import ModelDims

DIMS = ModelDims(hidden_size=12, heads=2, head_dim=4, init_std=0.4)


def make(**settings: Any) -> Mamba2:
    torch.manual_seed(0)
    other = lambda heads, head_dim: pytest.fail("the group's decay is not for it")
    return Mamba2(Mamba2Settings(**settings), DIMS, other).double()


def loop(m: Mamba2, x_TD: Tensor) -> Tensor:
    """One sequence, a head and a token at a time."""

    def conv(x_TC: Tensor, weight_C1W: Tensor) -> Tensor:
        taps = weight_C1W.shape[-1]
        padded = F.pad(x_TC, (0, 0, taps - 1, 0))
        return F.silu(torch.stack([(padded[t : t + taps] * weight_C1W[:, 0].T).sum(0) for t in range(len(x_TC))]))

    q_TC, k_TC, v_TC = (
        conv(project(x_TD), short.weight) for project, short in ((m.q, m.q_conv), (m.k, m.k_conv), (m.v, m.v_conv))
    )
    z_TG = m.decay_logit.up(x_TD) + m.decay.dt_bias
    g_TG = -m.decay.A_log.exp() * torch.log1p(z_TG.exp())
    beta_TG = torch.sigmoid(m.beta(x_TD))
    heads = []
    for value_head in range(m.value_heads):
        head = value_head // (m.value_heads // m.heads)
        S_KV = torch.zeros(m.key_dim, m.value_dim, dtype=torch.float64)
        rows = []
        for t in range(len(x_TD)):
            q, k = (x[t].view(m.heads, -1)[head] for x in (q_TC, k_TC))
            q, k = (u / (u.square().sum() + 1e-6).sqrt() for u in (q, k))
            v = v_TC[t].view(m.value_heads, -1)[value_head]
            S_KV = g_TG[t, value_head].exp() * S_KV + beta_TG[t, value_head] * torch.outer(k, v)
            o = S_KV.T @ q * m.key_dim**-0.5
            rows.append(m.norm.weight * o / (o.square().mean() + m.dims.eps).sqrt())
        heads.append(torch.stack(rows))
    o_TC = torch.cat(heads, dim=-1)
    return m.out(o_TC if m.gate is None else o_TC * torch.sigmoid(m.gate(x_TD)))


@pytest.mark.parametrize(
    "settings",
    [{}, {"value_heads": 4, "value_head_dim": 6, "chunk": 5}, {"output_gate": "low_rank", "conv": 1, "a_init": "zero"}],
)
def test_equals_the_equation(settings: dict) -> None:
    mixer = make(**settings)
    x = torch.randn(2, 19, 12, dtype=torch.float64)
    expected = torch.stack([loop(mixer, x[b]) for b in range(2)])
    torch.testing.assert_close(mixer(x), expected, rtol=1e-9, atol=1e-11)


def test_it_never_corrects_what_it_has_written() -> None:
    """Writing one key twice without decay adds up; the delta rule would leave the newest value alone."""
    mixer = make(conv=1)
    with torch.no_grad():
        mixer.decay.A_log.fill_(-80)
    x = torch.randn(1, 1, 12, dtype=torch.float64).expand(1, 2, 12)
    cache = mixer.new_cache(1, "cpu", torch.float64)
    states = []
    for t in range(2):
        mixer(x[:, t : t + 1], cache)
        states.append(cache.state)
    torch.testing.assert_close(states[1], 2 * states[0])


def test_costs() -> None:
    mixer = make()
    assert mixer.memory_flops_per_token() == 32 * (4 + 4) + 4 * 4 * 4
    assert mixer.state_bytes() == 4 * 2 * 4 * 4 + 2 * 3 * 24
    assert mixer.kv_bytes_per_token() == 0


def test_refuses_bad_settings() -> None:
    with pytest.raises(ValueError, match="chunk=0"):
        Mamba2Settings(chunk=0)
    with pytest.raises(ValueError, match=r"dt_min=0\.2: must not exceed"):
        Mamba2Settings(dt_min=0.2)
    config = SimpleNamespace(model=SimpleNamespace(heads=2))
    with pytest.raises(ValueError, match=r"mixer\.mamba2\.value_heads=3: must be a multiple"):
        Mamba2Settings(value_heads=3).check(config)
