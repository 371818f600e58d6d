"""A real run: figures at its end, then every study of its checkpoint by `k3lab eval`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3lab import plotting
from k3lab.config.errors import UserError
from k3lab.config.load import load, load_folder
from k3lab.tracking.local import read_metrics
from k3lab.training.evaluate import evaluate
from k3lab.training.run import run_training

OVERRIDES = [
    *("model.hidden_size=32", "model.heads=2", "model.layers=2", "ffn.experts=4", "ffn.top_k=2"),
    *("data.seq_len=48", "data.batch_size=4", "trainer.max_steps=4", "trainer.log_every=2", "trainer.val_batches=1"),
    *("trainer.accelerator=cpu", "diagnostics.every=3", "tracking=none"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("run")
    (home / "corpus").mkdir()
    for i in range(8):
        text = "".join(f"line {j} of file {i}: (some, words) = 'and' more\n" for j in range(30))
        (home / "corpus" / f"{i}.txt").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plotting, "DPI", 30)
        assert run_training(load([*OVERRIDES, f"data.path={home / 'corpus'}"]), home / "run") == 0
    return home / "run"


def test_the_run_left_figures(run: Path) -> None:
    assert {p.stem for p in (run / "figures").glob("*.png")} == {
        *("load", "drops", "biases", "experts"),
        *("depth_sizes", "depth_profile", "sources", "decay", "half_lives"),
    }
    metrics = read_metrics(run)
    assert list(metrics["balance/max_vio"]) == [0, 2, 3, 4]
    assert list(metrics["depth/output_rms/layer_00"]) == [0, 3, 4]


@pytest.mark.parametrize("study", ["depth", "routing", "decay"])
def test_studies(run: Path, study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plotting, "DPI", 30)
    before = (run / "metrics.jsonl").read_bytes()
    found = evaluate(load_folder(run, [f"diagnostics={study}", "diagnostics.batches=1"]), run)
    assert found["step"] == 4
    left = json.loads((run / "figures" / study / f"{study}.json").read_text())
    assert left["metrics"].keys() == found.keys() - {"step"}
    assert len(list((run / "figures" / study).glob("*.png"))) >= 3
    assert (run / "metrics.jsonl").read_bytes() == before
    if study == "depth":  # the same checkpoint on the same data
        plain = evaluate(load_folder(run, ["trainer.val_batches=1"]), run)
        assert found["val/loss"] == pytest.approx(plain["val/loss"], rel=1e-5)


def test_a_study_is_no_training(run: Path, tmp_path: Path) -> None:
    config = load_folder(run, ["diagnostics=routing"])
    with pytest.raises(UserError, match="k3lab eval run=FOLDER diagnostics=routing; allowed in training: cheap, off"):
        run_training(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_figures_can_be_switched_off(run: Path, tmp_path: Path) -> None:
    config = load_folder(run, ["diagnostics.figures=false", "trainer.max_steps=1"])
    assert run_training(config, tmp_path / "run") == 0
    assert not (tmp_path / "run" / "figures").exists()
    assert "depth/output_rms/layer_00" in read_metrics(tmp_path / "run")
