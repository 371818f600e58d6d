"""Figures of a run: what is read from metrics.jsonl, what is drawn, and what is not when it is not there."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from k3lab import plotting
from k3lab.diagnostics.balance_metrics import LoadBalance, bias_metrics
from k3lab.diagnostics.decay_metrics import decay_metrics
from k3lab.diagnostics.depth_metrics import depth_metrics, source_metrics
from k3lab.diagnostics.draw import draw_run
from k3lab.diagnostics.figures import history as history_file
from k3lab.diagnostics.figures.balance import draw_load
from k3lab.diagnostics.figures.history import History
from k3lab.diagnostics.snapshot import Snapshot
from k3lab.tracking import names

EVERYTHING = {"load", "drops", "biases", "depth_sizes", "depth_profile", "sources", "decay"}
SNAPSHOT = Snapshot(
    20,
    64,
    {1: torch.randn(8), 3: torch.randn(8)},
    {0: torch.rand(2, 4) * 30, 2: torch.full((2, 4), 7e5)},
    {0: -5.0, 2: None},
    {1: torch.tensor([0.25, 0.75]), 4: torch.tensor([0.5, 0.25, 0.25])},
    4,
)


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plotting, "DPI", 30)


def write(folder: Path, steps: list[int], bound: float | None = -5.0, counts: list[int] | None = None) -> Path:
    """A run of four sublayers; layers 1 and 3 are routed, 0 and 2 forget."""
    torch.manual_seed(0)
    with (folder / "metrics.jsonl").open("w") as out:
        for step in steps:
            load = LoadBalance([1, 3], 8, 2, sync_on_compute=False)
            load.update(torch.tensor([counts] * 2) if counts else torch.randint(5, 30, (2, 8)))
            h, f = [torch.randn(9, 6) for _ in range(5)], [torch.randn(9, 6) for _ in range(4)]
            two, three = torch.rand(2, 9).softmax(0), torch.rand(3, 9).softmax(0)
            values = {
                **load.compute(),
                **bias_metrics({1: torch.randn(8), 3: torch.randn(8)}),
                **depth_metrics(h, f, f, torch.arange(5)),
                **source_metrics([None, two, two, None, three], 100),
                **decay_metrics({i: (-torch.rand(5, 2, 3), bound) for i in (0, 2)}),
            }
            json.dump({"step": step, "time": 0.0, **values}, out)
            out.write("\n")
    return folder


def test_everything_is_drawn_whatever_the_values(tmp_path: Path) -> None:
    lines = (write(tmp_path, [0, 10, 20]) / "metrics.jsonl").read_text().splitlines()
    last = {k: v if k in ("step", "time") else None for k, v in json.loads(lines[2]).items()}
    last["depth/output_rms/layer_01"] = math.inf
    broken = json.dumps(last).replace("Infinity", "1e999")  # as a diverged run leaves it
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines[:2], broken, ""]))
    files = draw_run(tmp_path, SNAPSHOT)
    assert {f.stem for f in files} == EVERYTHING | {"experts", "half_lives"}
    assert all(f.parent == tmp_path / "figures" and f.read_bytes().startswith(b"\x89PNG") for f in files)
    assert sorted(p.name for p in (tmp_path / "figures").iterdir()) == sorted(f.name for f in files)


def test_without_a_snapshot_and_with_a_single_measurement(tmp_path: Path) -> None:
    files = draw_run(write(tmp_path, [0], bound=None))
    assert {f.stem for f in files} == EVERYTHING - {"drops"}  # before the first step nothing is dropped


def test_a_diverged_model_can_be_drawn(tmp_path: Path) -> None:
    nan = torch.full((2, 4), math.nan)
    lost = Snapshot(20, 64, {1: nan[0]}, {0: nan, 2: nan}, {0: -5.0, 2: None}, {1: nan[0, :2]}, 4)
    names_of_all = json.loads((write(tmp_path, [1]) / "metrics.jsonl").read_text())
    line = {**dict.fromkeys(names_of_all), "step": 2, "time": 0.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    draw_run(tmp_path, lost)


@pytest.mark.parametrize("load", [10, 0])
def test_perfect_balance_and_no_tokens_can_be_drawn(tmp_path: Path, load: int) -> None:
    history = History.read(write(tmp_path, [5, 10], counts=[load] * 8))
    assert draw_load(history, tmp_path / "load.png")


def test_a_run_without_diagnostics_draws_nothing(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time": 0.0, "train/loss": 3.0}\n')
    assert draw_run(tmp_path) == []
    assert draw_run(tmp_path / "absent", Snapshot(0, 8)) == []
    assert not (tmp_path / "figures").exists()


def test_history_by_layer() -> None:
    history = History(
        {
            "balance/max_vio": {0: 9.0, 10: 2.0},
            "balance/layer_01/max_vio": {0: 9.0, 10: 2.0, 20: 1.0},
            "balance/layer_11/max_vio": {10: 3.0},
            "balance/layer_01/max_vio_floor": {0: 0.0},
            "depth/output_rms/layer_00": {0: 0.5},
            "depth/output_rms/output": {0: 0.7},
        }
    )
    table = history.layers(names.BALANCE_MAX_VIO, first=1)
    assert table is not None
    assert table.layers_L.tolist() == [1, 11]
    assert table.steps_N.tolist() == [10, 20]
    np.testing.assert_equal(table.values_LN, [[2.0, 1.0], [3.0, math.nan]])
    sizes = history.layers(names.DEPTH_OUTPUT_RMS)
    assert sizes is not None
    assert sizes.layers_L.tolist() == [0]
    assert history.layers(names.DECAY_DEAD_FRACTION) is None
    assert history.line(names.BALANCE_MAX_VIO, first=11) is None
    assert history.first_step(names.BALANCE_MAX_VIO) == 1
    assert history.first_step(names.TRAIN_LOSS) == 0


def test_many_steps_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "POINTS", 4)
    line = History({"train/loss": {s: float(s) for s in range(1, 101)}}).line(names.TRAIN_LOSS)
    assert line is not None
    assert line.steps_N.tolist() == [1, 34, 67, 100]


def test_sources_in_order_with_the_output_last() -> None:
    history = History(
        {
            "depth/source_weight/output/source_00": {5: 0.1, 10: 0.2},
            "depth/source_weight/output/source_01": {10: 0.8},
            "depth/source_weight/layer_10/source_00": {10: 1.0},
            "depth/source_weight/layer_02/source_00": {10: 0.5},
        }
    )
    found = history.sources()
    assert found is not None
    labels, weights = found
    assert labels == ["2", "10", "output"]
    np.testing.assert_equal(weights, [[0.5, math.nan], [1.0, math.nan], [0.2, 0.8]])
