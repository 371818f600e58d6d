"""What every mixer must do, for every option of the group: be causal, decode exactly, keep dtypes, compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from k3lab.config.registry import component, options, settings_class
from k3lab.mixer.base import Mixer
from k3lab.mixer.documents import find_documents
from k3lab.model_dims import ModelDims

DIMS = ModelDims(hidden_size=24, heads=2, head_dim=8, init_std=0.3)
RECURRENT = ("kda", "gated_deltanet", "mamba2")  # memory of a fixed size, instead of all tokens
VARIANTS = [
    *[(name, {}) for name in options("mixer")],
    (
        "kda",
        {"output_gate": "low_rank", "value_heads": 4, "value_head_dim": 12, "negative_eigenvalues": True},
    ),
    ("kda", {"output_gate": "none", "conv": 1, "heads": 3, "head_dim": 10}),
    ("gated_deltanet", {"output_gate": "low_rank", "value_heads": 4, "negative_eigenvalues": True}),
    ("mamba2", {"value_heads": 4, "value_head_dim": 12, "chunk": 7, "conv": 2, "output_gate": "none"}),
    (
        "mla",
        {"q_rank": 6, "kv_rank": 10, "nope_dim": 5, "shared_dim": 3, "value_dim": 7, "output_gate": False},
    ),
    ("softmax_attention", {"rope": False, "heads": 3, "head_dim": 7}),
]


def label(value: object) -> str:
    return value if isinstance(value, str) else str(len(value))  # type: ignore[arg-type]


each_variant = pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=label)


def make(name: str, settings: dict[str, Any], decay: str = "lower_bound", dims: ModelDims = DIMS) -> Mixer:
    torch.manual_seed(0)

    def make_decay(heads: int, head_dim: int) -> Any:
        return component("decay", decay)(settings_class("decay", decay)(), heads, head_dim)

    return component("mixer", name)(settings_class("mixer", name)(**settings), dims, make_decay)


def decode(mixer: Mixer, x_BTD: Tensor, lengths: list[int]) -> Tensor:
    cache = mixer.new_cache(x_BTD.shape[0], x_BTD.device, x_BTD.dtype)
    with torch.no_grad():
        return torch.cat([mixer(part, cache) for part in x_BTD.split(lengths, dim=1)], dim=1)


@pytest.mark.parametrize(
    ("name", "settings", "decay"),
    [(n, s, d) for n, s in VARIANTS for d in options("decay") if n == "kda" or d == "none"],
    ids=label,
)
def test_one_token_at_a_time_equals_the_whole_sequence(name: str, settings: dict, decay: str) -> None:
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        mixer = make(name, settings, decay).to(dtype)
        x = torch.randn(2, 70, 24, dtype=dtype)
        whole = mixer(x).detach()
        for lengths in ([1] * 70, [70], [3, 1, 2, 20, 1, 43], [65, *[1] * 5]):
            error = (decode(mixer, x, lengths) - whole).abs().max() / whole.abs().max()
            assert error < tolerance, f"{dtype}, parts {lengths[:6]}: {error}"


@each_variant
def test_no_output_or_gradient_depends_on_the_future(name: str, settings: dict) -> None:
    mixer = make(name, settings)
    for time in (22, 65):
        x = torch.randn(2, time, 24, requires_grad=True)
        changed = x.detach().clone()
        changed[:, -1] += 3
        before, after = mixer(x), mixer(changed)
        assert torch.equal(before[:, :-1], after[:, :-1])
        assert not torch.equal(before[:, -1], after[:, -1])
        (gradient,) = torch.autograd.grad(before[:, : time - 5].square().sum(), x)
        assert torch.equal(gradient[:, time - 5 :], torch.zeros_like(gradient[:, time - 5 :]))


@pytest.mark.parametrize(
    ("name", "settings", "decay"),
    [(n, s, d) for n, s in VARIANTS for d in options("decay") if n == "kda" or d == "none"],
    ids=label,
)
def test_a_packed_document_gives_what_it_gives_alone(name: str, settings: dict, decay: str) -> None:
    """Outputs and gradients; documents of one token, of more than a chunk, and over the whole row."""
    mixer = make(name, settings, decay).double()
    lengths = [[1, 2, 70, 3, 4], [80], [33, 1, 1, 45]]
    ids = torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in lengths])
    x = torch.randn(3, 80, 24, dtype=torch.float64, requires_grad=True)
    packed = mixer(x, None, find_documents(ids))
    (gradient,) = torch.autograd.grad(packed.square().sum(), x)
    for b, row in enumerate(lengths):
        for part in (slice(sum(row[:i]), sum(row[: i + 1])) for i in range(len(row))):
            own = x[b : b + 1, part].detach().requires_grad_(True)
            alone = mixer(own)
            torch.testing.assert_close(packed[b : b + 1, part], alone, rtol=1e-10, atol=1e-10)
            (expected,) = torch.autograd.grad(alone.square().sum(), own)
            torch.testing.assert_close(gradient[b : b + 1, part], expected, rtol=1e-8, atol=1e-10)


@each_variant
def test_every_parameter_learns(name: str, settings: dict) -> None:
    mixer = make(name, settings)
    mixer(torch.randn(2, 9, 24)).square().mean().backward()
    for key, parameter in mixer.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
        assert parameter.grad.abs().max() > 0, key


@each_variant
def test_bf16_autocast_stays_close_to_fp32(name: str, settings: dict) -> None:
    mixer = make(name, settings)
    x = torch.randn(2, 33, 24)
    exact = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = mixer(x)
        rounded.float().square().mean().backward()
    assert rounded.dtype == torch.bfloat16
    assert (rounded - exact).norm() / exact.norm() < 0.03
    assert all(p.grad.dtype == torch.float32 for p in mixer.parameters())


@each_variant
def test_a_model_cast_to_bf16_runs(name: str, settings: dict) -> None:
    mixer = make(name, settings).bfloat16()
    out = mixer(torch.randn(1, 9, 24, dtype=torch.bfloat16))
    assert out.dtype == torch.bfloat16
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("name", options("mixer"))
def test_training_forward_compiles_without_a_graph_break(name: str) -> None:
    mixer = make(name, {})
    x = torch.randn(2, 20, 24)
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), mixer(x))
    compiled(x).square().mean().backward()


@each_variant
def test_costs_count_the_cache_that_is_really_kept(name: str, settings: dict) -> None:
    mixer = make(name, settings)
    caches = {}
    for time in (8, 16):
        cache = mixer.new_cache(1, "cpu", torch.bfloat16)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            mixer(torch.randn(1, time, 24), cache)
        caches[time] = held_bytes(cache)
    assert mixer.kv_bytes_per_token() == (caches[16] - caches[8]) // 8
    assert mixer.state_bytes() == 2 * caches[8] - caches[16]


def held_bytes(cache: Any) -> int:
    if isinstance(cache, Tensor):
        return cache.numel() * cache.element_size()
    if isinstance(cache, tuple):
        return sum(held_bytes(part) for part in cache)
    return sum(held_bytes(value) for value in vars(cache).values() if isinstance(value, Tensor))


@pytest.mark.parametrize("name", options("mixer"))
def test_flops_grow_with_the_sequence_only_for_attention(name: str) -> None:
    mixer = make(name, {})
    short, double, long = (mixer.flops_per_token(n) for n in (1000, 2000, 3000))
    assert long - double == double - short
    assert (double == short) == (name in RECURRENT)
    assert short > 2 * sum(m.weight.numel() for m in mixer.modules() if isinstance(m, torch.nn.Linear))
