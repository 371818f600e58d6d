"""What a sweep does about SIGINT and SIGTERM."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import Any

from k3lab.launch.base import Launcher

GRACE_S = 60.0  # of launchers without a setting of that name


class Stop:
    """Both signals during a ``with`` block: passed on to the jobs, which save; no further job starts."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.came: int | None = None
        self._at = 0.0

    @property
    def exit_code(self) -> int:
        return 128 + (self.came or signal.SIGINT)

    @property
    def grace(self) -> float:
        """Seconds that a job gets to save a checkpoint."""
        return float(getattr(self.launcher.settings, "grace", GRACE_S))

    def patience(self) -> None:
        """Kill the jobs that are still running when their time to save is over."""
        if self.came and time.monotonic() - self._at > self.grace:
            self.launcher.kill()

    def __enter__(self) -> Stop:
        self._before: dict[int, Any] = {n: signal.signal(n, self._handle) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.came is None:
            self.came, self._at = number, time.monotonic()
            print("k3lab: the running jobs save a checkpoint and end; again: at once", file=sys.stderr, flush=True)
        self.launcher.signal(number)
