"""KDA against a token loop written from its equations, and the mixers it becomes under other decays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from k3lab.config.registry import component, settings_class
from k3lab.mixer.kda import KDA, KDASettings
from k3lab.model_dims import ModelDims

DIMS = ModelDims(hidden_size=12, heads=2, head_dim=4, init_std=0.4)


def make(decay: str = "lower_bound", dims: ModelDims = DIMS, **settings: Any) -> KDA:
    torch.manual_seed(0)

    def make_decay(heads: int, head_dim: int) -> Any:
        return component("decay", decay)(settings_class("decay", decay)(), heads, head_dim)

    return KDA(KDASettings(**settings), dims, make_decay).double()


def loop(m: KDA, x_TD: Tensor) -> Tensor:
    """The published equations for one sequence, a token and a head at a time."""

    def conv(x_TC: Tensor, weight_C1W: Tensor) -> Tensor:
        taps = weight_C1W.shape[-1]
        rows = [
            sum(
                (weight_C1W[:, 0, taps - 1 - back] * x_TC[t - back] for back in range(min(taps, t + 1))),
                start=0,
            )
            for t in range(len(x_TC))
        ]
        return F.silu(torch.stack(rows))

    q_TC, k_TC, v_TC = (
        conv(project(x_TD), short.weight) for project, short in ((m.q, m.q_conv), (m.k, m.k_conv), (m.v, m.v_conv))
    )
    g_TGK = m.decay.log_decay(m.decay_logit(x_TD[None]))[0]
    beta_TG = torch.sigmoid(m.beta(x_TD)) * (2 if m.settings.negative_eigenvalues else 1)
    heads = []
    for value_head in range(m.value_heads):
        head = value_head // (m.value_heads // m.heads)
        keys = slice(head * m.key_dim, (head + 1) * m.key_dim)
        values = slice(value_head * m.value_dim, (value_head + 1) * m.value_dim)
        S_KV = torch.zeros(m.key_dim, m.value_dim, dtype=torch.float64)
        rows = []
        for t in range(len(x_TD)):
            q, k, v = q_TC[t, keys], k_TC[t, keys], v_TC[t, values]
            q, k = q / (q.square().sum() + 1e-6).sqrt(), k / (k.square().sum() + 1e-6).sqrt()
            S_KV = torch.diag(g_TGK[t, value_head].exp()) @ S_KV
            S_KV = S_KV + beta_TG[t, value_head] * torch.outer(k, v - S_KV.T @ k)
            o = S_KV.T @ q * m.key_dim**-0.5
            rows.append(m.norm.weight * o / (o.square().mean() + m.dims.eps).sqrt())
        heads.append(torch.stack(rows))
    o_TC = torch.cat(heads, dim=-1)
    if m.gate is not None:
        o_TC = o_TC * torch.sigmoid(m.gate(x_TD))
    return m.out(o_TC)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"value_heads": 4, "value_head_dim": 6},
        {"heads": 3, "head_dim": 5, "output_gate": "low_rank", "conv": 2},
        {"negative_eigenvalues": True, "output_gate": "none", "conv": 1},
    ],
)
@pytest.mark.parametrize("decay", ["lower_bound", "softplus", "scalar", "none"])
def test_equals_the_equations(settings: dict, decay: str) -> None:
    mixer = make(decay, **settings)
    x = torch.randn(2, 19, 12, dtype=torch.float64)
    expected = torch.stack([loop(mixer, x[b]) for b in range(2)])
    torch.testing.assert_close(mixer(x), expected, rtol=1e-9, atol=1e-11)


def test_channels_that_decay_equally_make_it_gated_deltanet() -> None:
    """Give every channel of a head the scalar decay's logit and bias: the outputs must agree."""
    scalar, full = make("scalar"), make("softplus")
    shared = {k: v for k, v in scalar.state_dict().items() if not k.startswith(("decay.", "decay_logit."))}
    full.load_state_dict(shared, strict=False)
    with torch.no_grad():
        full.decay.A_log.copy_(scalar.decay.A_log)
        full.decay.dt_bias.copy_(scalar.decay.dt_bias.repeat_interleave(4))
        full.decay_logit.down = None
        full.decay_logit.up = torch.nn.Linear(12, 8, bias=False).double()
        full.decay_logit.up.weight.copy_(scalar.decay_logit.up.weight.repeat_interleave(4, dim=0))
    x = torch.randn(2, 30, 12, dtype=torch.float64)
    torch.testing.assert_close(full(x), scalar(x), rtol=1e-10, atol=1e-12)


def test_a_decay_that_has_vanished_makes_it_deltanet() -> None:
    none, full = make("none"), make("softplus")
    shared = {k: v for k, v in none.state_dict().items() if not k.startswith(("decay.", "decay_logit."))}
    full.load_state_dict(shared, strict=False)
    with torch.no_grad():
        full.decay.A_log.fill_(-80)
    x = torch.randn(2, 30, 12, dtype=torch.float64)
    torch.testing.assert_close(full(x), none(x), rtol=1e-10, atol=1e-12)


def test_decay_logits_are_sized_by_the_decay() -> None:
    low_rank = make("lower_bound").decay_logit
    assert low_rank.down.weight.shape == (4, 12)
    assert low_rank.up.weight.shape == (8, 4)
    assert make("lower_bound", decay_rank=3).decay_logit.down.weight.shape == (3, 12)
    direct = make("scalar").decay_logit
    assert direct.down is None
    assert direct.up.weight.shape == (2, 12)
    assert list(make("none").decay_logit.parameters()) == []
    x = torch.randn(1, 3, 12, dtype=torch.float64)
    assert low_rank(x).shape == (1, 3, 2, 4)
    assert make("none").decay_logit(x).shape == (1, 3, 2, 0)


def test_only_negative_eigenvalues_let_the_state_flip_sign() -> None:
    """With k = v-less writes, S shrinks along k by 1 − β: β near 2 reverses it, β near 1 clears it."""
    flips = {}
    for negative in (False, True):
        mixer = make("none", negative_eigenvalues=negative)
        with torch.no_grad():
            mixer.beta.weight.fill_(0)
            mixer.v.weight.fill_(0)
        cache = mixer.new_cache(1, "cpu", torch.float64)
        x = torch.randn(1, 1, 12, dtype=torch.float64)
        mixer(x, cache)
        k = F.silu(mixer.k_conv.weight[:, 0, -1] * mixer.k(x)[0, 0]).view(2, 4)
        k = k / k.norm(dim=-1, keepdim=True)
        with torch.no_grad():
            mixer.beta.weight.copy_(50 * x[0, 0].expand(2, 12))
            cache.state.copy_(k[None, :, :, None].expand(1, 2, 4, 4))
            cache.q_tail, cache.k_tail, cache.v_tail = (
                torch.zeros_like(t) for t in (cache.q_tail, cache.k_tail, cache.v_tail)
            )
            mixer(x, cache)
        flips[negative] = (k[..., None] * cache.state[0]).sum(1).mean().item()
    assert flips[True] == pytest.approx(-1, abs=1e-4)
    assert flips[False] == pytest.approx(0, abs=1e-4)


def test_state_is_carried_in_fp32_under_bf16() -> None:
    mixer = make().bfloat16()
    cache = mixer.new_cache(2, "cpu", torch.bfloat16)
    for time in (5, 1):
        mixer(torch.randn(2, time, 12, dtype=torch.bfloat16), cache)
        assert cache.state.dtype == torch.float32


def test_the_inner_width_may_differ_from_the_hidden_size() -> None:
    mixer = make(dims=ModelDims(hidden_size=10, heads=6, head_dim=4))
    assert mixer.out.weight.shape == (10, 24)
    assert mixer(torch.randn(1, 3, 10, dtype=torch.float64)).shape == (1, 3, 10)


def test_the_chunk_changes_the_order_of_sums_alone() -> None:
    x = torch.randn(1, 100, 12, dtype=torch.float64)
    assert make().chunk == 32
    assert make(head_dim=64).chunk == 64
    torch.testing.assert_close(make(chunk=64)(x), make(chunk=32)(x), rtol=1e-10, atol=1e-13)
    assert make(chunk=64).flops_per_token(100) > make(chunk=32).flops_per_token(100)


def test_refuses_bad_settings() -> None:
    with pytest.raises(ValueError, match=r"output_gate=ful.*full"):
        KDASettings(output_gate="ful")
    with pytest.raises(ValueError, match="chunk=48: must be 32 or 64"):
        KDASettings(chunk=48)
    with pytest.raises(ValueError, match="conv=0"):
        KDASettings(conv=0)
    config = SimpleNamespace(model=SimpleNamespace(heads=2))
    with pytest.raises(ValueError, match=r"mixer\.kda\.value_heads=3: must be a multiple"):
        KDASettings(value_heads=3).check(config)
    KDASettings(value_heads=4).check(config)
