"""One line a failure, and the files that explain it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from k3lab.training import failure
from k3lab.training.module import NonFiniteError


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (NonFiniteError(8, float("inf"), 2.0), ["the loss is inf at step 8", "failure.json"]),
        (NonFiniteError(8, 2.0, float("nan")), ["the gradient's norm is nan at step 8", "failure.json"]),
        (ValueError("logits: has NaN values"), ["not a number in step 8 (logits: has NaN values)", "failure.json"]),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x/metrics.jsonl"),
            ["cannot write /x/metrics.jsonl: No space left on device", "no checkpoint yet", "resume="],
        ),
        (torch.OutOfMemoryError("CUDA out of memory"), ["trainer.accumulate", "step 7", "traceback.txt"]),
        (RuntimeError("two\nlines  of text"), ["after step 7: RuntimeError: two lines of text", "traceback.txt"]),
        (KeyError(), ["KeyError; details"]),
        (RuntimeError("x" * 5000), ["…; details"]),
    ],
)
def test_one_line(error: BaseException, parts: list[str], tmp_path: Path) -> None:
    line = failure.one_line(error, 7, tmp_path)
    assert len(line.splitlines()) == 1
    assert len(line) < 600
    for part in parts:
        assert part in line


def test_reports(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight[0, 0] = torch.nan
    failure.write_reports(NonFiniteError(3, float("nan"), 1.5), 2, tmp_path, model)
    found = json.loads((tmp_path / "failure.json").read_text())
    assert (found["step"], found["loss"], found["grad_norm"]) == (3, "nan", "1.5")
    assert found["layers"]["model"]["param_nonfinite"] == 1
    assert "NonFiniteError" in (tmp_path / "traceback.txt").read_text()
    failure.write_reports(RuntimeError("no model yet"), 0, tmp_path / "absent", None)  # a disk that refuses
