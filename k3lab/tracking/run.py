"""The tracker of one run: metrics.jsonl at once, MLflow through the courier process."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from k3lab.config.registry import component
from k3lab.tracking import environment
from k3lab.tracking.base import RunRequest
from k3lab.tracking.link import Link
from k3lab.tracking.local import SUMMARY, MetricsFile, write_summary
from k3lab.tracking.system import SystemMetrics

CONFIG = "config.yaml"
JOB = "job.json"  # of a job of a sweep: its overrides and its label
STATUSES = ("finished", "failed", "interrupted")


class Tracker:
    """Logs one run. No method waits for a server longer than half a minute, and none fails because of one."""

    def __init__(self, folder: Path, metrics: MetricsFile, link: Link | None, system: SystemMetrics | None) -> None:
        self.folder = folder
        self._metrics, self._link, self._system = metrics, link, system

    @classmethod
    def open(
        cls,
        config: Any,
        folder: Path,
        parent_run_id: str | None = None,
        run_id: str | None = None,
        start_step: int = 0,
        params: dict[str, str] | None = None,
    ) -> Tracker:
        """Start to log a run, or continue ``run_id`` after ``start_step`` optimizer steps; returns at once.

        What was logged past ``start_step`` is dropped from metrics.jsonl, and not sent twice to the store. What
        the store misses is sent. ``params`` replace the configuration's for a run that only groups others.
        Raises OSError if the folder cannot be written.
        """
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if params is None and not (folder / CONFIG).exists():
            (folder / CONFIG).write_text(config.to_yaml(), encoding="utf-8")
        metrics = MetricsFile(folder, start_step)
        settings = config.tracking
        link = None
        if component("tracking", settings.name).remote:
            request = _request(config, folder, parent_run_id, run_id, start_step)
            if params is not None:
                request = replace(request, params=params)
            link = Link(settings.name, settings, request, _say)
        system = None
        if getattr(settings, "system_metrics", False):
            system = SystemMetrics(folder, settings.system_every)
        return cls(folder, metrics, link, system)

    @property
    def run_id(self) -> str | None:
        """The id of the run in the store, None without one; the first use waits for the store, at most 30 s.

        Raises UserError if the store refuses the run. It may change from None once a dead server is back.
        """
        return None if self._link is None else self._link.run_id

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write the metrics of a step to metrics.jsonl; the courier takes them from there.

        Raises ValueError for a bad name, OSError when the disk refuses.
        """
        values = dict(metrics)
        if self._system is not None:
            values.update(self._system.sample())
        self._metrics.append(values, step, time.time())

    def flush(self) -> None:
        """Force metrics.jsonl to the disk and the metrics to the store; waits at most 5 s for the latter."""
        self._metrics.sync()
        if self._link is not None:
            self._link.flush()

    def artifact(self, path: Path, artifact_path: str | None = None) -> None:
        """Copy a file or a folder to the run's artifacts, without waiting."""
        if self._link is not None:
            self._link.artifact(str(Path(path).absolute()), artifact_path)

    def finish(self, status: str, summary: Mapping[str, Any] | None = None) -> None:
        """Close the run as ``finished``, ``failed`` or ``interrupted``; writes summary.json if one is given."""
        if status not in STATUSES:
            raise ValueError(f"status={status}: must be one of {', '.join(STATUSES)}")
        try:
            if summary is not None:
                write_summary(self.folder, {**summary, "status": status})
            self._metrics.sync()
        finally:
            if self._link is not None:
                files = [self.folder / name for name in (CONFIG, SUMMARY)]
                self._link.finish(status, [str(f) for f in files])
            self._metrics.close()


def _request(config: Any, folder: Path, parent_run_id: str | None, run_id: str | None, start_step: int) -> RunRequest:
    job = _job(folder)
    tags = {f"environment.{k}": v for k, v in environment.describe().items()}
    tags |= {
        "mlflow.source.name": "k3lab train",
        "mlflow.source.type": "LOCAL",
        "k3lab.fingerprint": config.fingerprint(),
        "k3lab.command": environment.command(job.get("overrides")),
    }
    if "environment.git_commit" in tags:
        tags["mlflow.source.git.commit"] = tags["environment.git_commit"].removesuffix("-dirty")
    return RunRequest(
        folder=str(folder),
        output=str(Path(config.paths.output).absolute()),
        experiment=getattr(config.tracking, "experiment", None) or config.name or "train",
        run_name=job.get("label") or folder.name,
        run_id=run_id,
        parent_run_id=parent_run_id,
        start_step=start_step,
        params=flatten(config.to_dict()),
        tags=tags,
    )


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as ``decay.bound`` → ``-5.0``; a group's name is filed under the group."""
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{key}.")
        elif key == "name" and prefix:
            found[prefix.removesuffix(".")] = str(value)
        else:
            found[prefix + key] = value if isinstance(value, str) else json.dumps(value)
    return found


def _job(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / JOB).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _say(line: str) -> None:
    print(f"k3lab: {line}", file=sys.stderr, flush=True)
