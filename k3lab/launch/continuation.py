"""Which sweep goes on with ``resume=auto``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from k3lab.launch.folders import DEFAULT_NAME
from k3lab.sweep.base import Sweeper
from k3lab.tracking.local import read_summary
from k3lab.training.lock import is_running


def find_sweep(config: Any, sweeper: Sweeper, fingerprints: list[str]) -> Path | None:
    """Return the newest sweep that ``sweeper`` can go on with and that no process is running."""
    found: list[tuple[float, Path]] = []
    for folder in Path(config.paths.output, config.name or DEFAULT_NAME).glob("sweep-*"):
        summary = read_summary(folder) or {}
        if summary.get("kind") != "sweep" or is_running(folder):
            continue
        if sweeper.continues(summary, fingerprints):
            found.append((float(summary.get("started") or 0.0), folder))
    return max(found)[1] if found else None
