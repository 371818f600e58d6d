"""Runs read from their folders: config.yaml, summary.json and metrics.jsonl, which outlive any store."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from k3lab.report.record import Run
from k3lab.tracking.local import METRICS, SUMMARY, read_metrics, read_summary
from k3lab.tracking.run import CONFIG, JOB, flatten

DEPTH = 4  # <output>/<name>/<sweep>/<job>


def find(root: Path, depth: int = DEPTH) -> list[Path]:
    """Return the run folders and sweep folders in ``root`` (itself, or below it), in order of their names."""
    found = {
        file.parent
        for level in range(depth)
        for name in (SUMMARY, METRICS, JOB)
        for file in root.glob("*/" * level + name)
    }
    return sorted(found)


def label_of(folder: Path) -> str:
    """Return the folder's last two names, by which the store knows it."""
    return "/".join(folder.absolute().parts[-2:])


def sweep_summary(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a sweep's folder, None for any other folder."""
    summary = read_summary(folder)
    return summary if summary is not None and summary.get("kind") == "sweep" else None


def sweep_command(folder: Path) -> str | None:
    """Return the command line of a sweep's folder."""
    overrides = (sweep_summary(folder) or {}).get("overrides")
    return None if overrides is None else shlex.join(["k3lab", "train", "-m", *map(str, overrides)])


def read_run(folder: Path) -> Run:
    """Return the run of a folder; whatever is missing or damaged there is left out."""
    summary = read_summary(folder) or {}
    job = _json(folder / JOB)
    overrides = job.get("overrides")
    config = read_config(folder / CONFIG)
    parent = folder.parent if folder.parent.name.startswith("sweep-") else None
    return Run(
        id=str(summary.get("run_id") or folder.name),
        label=label_of(folder),
        status=str(summary.get("status") or ("waiting" if job else "running")),
        config=config,
        summary=summary,
        load=partial(read_metrics, folder),
        environment={k: str(v) for k, v in (summary.get("environment") or {}).items()},
        command=None if overrides is None else shlex.join(["k3lab", "train", *map(str, overrides)]),
        experiment=experiment_of(config, folder),
        parent=None if parent is None else str(parent),
        folder=folder,
        started=float(summary.get("started") or 0.0),
    )


def experiment_of(config: dict[str, str], folder: Path) -> str:
    """Return the experiment that a run belongs to: as configured, else by where its folder lies."""
    for key in ("tracking.experiment", "name"):
        if config.get(key) not in (None, "null"):
            return config[key]
    above = folder.parent
    return above.parent.name if above.name.startswith("sweep-") else above.name


def read_config(file: Path) -> dict[str, str]:
    """Return a config.yaml as flat text, empty if there is none or it is damaged."""
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return flatten(values) if isinstance(values, dict) else {}


def unstarted(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield label, status and error of a sweep's jobs that left no folder, or never began."""
    for job in (sweep_summary(folder) or {}).get("jobs", []):
        place = folder / str(job.get("folder"))
        if not (place / SUMMARY).is_file() and not (place / METRICS).is_file():
            yield str(job.get("label")), str(job.get("status")), str(job.get("error") or "")


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
