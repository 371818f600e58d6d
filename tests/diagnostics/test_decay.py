"""The study of forgetting by hand: spectra, stuck channels, kinds of tokens."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from k3lab import plotting
from k3lab.config.errors import UserError
from k3lab.diagnostics.decay import BINS, Decay, DecaySettings, add_up, all_metrics, quantiles
from k3lab.diagnostics.decay_metrics import decay_metrics
from k3lab.diagnostics.probe import probe
from k3lab.diagnostics.study import Subject

BIN = 10 ** (1 / 50) - 1  # relative width of a bin


def g_of(half_lives: list[float]) -> Tensor:
    return -math.log(2) / torch.tensor(half_lives)


def test_sums_by_hand() -> None:
    # three tokens, one head, two channels
    g_NHK = torch.stack([g_of([2.0, 100.0]), g_of([8.0, 100.0]), torch.tensor([-4.99, 0.0])])[:, None]
    found = add_up(g_NHK, -5.0, torch.tensor([1, 0, 1]), 3)
    assert found.tokens == 3
    assert (found.by_head_HB.sum(), found.by_class_CB.sum(1).tolist()) == (6, [2, 4, 0])
    assert found.at_bound_HK.tolist() == [[1, 0]]
    assert found.dead_HK.tolist() == [[0, 1]]
    expected = math.log(2) + math.log(8) + math.log(math.log(2) / 4.99)
    assert found.log_sum_HK[0, 0].item() == pytest.approx(expected, rel=1e-6)
    by_class = quantiles(found.by_class_CB, 0.5).tolist()
    assert by_class[0] == pytest.approx(8, rel=BIN)
    assert by_class[1] == pytest.approx(2, rel=BIN)  # 0.14, 2, 100 and a dead one
    assert math.isnan(by_class[2])
    both = add_up(g_NHK, None, torch.tensor([0, 0, 0]), 3)
    both += both
    assert both.tokens == 6
    assert both.at_bound_HK.tolist() == [[0, 0]]  # no bound, none at it


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_quantiles_of_a_histogram(level: float) -> None:
    torch.manual_seed(0)
    life = torch.exp(3 + torch.randn(20000, 1, 1))
    found = add_up(-math.log(2) / life, None, torch.zeros(20000, dtype=torch.int64), 1)
    exact = torch.quantile(life.flatten(), level).item()
    assert quantiles(found.by_head_HB, level).item() == pytest.approx(exact, rel=BIN)
    assert found.by_head_HB.shape == (1, BINS)


def test_stuck_channels_by_hand() -> None:
    g_NHK = g_of([5.0, 5.0, 5.0, 5.0]).repeat(100, 1)[:, None]
    g_NHK[:, 0, 0] = -5.0  # at every token
    g_NHK[:98, 0, 1] = -5.0  # nearly
    g_NHK[:, 0, 2] = 0.0
    bounded = add_up(g_NHK, -5.0, torch.zeros(100, dtype=torch.int64), 1)
    free = add_up(g_of([7.0]).view(1, 1, 1), None, torch.zeros(1, dtype=torch.int64), 1)
    found = all_metrics({2: bounded, 5: free})
    assert found["decay/layer_02/at_bound_fraction"] == pytest.approx((1 + 0.98) / 4)
    assert found["decay/layer_02/always_at_bound_fraction"] == 1 / 4
    assert found["decay/layer_02/always_dead_fraction"] == 1 / 4
    assert found["decay/always_dead_fraction"] == 1 / 5
    assert found["decay/layer_05/half_life_median"] == pytest.approx(7, rel=BIN)
    assert "decay/layer_05/at_bound_fraction" not in found
    assert found["decay/at_bound_fraction"] == pytest.approx((1 + 0.98) / 4)  # of the bounded layers


def subject(model: Any, batches: list[dict[str, Tensor]], folder: Path = Path()) -> Subject:
    return Subject(model.eval(), batches, folder, 3, 16, lambda ids: "abcdefg 0123,.(\n"[ids[0]])


def test_agrees_with_the_probe(make_model: Any, batch: dict[str, Tensor]) -> None:
    model = make_model("prenorm").eval()
    metrics, data, _ = Decay(DecaySettings(sequences=2)).measure(subject(model, [batch]))
    expected = decay_metrics(probe(model, batch, 3, 1000).log_decays)
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=0.1, abs=1e-9), name  # few channels: a median in a gap
    assert data["tokens"] == 36
    assert set(data["layers"]) == {"0", "1"}
    assert torch.tensor(data["layers"]["0"]["half_life_by_channel"]).shape == (2, 4)


def test_files(make_model: Any, batch: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plotting, "DPI", 30)
    model = make_model("prenorm")
    Decay(DecaySettings()).run(subject(model, [batch], tmp_path))
    folder = tmp_path / "figures" / "decay"
    assert {p.stem for p in folder.glob("*.png")} == {"spectrum", "stuck", "token_classes"}
    assert json.loads((folder / "decay.json").read_text())["sequence"] == 12
    assert not any(m._forward_hooks for m in model.modules())


def test_a_model_without_decay_is_refused(make_model: Any, batch: dict[str, Tensor]) -> None:
    model = make_model("prenorm")
    for layer in model.layers:
        layer.mixer = nn.Identity()
    with pytest.raises(UserError, match="no layer of this model has a decay"):
        Decay(DecaySettings()).measure(subject(model, [batch]))
