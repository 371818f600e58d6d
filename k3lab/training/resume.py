"""Which run to go on with, and where in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from k3lab.config.errors import UserError, nearest
from k3lab.tracking.local import SUMMARY, read_summary
from k3lab.training.foreign import refuse_pickle
from k3lab.training.lock import is_running

DEPTH = 4  # <output>/<name>/<sweep>/<job>/summary.json


def find_unfinished(output: Path, fingerprint: str) -> Path | None:
    """Return the newest run folder below ``output`` with this configuration that is neither finished nor running."""
    best: tuple[float, Path] | None = None
    for folder, summary in runs(output):
        if summary.get("fingerprint") != fingerprint or summary.get("status") == "finished":
            continue
        if not (folder / "config.yaml").is_file() or is_running(folder):
            continue
        started = float(summary.get("started") or 0.0)
        if best is None or started > best[0]:
            best = (started, folder)
    return best[1] if best else None


def runs(output: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield every run folder below ``output`` with its summary."""
    for level in range(DEPTH):
        for file in sorted(output.glob("*/" * level + SUMMARY)):
            if summary := read_summary(file.parent):
                yield file.parent, summary


def require_run(value: str) -> Path:
    """Return the run folder that ``resume=`` names; raises UserError for anything else, and opens no pickle."""
    folder = Path(value)
    if folder.is_file():
        refuse_pickle(folder)
        raise UserError(f"resume={value} is a file: must be a run folder, or auto")
    if not folder.is_dir():
        beside = [p.name for p in folder.parent.iterdir() if p.is_dir()] if folder.parent.is_dir() else []
        raise UserError(f"resume={value}: no such folder{nearest(folder.name, beside)}")
    if not (folder / "config.yaml").is_file():
        refuse_pickle(folder)
        raise UserError(f"resume={value} is no run folder: it has no config.yaml")
    return folder
