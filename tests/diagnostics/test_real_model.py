"""The probe on the composition that the laboratory is about: KDA and MLA, latent experts, block residuals."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from k3lab.config.registry import settings_class
from k3lab.diagnostics.balance_metrics import balance_metrics, bias_metrics, biases_of
from k3lab.diagnostics.callback import probed_counts, record_metrics
from k3lab.diagnostics.probe import probe
from k3lab.model.build import build_model
from k3lab.model.settings import ModelSettings


def config(decay: str, residual: str) -> Any:
    return SimpleNamespace(
        model=ModelSettings(hidden_size=32, layers=3, heads=2, dropout=0.1, pattern=["kda", "kda", "mla"]),
        decay=settings_class("decay", decay)(),
        router=settings_class("router", "quantile")(),
        residual=settings_class("residual", residual)(),
        ffn=settings_class("ffn", "latent_moe")(experts=8, top_k=2),
        mixer={name: settings_class("mixer", name)() for name in ("kda", "mla")},
    )


@pytest.mark.parametrize("decay", ["lower_bound", "softplus", "scalar", "none"])
@pytest.mark.parametrize("residual", ["block_attnres", "full_attnres", "prenorm"])
def test_every_metric_of_a_real_model(decay: str, residual: str) -> None:
    torch.manual_seed(0)
    model = build_model(config(decay, residual), 64)
    tokens = torch.randint(64, (3, 41))
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}
    rng = torch.get_rng_state()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    record = probe(model, batch, sequences=2)
    metrics = {**record_metrics(record, 400), **balance_metrics(model, probed_counts(record))}
    metrics |= bias_metrics(biases_of(model))
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert all(m.training for m in model.modules())

    assert all(math.isfinite(v) for v in metrics.values())
    assert metrics["balance/bias_spread"] == 0
    assert ("decay/half_life_median" in metrics) == (decay != "none")
    assert ("decay/at_bound_fraction" in metrics) == (decay == "lower_bound")
    assert all(metrics[f"depth/grad_rms/layer_{i:02d}"] > 0 for i in range(6))
    routed = [i for i, layer in enumerate(model.layers) if layer.ffn.router is not None]
    assert list(record.counts) == routed
    assert all(counts.sum() == 2 * 40 * 2 for counts in record.counts.values())
    if residual != "prenorm":  # pseudo-queries start at zero
        n = {"block_attnres": 3, "full_attnres": 7}[residual]
        assert metrics["depth/source_weight/output/source_00"] == pytest.approx(1 / n)
        assert metrics["depth/source_entropy/output"] == pytest.approx(1)


def test_gradients_are_those_of_the_loss() -> None:
    torch.manual_seed(0)
    model = build_model(config("lower_bound", "block_attnres"), 64).double().eval()
    tokens = torch.randint(64, (1, 21))
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}
    record = probe(model, batch)
    # moving all outputs of one sublayer along its gradient changes the loss by ‖gradient‖² to first order
    for i in (0, 3, 5):
        step = 1e-6 * record.grads[i].view(1, 20, -1)
        losses = []
        for sign in (1, -1):
            sublayer = model.layers[i // 2].mixer if i % 2 == 0 else model.layers[i // 2].ffn

            def shift(module: Any, inputs: Any, output: Any, sign: int = sign, step: Any = step) -> Any:
                return (output[0] + sign * step, output[1]) if isinstance(output, tuple) else output + sign * step

            handle = sublayer.register_forward_hook(shift)
            logits = model(batch["tokens"])[0]
            losses.append(F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum"))
            handle.remove()
        change = (losses[0] - losses[1]).item() / 2e-6
        assert change == pytest.approx(record.grads[i].square().sum().item(), rel=1e-3)
