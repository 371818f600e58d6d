"""One job of a sweep, as the sweep keeps account of it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k3lab.config.schema import mask
from k3lab.launch.job import Job
from k3lab.launch.watch import Watch
from k3lab.sweep.base import Trial
from k3lab.tracking.local import read_summary
from k3lab.tracking.run import JOB

ENDED = ("finished", "failed", "pruned", "interrupted")


@dataclass
class Entry:
    """A job and what has become of it."""

    trial: Trial
    folder: Path
    config: Any = None  # None until it is needed; a search may propose what is refused
    fingerprint: str = ""
    max_steps: int = 0
    status: str = "waiting"
    code: int | None = None
    run_id: str | None = None
    steps: int = 0
    wall_s: float = 0.0
    metrics: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    began: float = 0.0
    again: bool = False  # it was started before: go on from its checkpoint
    leave: str | None = None  # why it was told to end early
    leave_at: float = 0.0
    watcher: Watch | None = None

    @property
    def label(self) -> str:
        return self.trial.label

    @property
    def arm(self) -> str:
        return self.trial.arm

    def load(self, config: Any) -> None:
        """Take the job's configuration."""
        self.config, self.fingerprint = config, config.fingerprint()
        self.max_steps = int(config.trainer.max_steps)

    def job(self, parent_run_id: str | None) -> Job:
        """Return what the job's process needs to know."""
        return Job(
            index=self.trial.index,
            label=self.label,
            overrides=list(self.trial.overrides),
            folder=str(self.folder),
            cwd=os.getcwd(),
            parent_run_id=parent_run_id,
            resume=self.again,
        )

    def begin(self, metric: str | None) -> None:
        """Note that the job is being started."""
        self.status, self.began, self.error, self.code = "running", time.monotonic(), None, None
        self.leave, self.watcher = None, Watch(self.folder, metric)

    def watch(self) -> None:
        """Read where the running job is."""
        self.wall_s = time.monotonic() - self.began
        if self.watcher is not None:
            self.watcher.read()
            self.steps, self.metrics = self.watcher.step, self.watcher.metrics

    def validations(self) -> dict[int, float]:
        """Return the watched metric at the validations before the last step."""
        every = self.config.trainer.val_every
        if self.watcher is None or every is None:
            return {}
        return {s: v for s, v in self.watcher.points.items() if s % every == 0 and 0 < s < self.max_steps}

    def adopt(self, summary: dict[str, Any]) -> None:
        """Take the job's end from its own summary."""
        self.status, self.error = summary["status"], summary.get("error")
        self.run_id, self.steps = summary.get("run_id"), int(summary.get("steps") or 0)
        self.metrics = summary.get("metrics") or {}

    def record(self) -> dict[str, Any]:
        """Return the entry as the sweep's summary holds it."""
        return {
            "index": self.trial.index,
            "label": self.label,
            "arm": self.arm,
            "overrides": [mask(text) for text in self.trial.overrides],
            "status": self.status,
            "folder": self.folder.name,  # in the sweep's folder, which may be moved
            "fingerprint": self.fingerprint,
            "run_id": self.run_id,
            "exit_code": self.code,
            "steps": self.steps,
            "max_steps": self.max_steps,
            "wall_s": round(self.wall_s, 3),
            # The job's own summary has those of single layers.
            "metrics": {k: v for k, v in self.metrics.items() if "/layer_" not in k},
            **({} if self.error is None else {"error": self.error}),
        }

    @classmethod
    def restore(cls, record: dict[str, Any], sweep: Path) -> Entry:
        """Return the entry of a sweep that was left, as its job's own folder has it if that knows more."""
        label = record["label"]
        trial = Trial(record["index"], tuple(record["overrides"]), label, record.get("arm", label))
        entry = cls(trial, sweep / record["folder"], fingerprint=record["fingerprint"])
        entry.max_steps = record.get("max_steps", 0)
        entry.status, entry.code, entry.error = record["status"], record["exit_code"], record.get("error")
        entry.run_id, entry.steps, entry.wall_s = record["run_id"], record["steps"], record["wall_s"]
        entry.metrics = record["metrics"]
        entry.again = (entry.folder / JOB).is_file()
        own = read_summary(entry.folder) or {}
        if entry.status not in ENDED and own.get("status") in ENDED:  # the sweep was killed before it took note
            entry.adopt(own)
            entry.wall_s = float(own.get("wall_s") or entry.wall_s)
        return entry
