"""Helpers that run the command line as a user does: in a process and a working directory of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SMALL = [
    "model.hidden_size=32",
    "model.heads=2",
    "model.layers=4",
    "data.seq_len=32",
    "data.batch_size=4",
    "trainer.val_batches=1",
    "trainer.val_every=null",
    "trainer.accelerator=cpu",
    "diagnostics.figures=false",  # drawing would take longer than these trainings
]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def k3lab(tmp_path: Path) -> Run:
    """Run ``k3lab ARGS`` in an empty folder; returns the finished process."""

    def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "k3lab", *args],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", **env},
            capture_output=True,
            text=True,
            timeout=240,
        )

    return run


def last_folder(process: subprocess.CompletedProcess[str], cwd: Path) -> Path:
    """Return the run folder that a finished training named on its last line."""
    assert process.returncode == 0, process.stderr[-3000:]
    return cwd / process.stdout.strip().splitlines()[-1]


def summary(folder: Path) -> dict:
    """Return a run's summary."""
    return json.loads((folder / "summary.json").read_text())
