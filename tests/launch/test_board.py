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
    return SimpleNamespace(**{**start, **values})


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
    table = captured.err[captured.err.index("worst") :]
    assert "mixer=[kda]" in table
    assert "0.75" in table


def test_a_long_sweep_shows_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(label=f"seed={i}", status="finished" if i < 50 else "waiting") for i in range(100)]
    rows[50].status = "running"
    board = Board("t", rows)
    board._live = SimpleNamespace()  # type: ignore[assignment]
    board._console = Console(height=20, width=80)
    shown = [r.label for r in board._window()]
    assert len(shown) == 12
    assert "seed=50" in shown
