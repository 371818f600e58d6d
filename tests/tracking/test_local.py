"""metrics.jsonl and summary.json."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import pytest

from k3lab.tracking.local import (
    MetricsFile,
    last_metrics,
    read_lines,
    read_metrics,
    read_summary,
    write_summary,
)


def test_values_come_back_bitwise(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    values = {
        "train/loss": 0.1 + 0.2,
        "a": 1e-320,
        "b": -0.0,
        "c": 3,
        "nan": math.nan,
        "up": math.inf,
        "down": -math.inf,
    }
    file.append(values, 7, 1.5)
    file.close()
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    found = {name: steps[7] for name, steps in read_metrics(tmp_path).items()}
    assert math.isnan(found.pop("nan"))
    assert found == {k: v for k, v in values.items() if k != "nan"}
    assert math.copysign(1, found["b"]) == -1


def test_a_resumed_file_has_each_value_once(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    file.append({"val/loss": 9.0}, 0, 0.0)
    for step in range(1, 6):
        file.append({"train/loss": float(step)}, step, 0.0)
    file.append({"val/loss": 8.0}, 3, 0.0)
    file.close()
    file = MetricsFile(tmp_path, start_step=3)
    file.append({"train/loss": -1.0, "val/loss": -1.0, "late": 1.0}, 3, 0.0)  # the first two are there already
    for step in range(4, 7):
        file.append({"train/loss": float(step)}, step, 0.0)
    file.close()
    lines = [(line.step, name) for line in read_lines(tmp_path) for name in line.metrics]
    assert len(lines) == len(set(lines))
    assert read_metrics(tmp_path)["train/loss"] == {s: float(s) for s in range(1, 7)}
    assert read_metrics(tmp_path)["val/loss"] == {0: 9.0, 3: 8.0}
    assert read_metrics(tmp_path)["late"] == {3: 1.0}


def test_half_a_line_of_a_killed_process_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "time": 1.0, "a": 1.0}\n{"step": 2, "time": 1.0, "a": 2')
    assert read_metrics(tmp_path) == {"a": {1: 1.0}}
    file = MetricsFile(tmp_path, start_step=2)
    file.append({"a": 2.0}, 2, 0.0)
    file.close()
    assert read_metrics(tmp_path) == {"a": {1: 1.0, 2: 2.0}}


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = MetricsFile(tmp_path)
    file.append({"a": 1.0}, 1, 0.0)
    real, calls = os.write, []

    def full(handle: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) == 1:
            return real(handle, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        file.append({"a": 2.0}, 2, 0.0)
    monkeypatch.undo()
    file.append({"a": 3.0}, 3, 0.0)
    file.close()
    assert read_metrics(tmp_path) == {"a": {1: 1.0, 3: 3.0}}
    assert all(json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())


@pytest.mark.parametrize("name", ["", "step", "time", "a\nb", "größe", "x" * 251, "a,b"])
def test_names_that_a_store_would_refuse(tmp_path: Path, name: str) -> None:
    file = MetricsFile(tmp_path)
    with pytest.raises(ValueError, match="metric name"):
        file.append({name: 1.0}, 1, 0.0)
    file.close()


def test_last_metrics_reads_the_tail(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    for step in range(1000):
        file.append({"a": float(step)}, step, 0.0)
    file.close()
    assert last_metrics(tmp_path, tail=200) == (999, {"a": 999.0})
    assert last_metrics(tmp_path / "none") == (0, {})


def test_summary_is_valid_json_and_complete_or_absent(tmp_path: Path) -> None:
    assert read_summary(tmp_path) is None
    write_summary(tmp_path, {"status": "failed", "metrics": {"train/loss": math.nan, "x": [math.inf, 1.0]}})
    assert read_summary(tmp_path) == {"status": "failed", "metrics": {"train/loss": None, "x": [None, 1.0]}}
    with pytest.raises(TypeError):
        write_summary(tmp_path, {"status": object()})
    assert read_summary(tmp_path) is not None
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_values_of_a_wrong_type_in_a_summary_are_left_out(tmp_path: Path) -> None:
    wrong = '{"status": 3, "steps": "x", "wall_s": [], "started": true, "metrics": 1, "jobs": {}, "max_steps": 6}'
    (tmp_path / "summary.json").write_text(wrong)
    assert read_summary(tmp_path) == {"max_steps": 6}
