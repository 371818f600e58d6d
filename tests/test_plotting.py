"""Helpers of figures that compute something."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from k3lab import plotting


def test_edges_lie_halfway() -> None:
    assert plotting.edges(np.array([0, 10, 30])).tolist() == [-5, 5, 20, 40]
    assert plotting.edges(np.array([7])).tolist() == [6.5, 7.5]


def test_spread_out_keeps_both_ends() -> None:
    assert plotting.spread_out([3, 1], 4) == [3, 1]
    assert plotting.spread_out(list(range(93)), 4) == [0, 31, 61, 92]
    assert plotting.some_of(4, 93, "layers") == " · 4 of 93 layers"
    assert plotting.some_of(4, 4, "layers") == ""


def test_a_figure_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plotting, "DPI", 30)
    file = tmp_path / "new folder" / "a.png"
    with plotting.canvas(2.0, file, "title") as figure:
        plotting.grid(figure, 3, 2)[2].plot([1, 2])
    assert file.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ZeroDivisionError), plotting.canvas(2.0, tmp_path / "b.png"):
        raise ZeroDivisionError
    assert sorted(p.name for p in tmp_path.rglob("*.png")) == ["a.png"]


def test_labels_of_a_grid_are_in_its_last_row() -> None:
    axes = plotting.grid(Figure(), 5, 3)
    plotting.label_below(axes, 3, "step")
    assert [a.get_xlabel() for a in axes] == ["", "", "", "step", "step"]


def test_logarithmic_ticks_are_plain_numbers() -> None:
    axis = Figure().subplots()
    plotting.log_scale(axis)
    axis.set_ylim(0.1, 20)
    major, minor = axis.yaxis.get_major_formatter(), axis.yaxis.get_minor_formatter()
    assert [major(x) for x in (0.1, 10, 20000)] == ["0.1", "10", "20,000"]
    assert [minor(x) for x in (0.2, 0.3, 5)] == ["0.2", "", "5"]
    axis.set_ylim(1, 2)
    assert [minor(x) for x in (1.1, 3, 1.25)] == ["", "3", ""]


def test_thousands_are_short() -> None:
    axis = Figure().subplots()
    plotting.whole_numbers(axis.xaxis)
    assert [axis.xaxis.get_major_formatter()(x) for x in (0, 2500, 12500)] == ["0", "2500", "12.5k"]
