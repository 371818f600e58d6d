"""What every launcher offers: start a job somewhere, say which have ended, pass a signal on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from k3lab.launch.job import Job

LOG = "log.txt"  # a job's stdout and stderr, in its folder


class Launcher(ABC):
    """Runs job files (see k3lab.launch.job). ``config`` is one of the sweep's configurations.

    What a launcher is asked for is one for the whole sweep; a job's own devices are in the job's configuration.
    """

    def __init__(self, settings: Any, config: Any) -> None:
        self.settings, self.config = settings, config

    @abstractmethod
    def free(self) -> int:
        """Return how many more jobs can be started now."""

    @abstractmethod
    def start(self, job: Job, config: Any, environment: dict[str, str]) -> None:
        """Start a job; its file has been written. Raises OSError if it cannot be started."""

    @abstractmethod
    def ended(self, seconds: float) -> list[tuple[Job, int]]:
        """Wait at most so long for jobs to end; returns them with their exit codes (−N: killed by signal N)."""

    @abstractmethod
    def signal(self, number: int, job: Job | None = None) -> None:
        """Pass a signal on to a running job, or to all of them, which save a checkpoint and end."""

    @abstractmethod
    def kill(self, job: Job | None = None) -> None:
        """End a running job, or all of them, at once, with all of its processes."""
