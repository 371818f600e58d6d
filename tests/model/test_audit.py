"""The audit against the weights, against torch's own count of FLOPs, and the sizes of the presets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from k3lab.config.load import load
from k3lab.model.audit import audit_config, print_audit
from k3lab.model.build import build_model


@pytest.mark.parametrize("tie", [False, True])
def test_parts_add_up_to_the_weights(compose: Callable[..., Any], tie: bool) -> None:
    config = compose(tie_embeddings=tie, ffn=("moe", {"leading_dense": 1, "experts": 5, "top_k": 2}), vocab_size=9)
    model = build_model(config, 9)
    result = audit_config(config)
    assert result == model.audit(seq_len=32)
    assert result["total_params"] == sum(p.numel() for p in model.parameters())
    assert sum(result["by_part"].values()) == result["total_params"]
    assert sum(result["active_by_part"].values()) == result["active_params"]
    experts = sum(p.numel() for layer in model.layers[1:] for p in layer.ffn.experts.parameters())
    idle = experts * 3 // 5 + (0 if tie else model.embedding.weight.numel())
    assert result["active_params"] == result["total_params"] - idle
    assert json.loads(json.dumps(result)) == result


def test_flops_are_those_that_torch_counts(compose: Callable[..., Any]) -> None:
    """A dense attention model, where every FLOP is a matmul that torch sees; it counts the whole square of scores."""
    config = compose(mixers=("softmax_attention",), ffn="swiglu", residual="prenorm", vocab_size=64)
    model = build_model(config, 64)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 32, dtype=torch.int64))
    square = 3 * 2 * 32 * 32 * 2 * (8 + 8)
    triangle = 3 * 33 * 32 * 2 * (8 + 8)
    assert 32 * model.audit(32)["flops_per_token"] == counter.get_total_flops() - square + triangle


def test_decoding_memory_is_summed_over_the_layers(compose: Callable[..., Any]) -> None:
    result = audit_config(compose(layers=4))
    assert result["kv_bytes_per_token"] == 2 * (4 * 8 + 4)
    assert result["state_bytes"] == 3 * (4 * 2 * 8 * 8 + 2 * 3 * 48)


@pytest.mark.parametrize(("preset", "size"), [("nano", 1e6), ("tiny", 10e6), ("small", 100e6)])
def test_presets_have_their_size(compose: Callable[..., Any], preset: str, size: float) -> None:
    result = audit_config(compose(preset=preset))
    assert result["total_params"] == pytest.approx(size, rel=0.1)


def test_prints_every_part(compose: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    result = audit_config(compose())
    print_audit(result)
    text = capsys.readouterr().out
    for part, number in result["by_part"].items():
        assert part in text
        assert f"{number:,}" in text


@pytest.mark.parametrize(("preset", "total", "active"), [("kimi_k3", 2.78e12, 104.2e9), ("kimi_linear", 49.1e9, 3.1e9)])
def test_the_published_models_have_their_published_sizes(preset: str, total: float, active: float) -> None:
    """The model's name alone brings all its groups; active is without the input embedding."""
    result = audit_config(load([f"model={preset}"]))
    assert result["total_params"] == pytest.approx(total, rel=0.005)
    assert result["active_params"] == pytest.approx(active, rel=0.005)


def test_the_published_cache_and_state_of_k3() -> None:
    """24 MLA layers keep 512 + 64 numbers a token in bf16, 69 KDA layers 96 fp32 memories of 128 × 128."""
    result = audit_config(load(["model=kimi_k3"]))
    assert result["kv_bytes_per_token"] == 24 * 2 * 576
    assert result["state_bytes"] == 69 * (96 * 4 * 128**2 + 3 * 2 * 3 * 96 * 128)


@pytest.mark.parametrize("size", [194, 241, 296, 436, 528])
def test_the_attnres_models_have_nearly_their_published_sizes(size: int) -> None:
    config = load([f"model=attnres_{size}m"])
    result = audit_config(config)
    active = result["active_params"] - result["active_by_part"]["head"]
    assert active == pytest.approx(size * 1e6, rel=0.02)
    assert config.mixer.keys() == {"kda", "mla"}
    blocks = -(-config.model.layers // config.residual.block_layers)
    assert 6 <= blocks <= 9
