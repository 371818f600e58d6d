"""The default composition on a CUDA device: against the CPU, compiled, under autocast, decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from k3lab.model.build import build_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MIXERS = [("kda", "mla"), ("softmax_attention",), ("gated_deltanet",), ("mamba2",)]


def make(compose: Callable[..., Any], mixers: tuple[str, ...]) -> Any:
    torch.manual_seed(0)
    return build_model(compose(mixers=mixers, hidden_size=64, heads=2, ffn="swiglu"), 256)


def gradients(model: Any, x: torch.Tensor, forward: Any = None) -> dict[str, torch.Tensor]:
    model.zero_grad()
    logits = (model if forward is None else forward)(x).logits_BTV.float()
    F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
    # a copy: moving a model to a device moves the gradients that it still holds
    return {k: p.grad.detach().cpu().clone() for k, p in model.named_parameters() if p.grad is not None}


def worst(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(((a[k] - b[k]).norm() / (b[k].norm() + 1e-6)).item() for k in a)


@pytest.mark.parametrize("mixers", MIXERS)
def test_gradients_equal_the_cpu_s(compose: Callable[..., Any], mixers: tuple[str, ...]) -> None:
    model = make(compose, mixers)
    x = torch.randint(256, (2, 150))
    expected = gradients(model, x)
    assert worst(gradients(model.cuda(), x.cuda()), expected) < 2e-3


@pytest.mark.parametrize("mixers", MIXERS)
def test_compiled_bf16_training_stays_close_to_fp32(compose: Callable[..., Any], mixers: tuple[str, ...]) -> None:
    model = make(compose, mixers).cuda()
    x = torch.randint(256, (2, 150), device="cuda")
    expected = gradients(model, x)
    compiled = torch.compile(model, fullgraph=True)
    with torch.autocast("cuda", torch.bfloat16):
        rounded = gradients(model, x, compiled)
    errors = {k: ((rounded[k] - expected[k]).norm() / (expected[k].norm() + 1e-6)).item() for k in expected}
    assert sorted(errors.values())[len(errors) // 2] < 0.05, errors


@pytest.mark.parametrize("mixers", MIXERS)
def test_decoding_equals_the_whole_sequence(compose: Callable[..., Any], mixers: tuple[str, ...]) -> None:
    model = make(compose, mixers).cuda().eval()
    x = torch.randint(256, (2, 80), device="cuda")
    with torch.no_grad():
        whole = model(x).logits_BTV
        caches = model.new_caches(2)
        parts = [model(part, caches=caches).logits_BTV for part in x.split([40, *[1] * 20, 20], dim=1)]
    assert (torch.cat(parts, dim=1) - whole).norm() / whole.norm() < 1e-3


@pytest.mark.parametrize("mixers", MIXERS)
def test_packed_documents_equal_themselves_alone_compiled_too(
    compose: Callable[..., Any], mixers: tuple[str, ...]
) -> None:
    model = make(compose, mixers).cuda()
    x = torch.randint(256, (1, 100), device="cuda")
    ids = torch.repeat_interleave(torch.arange(3, device="cuda"), torch.tensor([1, 70, 29], device="cuda"))[None]
    alone = torch.cat([model(part).logits_BTV for part in x.split([1, 70, 29], dim=1)], dim=1)
    for run in (model, torch.compile(model)):
        packed = run(x, documents_BT=ids).logits_BTV
        assert (packed - alone).norm() / alone.norm() < 1e-3
