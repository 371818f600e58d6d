"""The study of depth against the model's own loop with a sublayer left out, and by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from k3lab import plotting
from k3lab.config.errors import UserError
from k3lab.diagnostics.depth import Depth, DepthSettings, paired_change, silenced
from k3lab.diagnostics.study import Subject


def subject(model: Any, batches: list[dict[str, Tensor]], folder: Path = Path()) -> Subject:
    return Subject(model.eval(), batches, folder, 3, 16, str)


def loss_without(model: Any, batch: dict[str, Tensor], silent: int | None) -> float:
    """The mean loss by the model's own loop, the output of one sublayer replaced by zeros."""
    stream = model.residual.start(model.embedding(batch["tokens"]))
    for i in range(6):
        x, layer = model.residual.read(stream, i), model.layers[i // 2]
        y = layer.mixer(x) if i % 2 == 0 else layer.ffn(x, batch.get("mask"))[0]
        stream = model.residual.write(stream, i, 0 * y if i == silent else y)
    logits = model.head(model.residual.finish(stream))
    return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten()).item()


def test_ablation_is_the_loss_without_a_sublayer(model: Any, batch: dict[str, Tensor]) -> None:
    metrics, data, _ = Depth(DepthSettings(sequences=2)).measure(subject(model, [batch]))
    with torch.no_grad():
        whole = loss_without(model, batch, None)
        assert metrics["val/loss"] == pytest.approx(whole, rel=1e-6)
        for i in range(6):
            expected = loss_without(model, batch, i) - whole
            assert metrics[f"depth/ablation_loss/layer_{i:02d}"] == pytest.approx(expected, abs=1e-6)
    assert data["sublayers"] == ["toymixer", "toyffn", "toymixer", "toyffn", "plainmixer", "toyffn"]
    assert (data["sequences"], data["targets"]) == (3, 30)


def test_a_silenced_sublayer_speaks_again(make_model: Any, batch: dict[str, Tensor]) -> None:
    model = make_model("prenorm").eval()
    before = model(batch["tokens"]).logits_BTV
    with silenced(model, 1):
        assert not torch.equal(model(batch["tokens"]).logits_BTV, before)
    assert torch.equal(model(batch["tokens"]).logits_BTV, before)
    with pytest.raises(ZeroDivisionError), silenced(model, 1):
        raise ZeroDivisionError
    assert torch.equal(model(batch["tokens"]).logits_BTV, before)


def test_paired_change_by_hand() -> None:
    targets = torch.tensor([1, 1])
    losses = torch.tensor([[2.0, 9.0], [3.0, 9.0], [3.0, 10.0]], dtype=torch.float64)
    change, error = paired_change(losses, targets)
    assert change.tolist() == [0.5, 1.0]
    # rests ±1/2: variance 1/2 of a single sequence, so √(1/2 / 2) of their mean
    assert error.tolist() == pytest.approx([0.5, 0])
    # twice the targets, twice the change: nothing is left to chance
    change, error = paired_change(torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([1, 2]))
    assert (change.item(), error.item()) == (1, 0)
    assert math.isnan(paired_change(torch.tensor([[0.0], [1.0]]), torch.tensor([1]))[1].item())


def test_lens_reads_the_mixture(model: Any, batch: dict[str, Tensor]) -> None:
    metrics, _, _ = Depth(DepthSettings()).measure(subject(model, [batch]))
    assert metrics["depth/lens_loss/output"] == pytest.approx(metrics["val/loss"], rel=1e-6)
    assert metrics["depth/lens_agreement/output"] == 1
    with torch.no_grad():
        logits = model.head(model.residual.final_norm(model.embedding(batch["tokens"])))
        guess = model(batch["tokens"]).logits_BTV.argmax(-1)
    expected = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten()).item()
    assert metrics["depth/lens_loss/layer_00"] == pytest.approx(expected, rel=1e-6)
    real = batch["targets"] != -100
    agreement = (logits.argmax(-1) == guess)[real].double().mean().item()
    assert metrics["depth/lens_agreement/layer_00"] == pytest.approx(agreement)


def test_how_the_data_are_cut_changes_nothing(model: Any, batch: dict[str, Tensor]) -> None:
    mask = torch.ones_like(batch["tokens"], dtype=torch.bool)
    mask[1, -4:] = False
    batch = {**batch, "mask": mask, "targets": batch["targets"].masked_fill(~mask, -100)}
    halves = [{k: v[part] for k, v in batch.items()} for part in (slice(0, 2), slice(2, 3))]
    # all tokens are in the sample, so that rank and CKA are of the same ones
    one, _, _ = Depth(DepthSettings(sequences=3, sample_tokens=1000)).measure(subject(model, [batch]))
    other, _, _ = Depth(DepthSettings(sequences=1, sample_tokens=1000)).measure(subject(model, halves))
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert other[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_all_metrics_and_files(
    make_model: Any, batch: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plotting, "DPI", 30)
    metrics = Depth(DepthSettings()).run(subject(make_model("block_attnres"), [batch], tmp_path))
    for name in ("ablation_loss", "block_influence", "angular_distance", "effective_rank", "cka_next", "output_rms"):
        assert f"depth/{name}/layer_05" in metrics
    assert "depth/source_entropy/output" in metrics
    assert all(math.isfinite(v) for v in metrics.values())
    folder = tmp_path / "figures" / "depth"
    assert {p.stem for p in folder.glob("*.png")} == {"ablation", "cka", "lens", "profile", "sources"}
    left = json.loads((folder / "depth.json").read_text())
    assert torch.tensor(left["linear_cka"]).shape == (7, 7)
    assert left["linear_cka"][2][2] == pytest.approx(1)
    assert left["linear_cka"][0][1] == pytest.approx(metrics["depth/cka_next/layer_00"])
    weights = [left["source_weights"][f"depth/source_weight/output/source_{s:02d}"] for s in range(4)]
    assert sum(weights) == pytest.approx(1)


def test_nothing_held_out_is_said(make_model: Any) -> None:
    with pytest.raises(UserError, match="no held-out sequence"):
        Depth(DepthSettings()).measure(subject(make_model("prenorm"), []))


@pytest.mark.parametrize("key", ["batches", "sequences"])
def test_settings_refuse_zero(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key}=0"):
        DepthSettings(**{key: 0})
    with pytest.raises(ValueError, match="sample_tokens=1"):
        DepthSettings(sample_tokens=1)
