"""The board of a sweep."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from k3lab.launch.board import Board


def row(**values: Any) -> Any:
    start = {"label": "x", "status": "waiting", "steps": 0, "max_steps": 9, "wall_s": 0.0, "metrics": {}, "error": None}
    return SimpleNamespace(**{**start, "arm": values.get("label", "x"), **values})


def test_without_a_terminal_there_is_a_line_a_job_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        row(label="mixer=[kda]", status="finished", metrics={"val/bits_per_byte": 2.5, "balance/max_vio": 0.75}),
        row(status="failed", error="killed by SIGKILL", metrics={"val/loss": math.nan, "train/loss": None}),
    ]
    with Board("runs/x: 2 jobs", rows) as board:
        board.ended(rows[0])
        board.ended(rows[1])
        board.refresh(at_once=True)
    captured = capsys.readouterr()
    assert captured.out == "", "the last line of stdout is the folder's"
    assert "[2/2] mixer=[kda]: finished after 0 s, 2.5000 bits/byte\n" in captured.err
    assert "[2/2] x: failed after 0 s: killed by SIGKILL\n" in captured.err
    table = captured.err[captured.err.index("MaxVio") :]
    assert "mixer=[kda]" in table
    assert "0.75" in table


def test_a_long_sweep_shows_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(label=f"seed={i}", status="finished" if i < 50 else "waiting") for i in range(100)]
    rows[50].status = "running"
    board = Board("t", rows)
    board._live = SimpleNamespace()  # type: ignore[assignment]
    board._console = Console(height=20, width=80)
    shown = [label for label, _ in board._window(board._arms())]
    assert len(shown) == 11
    assert "seed=50" in shown


def test_seeds_of_an_arm_share_a_row_and_their_mean_grows(capsys: pytest.CaptureFixture[str]) -> None:
    def job(arm: str, seed: int, status: str, loss: float | None, steps: int = 9) -> Any:
        label, metrics = f"{arm} seed={seed}", {"val/loss": loss, "balance/max_vio": 0.5}
        return row(label=label, arm=arm, status=status, steps=steps, metrics=metrics, wall_s=2.0)

    rows = [
        job("decay=none", 0, "finished", 2.0),
        job("decay=none", 1, "finished", 2.5),
        job("decay=none", 2, "running", 9.0, steps=3),  # not in the mean: it has not come to its end
        job("decay=scalar", 0, "running", 3.0, steps=1),
        job("decay=scalar", 1, "waiting", None, steps=0),
    ]
    with Board("t", rows, total=6, headline=lambda: "never without a terminal") as board:
        board.ended(rows[0])
    err = capsys.readouterr().err
    assert "[2/6] decay=none seed=0: finished" in err
    none = next(line for line in err.splitlines() if "│ decay=none" in line)
    for text in ("running", "2/3", "21/27", "2.2500 ± 0.3536", "0.50"):
        assert text in none
    assert "6 s" in none
    scalar = next(line for line in err.splitlines() if "│ decay=scalar" in line)
    assert "3.0000" in scalar
    assert "val loss ± sd" in err
    assert "seed=" not in none + scalar


def test_one_arm_alone_shows_its_seeds_and_a_search_its_own_metric(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"val/accuracy": 0.5, "perf/step_ms": 12.5}
    rows = [row(label=f"seed={i}", arm="", status="pruned", error="worse", metrics=metrics) for i in range(2)]
    with Board("t", rows, metric="perf/step_ms") as board:
        board.ended(rows[1])
    err = capsys.readouterr().err
    assert "[2/2] seed=1: pruned after 0 s: worse" in err
    assert err.count("12.5000") == 2
    assert "perf/step_ms" in err
    assert "accuracy" not in err
