"""A launcher whose jobs are calls of a function in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3lab.config import registry
from k3lab.launch import sweep
from k3lab.launch.base import Launcher
from k3lab.launch.job import Job
from k3lab.tracking.local import MetricsFile, write_summary

Behave = Callable[[Job, Any], int]


def train(job: Job, config: Any) -> int:
    """Do what a successful training leaves."""
    file = MetricsFile(Path(job.folder))
    file.append({"train/loss": 1.0 + job.index}, 2, 0.0)
    file.close()
    metrics = {"train/loss": 1.0 + job.index}
    write_summary(Path(job.folder), {"status": "finished", "run_id": None, "steps": 2, "metrics": metrics})
    return 0


class Calls(Launcher):
    """Runs a job when it is started, and reports it later."""

    def __init__(self, settings: Any, config: Any, behave: Behave) -> None:
        super().__init__(settings, config)
        self.behave = behave
        self.jobs: list[Job] = []
        self.environments: list[dict[str, str]] = []
        self.signals: list[int] = []
        self.told: list[tuple[int, int]] = []  # (signal, job) of signals that went to one job
        self._done: list[tuple[Job, int]] = []

    def free(self) -> int:
        return int(self.settings.jobs) - len(self._done)

    def start(self, job: Job, config: Any, environment: dict[str, str]) -> None:
        self.jobs.append(job)
        self.environments.append(environment)
        self._done.append((job, self.behave(job, config)))

    def ended(self, seconds: float) -> list[tuple[Job, int]]:
        done, self._done = self._done, []
        return done

    def signal(self, number: int, job: Job | None = None) -> None:
        if job is None:
            self.signals.append(number)
        else:
            self.told.append((number, job.index))

    def kill(self, job: Job | None = None) -> None:
        pass


class Workshop:
    """Makes launchers; ``behave`` is what their jobs do, ``train`` what a good one does."""

    def __init__(self) -> None:
        self.made: list[Calls] = []
        self.behave: Behave = train
        self.train: Behave = train

    def component(self, group: str, name: str) -> Any:
        """Stand in for the registry."""
        if group != "launch":
            return registry.component(group, name)
        return self._make

    def _make(self, settings: Any, config: Any) -> Calls:
        self.made.append(Calls(settings, config, self.behave))
        return self.made[-1]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """Let sweeps use ``Calls``."""
    workshop = Workshop()
    monkeypatch.setattr(sweep, "component", workshop.component)
    return workshop


@pytest.fixture
def base(tmp_path: Path) -> list[str]:
    """Return overrides under which a sweep writes to the test's folder and tracks nothing."""
    return [f"paths.output={tmp_path}/runs", "tracking=none", "trainer.max_steps=2"]
